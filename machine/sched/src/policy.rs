//! [`Policy`]: what runs next, and until when.
//!
//! A policy is told which tasks there are and, if it asks, how much CPU time they used; it answers with tasks in order of
//! preference and the time at which it wants to be asked again. It never sees a process, a thread or a clock, so it is
//! tested in virtual time.
//!
//! The engine calls a policy from one thread, that of the scheduler, which runs above all tasks: what a policy does delays
//! everything, so it neither blocks nor does input and output. All methods take O(tasks) at most in the policies of this crate.

use std::fmt;

/// A moment or a length of time in ns. Moments are of CLOCK_MONOTONIC.
pub type Nanos = u64;

/// A task of one engine: the number that [`Engine::add`](crate::Engine::add) gave it, counted from 0. Never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub usize);

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "task {}", self.0)
    }
}

/// What a task did since the policy was told last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// The task.
    pub task: TaskId,
    /// CPU time of all its threads, ns.
    pub cpu_time: Nanos,
    /// Whether it left more than half of what it could have had unused, because it blocked or was stopped. What was true
    /// before, if it could have had next to nothing.
    pub slept: bool,
}

/// Decides what runs. See the [crate's page](crate) for one in 30 lines.
pub trait Policy: Send {
    /// Its name, as the user knows it.
    fn name(&self) -> &'static str;

    /// A task has come. It may be picked from now on.
    fn added(&mut self, task: TaskId, now: Nanos);

    /// A task has ended. It must not be picked any more; the engine ignores it if it is.
    fn removed(&mut self, task: TaskId, now: Nanos);

    /// Whether [`used`](Policy::used) is to be called. It costs a system call for each task that ran in a turn. Asked once.
    fn wants_usage(&self) -> bool {
        false
    }

    /// What one task used since the last turn. Called before [`pick`](Policy::pick) for each task that ran, as far as the engine
    /// looked: it looks at those that were favoured and, if they left time over, at all.
    fn used(&mut self, _usage: Usage, _now: Nanos) {}

    /// Fills in the next turn. Called when the last turn is over, and earlier when a task has come or gone.
    fn pick(&mut self, now: Nanos, turn: &mut Turn);
}

/// The answer of a policy.
#[derive(Debug)]
pub struct Turn {
    cpus: usize,
    favoured: Vec<TaskId>,
    until: Option<Nanos>,
}

impl Turn {
    /// An empty turn for so many CPUs.
    pub fn new(cpus: usize) -> Turn {
        Turn {
            cpus,
            favoured: Vec::new(),
            until: None,
        }
    }

    /// CPUs there are, and so how many tasks can run.
    pub fn cpus(&self) -> usize {
        self.cpus
    }

    /// Favours a task. The first ones get a CPU each; those after them run at once when one before them blocks; all others
    /// after those, in no order. A policy that knows which tasks sleep goes on until it has favoured one that does not for each CPU.
    /// Without any call all tasks are equal, and one that has a CPU keeps it until it blocks.
    pub fn favour(&mut self, task: TaskId) {
        if !self.favoured.contains(&task) {
            self.favoured.push(task);
        }
    }

    /// When the policy wants to be asked again; the earliest of several calls counts. Without any: when a task comes or goes.
    pub fn until(&mut self, at: Nanos) {
        self.until = Some(self.until.map_or(at, |until| until.min(at)));
    }

    /// The tasks favoured so far, in order.
    pub fn favoured(&self) -> &[TaskId] {
        &self.favoured
    }

    /// The end of the turn so far.
    pub fn end(&self) -> Option<Nanos> {
        self.until
    }

    /// Empties it.
    pub fn clear(&mut self) {
        self.favoured.clear();
        self.until = None;
    }
}

/// The end of the slice after one that ended at `last`: on the grid of slices, so that lateness does not add up, unless that
/// is over already.
pub fn next_end(last: Nanos, slice: Nanos, now: Nanos) -> Nanos {
    let next = last.saturating_add(slice);
    if next > now {
        next
    } else {
        now.saturating_add(slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_stay_on_their_grid_unless_one_was_missed_altogether() {
        assert_eq!(next_end(100, 50, 103), 150);
        assert_eq!(next_end(100, 50, 151), 201);
    }

    #[test]
    fn a_turn_keeps_order_and_the_earliest_end() {
        let mut turn = Turn::new(1);
        for task in [2, 1, 2] {
            turn.favour(TaskId(task));
        }
        turn.until(9);
        turn.until(7);
        turn.until(8);
        assert_eq!(turn.favoured(), [TaskId(2), TaskId(1)]);
        assert_eq!(turn.end(), Some(7));
    }
}
