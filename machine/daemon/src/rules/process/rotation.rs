//! Lets threads of the same SCHED_FIFO priority share a CPU in slices. SCHED_FIFO itself has no
//! slices (`kernel.rs`).
//!
//! Lowering a computing thread by one priority and raising it again makes the thread the last of
//! its priority, and the next thread runs on the CPU. A rotation takes two system calls, and has no
//! effect if no other thread waits. Threads are rotated at each period of the domain, and every
//! [`SLICE`] while several threads of one priority compute.

use std::time::Duration;

use upshift_elevate::Priority;

use super::usage::MIN_COMPUTING;
use super::{Process, ProcessClass, Thread};
use crate::shared::Shared;

/// Maximum time for which a thread runs while another thread of its priority waits for the CPU.
pub(in crate::rules) const SLICE: Duration = Duration::from_millis(2);

impl Process {
    /// Returns the priority of the process's threads while it is urgent, and the number of threads
    /// that compute.
    pub(in crate::rules) fn computing(&self) -> (Priority, usize) {
        // Threads are sampled only while their process computes, so their usage may be older.
        let computes = |thread: &&Thread| {
            self.usage.recent >= MIN_COMPUTING && thread.usage.recent >= MIN_COMPUTING
        };
        let threads = self.threads.values().filter(computes).count();
        (self.priority(), threads)
    }

    /// Moves threads that have run for most of a slice behind the other threads of their priority.
    pub(in crate::rules) fn rotate_threads(&mut self, shared: &Shared) {
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
                // An error means that the thread has ended; the kernel reports that separately.
                let _ = thread.entry.rotate(priority);
            }
        }
    }
}
