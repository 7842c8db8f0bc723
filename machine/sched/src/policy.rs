//! [`Policy`]: the decision which task runs next, and until when.
//!
//! A policy learns which tasks there are and, if it asks, how much CPU time they used; it answers
//! with tasks in order of preference and the time of the next question. It never sees a process, a
//! thread or a clock, so it is tested in virtual time.
//!
//! The engine calls a policy from one thread, that of the scheduler, which runs above all tasks: a
//! slow policy delays everything, so it neither blocks nor does I/O. All methods take at most
//! O(tasks) in the policies of this crate.

use std::fmt;

/// A moment or a length of time in ns. Moments are of CLOCK_MONOTONIC.
pub type Nanos = u64;

/// A task of one engine: its number from [`Engine::add`](crate::Engine::add), counted from 0 and
/// never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub usize);

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "task {}", self.0)
    }
}

/// Usage of a task since the last report to the policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// The task.
    pub task: TaskId,
    /// CPU time of all its threads, ns.
    pub cpu_time: Nanos,
    /// Whether the task left more than half of its time unused, because it blocked or was stopped.
    /// Unchanged if it had next to no time.
    pub slept: bool,
}

/// A scheduling policy. The [crate's page](crate) shows one in 30 lines.
pub trait Policy: Send {
    /// Returns the name shown to users.
    fn name(&self) -> &'static str;

    /// Adds a task, which may be picked from now on.
    fn added(&mut self, task: TaskId, now: Nanos);

    /// Removes a task that has ended. The engine ignores it if it is picked again.
    fn removed(&mut self, task: TaskId, now: Nanos);

    /// Whether [`used`](Policy::used) is to be called. It costs a system call for each task that
    /// ran in a turn. Asked once.
    fn wants_usage(&self) -> bool {
        false
    }

    /// Reports the usage of one task since the last turn. Called before [`pick`](Policy::pick) for
    /// the favoured tasks and, if those left time over, for all others that ran.
    fn used(&mut self, _usage: Usage, _now: Nanos) {}

    /// Fills in the next turn. Called when the last turn is over, and earlier when a task is added
    /// or removed.
    fn pick(&mut self, now: Nanos, turn: &mut Turn);
}

/// The answer of a policy: favoured tasks, and the end of the turn.
///
/// ```
/// use upshift_sched::{TaskId, Turn};
///
/// let mut turn = Turn::new(1);
/// turn.favour(TaskId(3));
/// turn.end_at(5_000_000);
/// assert_eq!((turn.favoured(), turn.end()), (&[TaskId(3)][..], Some(5_000_000)));
/// ```
#[derive(Debug)]
pub struct Turn {
    cpus: usize,
    favoured: Vec<TaskId>,
    until: Option<Nanos>,
}

impl Turn {
    /// Creates an empty turn for `cpus` CPUs.
    pub fn new(cpus: usize) -> Turn {
        Turn {
            cpus,
            favoured: Vec::new(),
            until: None,
        }
    }

    /// Returns the number of CPUs, which is the number of tasks that can run.
    pub fn cpus(&self) -> usize {
        self.cpus
    }

    /// Favours a task. The first favoured tasks get a CPU each; later ones run at once when an
    /// earlier one blocks; all other tasks come after them, in no order. A policy that knows which
    /// tasks sleep favours tasks until it has one awake for each CPU. Without any call all tasks
    /// are equal, and a running one keeps its CPU until it blocks.
    pub fn favour(&mut self, task: TaskId) {
        if !self.favoured.contains(&task) {
            self.favoured.push(task);
        }
    }

    /// Ends the turn at `at`; the earliest of several calls counts. Without a call the turn ends
    /// when a task is added or removed.
    pub fn end_at(&mut self, at: Nanos) {
        self.until = Some(self.until.map_or(at, |until| until.min(at)));
    }

    /// Returns the favoured tasks, in order.
    pub fn favoured(&self) -> &[TaskId] {
        &self.favoured
    }

    /// Returns the end of the turn.
    pub fn end(&self) -> Option<Nanos> {
        self.until
    }

    /// Empties the turn.
    pub fn clear(&mut self) {
        self.favoured.clear();
        self.until = None;
    }
}

/// Returns the end of the slice after one that ended at `last`: on the grid of slices, so that
/// lateness does not add up, unless that is over already.
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
    fn slices_stay_on_their_grid_unless_a_whole_one_was_missed() {
        assert_eq!(next_end(100, 50, 103), 150);
        assert_eq!(next_end(100, 50, 151), 201);
    }

    #[test]
    fn a_turn_keeps_order_and_the_earliest_end() {
        let mut turn = Turn::new(1);
        for task in [2, 1, 2] {
            turn.favour(TaskId(task));
        }
        turn.end_at(9);
        turn.end_at(7);
        turn.end_at(8);
        assert_eq!(turn.favoured(), [TaskId(2), TaskId(1)]);
        assert_eq!(turn.end(), Some(7));
    }
}
