//! [`RoundRobin`]: each task in turn, for one slice.
//!
//! Slices end on a grid, so a late timer shortens the next slice instead of moving all of them. A task that blocks keeps its
//! slice: whoever runs meanwhile gets it for nothing, but not for longer. With K CPUs, K tasks run and K move to the back.
//! It reads no CPU time, so a turn costs one system call for each thread that is raised, and the wait.

use std::collections::VecDeque;

use crate::policy::{Nanos, Policy, TaskId, Turn, next_end};

/// Each in turn.
#[derive(Debug)]
pub struct RoundRobin {
    slice: Nanos,
    queue: VecDeque<TaskId>,
    ends: Nanos,
    /// The front of the queue has not run yet.
    fresh: bool,
}

impl RoundRobin {
    /// Slices of `slice` ns.
    pub fn new(slice: Nanos) -> RoundRobin {
        RoundRobin {
            slice: slice.max(1),
            queue: VecDeque::new(),
            ends: 0,
            fresh: true,
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
    }

    fn pick(&mut self, now: Nanos, turn: &mut Turn) {
        let running = turn.cpus().min(self.queue.len());
        if self.fresh {
            self.fresh = false;
            self.ends = now + self.slice;
        } else if now >= self.ends {
            self.queue.rotate_left(running);
            self.ends = next_end(self.ends, self.slice, now);
        }
        for &task in self.queue.iter().take(running) {
            turn.favour(task);
        }
        if self.queue.len() > running {
            turn.until(self.ends);
        }
    }
}
