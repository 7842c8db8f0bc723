//! [`RoundRobin`]: each task in turn, for one slice.
//!
//! Slices end on a grid, so a late timer shortens the next slice instead of moving all of them. A task that blocks keeps its
//! slice: the task that runs meanwhile gets it for nothing, but not for longer, and each of the others does in turn. With K CPUs, K tasks run
//! and K move to the back. A turn costs one system call for each thread that is raised, one to read the CPU time of each task in front,
//! and the wait.

use std::collections::{HashSet, VecDeque};

use crate::policy::{Nanos, Policy, TaskId, Turn, Usage, next_end};

/// Each in turn.
#[derive(Debug)]
pub struct RoundRobin {
    slice: Nanos,
    queue: VecDeque<TaskId>,
    ends: Nanos,
    /// The front of the queue has not run yet.
    fresh: bool,
    /// The tasks that slept through most of their last slice.
    sleepers: HashSet<TaskId>,
    /// Slices so far. A round of them and the number of the others have no common divisor, so that each of those stands in for each
    /// task.
    slices: usize,
}

impl RoundRobin {
    /// Slices of `slice` ns.
    pub fn new(slice: Nanos) -> RoundRobin {
        RoundRobin {
            slice: slice.max(1),
            queue: VecDeque::new(),
            ends: 0,
            fresh: true,
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
        self.fresh |= self.queue.front() == Some(&task);
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
        if self.fresh {
            self.fresh = false;
            self.ends = now + self.slice;
        } else if now >= self.ends {
            self.queue.rotate_left(running);
            self.slices += 1;
            self.ends = next_end(self.ends, self.slice, now);
        }
        for &task in self.queue.iter().take(running) {
            turn.favour(task);
        }
        if self.queue.len() > running {
            turn.until(self.ends);
        }
        let others = self.queue.len() - running;
        let sleeps = |task: &&TaskId| self.sleepers.contains(task);
        let absent = self.queue.iter().take(running).filter(sleeps).count();
        let mut wanted = absent.min(others);
        for step in 0..others {
            if wanted == 0 {
                break;
            }
            let task = self.queue[running + (self.slices + step) % others];
            turn.favour(task);
            wanted -= usize::from(!self.sleepers.contains(&task));
        }
    }
}
