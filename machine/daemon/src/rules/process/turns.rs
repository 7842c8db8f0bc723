//! Turns: threads of one priority share a CPU by slices, which SCHED_FIFO does not have
//! (`kernel.rs`).
//!
//! A thread that computes is lowered by one step and raised again: then it is the last of its
//! priority, and the next thread of its CPU runs. That takes two system calls, and changes nothing
//! if no other thread waits. It is done at each turn of the domain, and every [`SLICE`] while
//! several threads of one priority compute.

use std::time::Duration;

use upshift_elevate::Priority;

use super::usage::MIN_COMPUTING;
use super::{Process, ProcessClass, Thread};
use crate::shared::Shared;

/// Longest time that a thread runs while another one of its priority waits for its CPU.
pub(in crate::rules) const SLICE: Duration = Duration::from_millis(2);

impl Process {
    /// Returns the priority of its threads while it is urgent, and the number of threads that
    /// compute.
    pub(in crate::rules) fn computing(&self) -> (Priority, usize) {
        // Its threads were sampled when it last computed.
        let computes = |thread: &&Thread| {
            self.usage.recent >= MIN_COMPUTING && thread.usage.recent >= MIN_COMPUTING
        };
        let threads = self.threads.values().filter(computes).count();
        (self.priority(), threads)
    }

    /// Puts threads that have run for most of a slice behind the others of their priority.
    pub(in crate::rules) fn take_turns(&mut self, shared: &Shared) {
        if self.class_state.class != ProcessClass::Urgent || self.usage.recent < MIN_COMPUTING {
            return;
        }
        let priority = self.priority();
        for thread in self.threads.values_mut() {
            if thread.usage.recent < MIN_COMPUTING {
                continue;
            }
            let total = thread
                .total(shared)
                .unwrap_or(thread.usage.total_at_rotation);
            if total.saturating_sub(thread.usage.total_at_rotation) >= SLICE / 2 {
                thread.usage.total_at_rotation = total;
                // The end of a thread is reported.
                let _ = thread.entry.rotate(priority);
            }
        }
    }
}
