//! [`RoundRobin`] is a policy that runs each task in turn for one slice.
//!
//! Slices end on a grid, so a late timer shortens the next slice instead of delaying all later
//! slices. A task that blocks keeps its slice. Until the end of the slice a *substitute* runs,
//! which still gets its own slice later. The other tasks take turns as substitutes. With K CPUs, K
//! tasks run, and these K move to the back at the end of a slice. A turn costs one system call for
//! each raised thread, one to read the CPU time of each task in front, and the wait.

use std::collections::{HashSet, VecDeque};

use crate::policy::{Nanos, Policy, TaskId, Turn, Usage, next_end};

/// Runs each task in turn for one slice.
///
/// ```
/// use upshift_sched::policies::RoundRobin;
/// use upshift_sched::{Policy, TaskId, Turn};
///
/// let mut policy = RoundRobin::new(5_000_000);
/// policy.added(TaskId(0), 0);
/// policy.added(TaskId(1), 0);
/// let mut turn = Turn::new(1);
/// policy.pick(0, &mut turn);
/// assert_eq!((turn.favoured(), turn.end()), (&[TaskId(0)][..], Some(5_000_000)));
/// turn.clear();
/// policy.pick(5_000_000, &mut turn);
/// assert_eq!(turn.favoured(), [TaskId(1)]);
/// ```
#[derive(Debug)]
pub struct RoundRobin {
    slice: Nanos,
    queue: VecDeque<TaskId>,
    slice_end: Nanos,
    /// Set while the first task of the queue has not run yet.
    is_fresh: bool,
    sleepers: HashSet<TaskId>,
    /// Number of slices so far, which selects the substitute. On one CPU, the length of a round and
    /// the number of substitutes have no common divisor, so each task gets each substitute.
    slices: usize,
}

impl RoundRobin {
    /// Creates the policy with slices of `slice` ns.
    pub fn new(slice: Nanos) -> RoundRobin {
        RoundRobin {
            slice: slice.max(1),
            queue: VecDeque::new(),
            slice_end: 0,
            is_fresh: true,
            sleepers: HashSet::new(),
            slices: 0,
        }
    }
}

impl Policy for RoundRobin {
    fn name(&self) -> &'static str {
        "rr"
    }

    fn added(&mut self, task: TaskId, _now: Nanos) {
        self.queue.push_back(task);
    }

    fn removed(&mut self, task: TaskId, _now: Nanos) {
        self.is_fresh |= self.queue.front() == Some(&task);
        self.queue.retain(|&other| other != task);
        self.sleepers.remove(&task);
    }

    fn wants_usage(&self) -> bool {
        true
    }

    fn used(&mut self, usage: Usage, _now: Nanos) {
        if usage.slept {
            self.sleepers.insert(usage.task);
        } else {
            self.sleepers.remove(&usage.task);
        }
    }

    fn pick(&mut self, now: Nanos, turn: &mut Turn) {
        let running = turn.cpus().min(self.queue.len());
        if self.is_fresh {
            self.is_fresh = false;
            self.slice_end = now + self.slice;
        } else if now >= self.slice_end {
            self.queue.rotate_left(running);
            self.slices += 1;
            self.slice_end = next_end(self.slice_end, self.slice, now);
        }
        for &task in self.queue.iter().take(running) {
            turn.favour(task);
        }
        if self.queue.len() > running {
            turn.end_at(self.slice_end);
        }
        let others = self.queue.len() - running;
        let sleeps = |task: &&TaskId| self.sleepers.contains(task);
        let sleeping = self.queue.iter().take(running).filter(sleeps).count();
        let mut missing = sleeping.min(others);
        for step in 0..others {
            if missing == 0 {
                break;
            }
            let task = self.queue[running + (self.slices + step) % others];
            turn.favour(task);
            missing -= usize::from(!self.sleepers.contains(&task));
        }
    }
}
