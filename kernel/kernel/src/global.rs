//! Publishes the global bitmap, a word that every process can read.
//!
//! Bit L is set if work of level L waits for a hart: a ready user thread, or a ready kernel
//! coroutine. The bitmap is rebuilt whenever a hart is about to return to user mode (so after each
//! interrupt and each call) and whenever a thread becomes ready; O(harts). It does not include
//! running work, so a process that sees a more urgent level than its own has a reason to give up
//! its hart (SharedScheduler, section 3.4).

use crate::memory::shared;
use crate::{executor, run_queue};

/// Rebuilds the bitmap. Checks again after each write, because another hart may have made work
/// ready, and have written its bit, after this hart read the bits.
pub(crate) fn publish() {
    let levels = || run_queue::ready_levels() | executor::domain().bitmap();
    let mut bits = levels();
    while shared::global().load(0) != bits {
        shared::global().store(0, bits);
        bits = levels();
    }
}
