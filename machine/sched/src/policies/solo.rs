//! [`Solo`]: one task at a time, until it blocks.
//!
//! The kernel does this with SCHED_FIFO threads of one priority, so the policy favours no task and
//! is never asked again: no timer, no unnecessary switch. Threads of one task queue separately.

use crate::policy::{Nanos, Policy, TaskId, Turn};

/// Tasks one at a time, each until it blocks.
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
