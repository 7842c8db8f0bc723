//! Critical sections of a thread, for which other threads may have to spin.
//!
//! Between [`enter`] and [`leave`] the kernel delays the preemption of the thread for a short time
//! (`os_abi::thread`). Sections nest. After a surplus `leave` the thread seems to be in a critical
//! section for ever. Any program may make such a false claim, but the kernel lets the thread
//! continue for at most 100 µs.

use core::sync::atomic::Ordering::{Relaxed, SeqCst};

use os_abi::thread::{CRITICAL, YIELD_REQUESTED};

use crate::line;

/// Begins a section for which other threads may have to wait.
#[inline]
pub fn enter() {
    let critical = line(CRITICAL);
    // Only the thread itself writes the word, and its handler restores it.
    critical.store(critical.load(Relaxed).wrapping_add(1), Relaxed);
}

/// Ends the section. If the kernel has requested that the thread yields, calls `call`, which must
/// make a system call, no matter which; the kernel then chooses the next thread.
#[inline]
pub fn leave(call: impl FnOnce()) {
    let critical = line(CRITICAL);
    let depth = critical.load(Relaxed).wrapping_sub(1);
    critical.store(depth, Relaxed);
    if depth == 0 && line(YIELD_REQUESTED).load(Relaxed) != 0 {
        yield_hart(call);
    }
}

#[cold]
fn yield_hart(call: impl FnOnce()) {
    line(YIELD_REQUESTED).store(0, SeqCst);
    call();
}
