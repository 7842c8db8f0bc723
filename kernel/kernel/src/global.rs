//! The global bitmap: one word that every process can read.
//!
//! Bit L is set if work of level L waits for a hart: a ready user thread, or a ready coroutine of
//! the kernel. The bitmap is rebuilt whenever a hart is about to return to user mode (so on each
//! tick and each kernel entry) and whenever a thread becomes ready; O(harts). Running work is not
//! in it, so a process that sees a more urgent level than its own gives its hart away for a reason
//! (SharedScheduler, section 3.4).

use crate::memory::shared;
use crate::{executor, run_queue};

/// Rebuilds the bitmap. After each write it checks again: another hart may have made something
/// ready, and have written that, after the bits were read.
pub(crate) fn publish() {
    let levels = || run_queue::ready() | executor::domain().bitmap();
    let mut bits = levels();
    while shared::global().load(0) != bits {
        shared::global().store(0, bits);
        bits = levels();
    }
}
