//! [`Solo`] is a policy that runs one task at a time, until the task blocks.
//!
//! The kernel does this with SCHED_FIFO threads of the same priority, so the policy favours no task
//! and is never called again. It needs no timer and causes no unnecessary switch. Each thread of a
//! task has its own place in the kernel's queue.

use crate::policy::{Nanos, Policy, TaskId, Turn};

/// Runs one task at a time, until it blocks.
#[derive(Debug, Default)]
pub struct Solo;

impl Solo {
    /// Creates the policy.
    pub fn new() -> Solo {
        Solo
    }
}

impl Policy for Solo {
    fn name(&self) -> &'static str {
        "solo"
    }

    fn added(&mut self, _task: TaskId, _now: Nanos) {}

    fn removed(&mut self, _task: TaskId, _now: Nanos) {}

    fn pick(&mut self, _now: Nanos, _turn: &mut Turn) {}
}
