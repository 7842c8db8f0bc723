//! [`Solo`]: one task at a time, until it blocks.
//!
//! This is what the kernel does with SCHED_FIFO threads of one priority, so the policy favours none and is never asked
//! again: no timer, no switch that is not needed. Threads of one task queue for themselves.

use crate::policy::{Nanos, Policy, TaskId, Turn};

/// One until it blocks.
#[derive(Debug, Default)]
pub struct Solo;

impl Solo {
    /// The policy.
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
