//! [`Policy`] decides which task runs next, and for how long.
//!
//! A policy learns which tasks exist and, if it wants to, how much CPU time they used. When the
//! engine asks, the policy answers with tasks in order of preference, the *favoured* tasks, and
//! with the end of the turn, at which the engine asks again. A policy never accesses a process, a
//! thread or a clock, so it can be tested in virtual time.
//!
//! The engine calls a policy from the scheduler's thread, which runs above all tasks. A slow policy
//! delays all other threads, so a policy must neither block nor do I/O. All methods of this crate's
//! policies take at most O(tasks).

use std::fmt;

/// A moment or a duration in ns. Moments are times of CLOCK_MONOTONIC.
pub type Nanos = u64;

/// A task of one engine, identified by its number from [`Engine::add`](crate::Engine::add), which
/// is counted from 0 and never reused.
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
    /// CPU time of all threads of the task, ns.
    pub cpu_time: Nanos,
    /// Set if the task left more than half of its time unused, because it blocked or was stopped.
    /// Not updated if the task had almost no time.
    pub slept: bool,
}

/// A scheduling policy. The [crate documentation](crate) shows one in 30 lines.
pub trait Policy: Send {
    /// Returns the name that users see.
    fn name(&self) -> &'static str;

    /// Adds a task, which may be favoured from now on.
    fn added(&mut self, task: TaskId, now: Nanos);

    /// Removes a task that has ended. The engine ignores the task if it is favoured again.
    fn removed(&mut self, task: TaskId, now: Nanos);

    /// Returns whether the engine must call [`used`](Policy::used), which costs a system call for
    /// each task that ran in a turn. Called once.
    fn wants_usage(&self) -> bool {
        false
    }

    /// Reports the usage of a task since the last turn. Called before [`pick`](Policy::pick) for
    /// the favoured tasks and, if they left time over, for all other tasks that ran.
    fn used(&mut self, _usage: Usage, _now: Nanos) {}

    /// Fills in the next turn. Called when the last turn has ended, and earlier if a task is added
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

    /// Favours a task. The first favoured tasks get a CPU each; later tasks run at once when an
    /// earlier task blocks; all other tasks come after them, in no order. A policy that knows which
    /// tasks sleep favours tasks until one is awake for each CPU. Without any call all tasks are
    /// equal, and a running task keeps its CPU until it blocks.
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

/// Returns the end of the slice that follows a slice that ended at `last`. The end is on the grid
/// of slices, so that lateness does not add up, unless this time has already passed.
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
    fn slices_stay_on_their_grid_unless_a_whole_slice_was_missed() {
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
