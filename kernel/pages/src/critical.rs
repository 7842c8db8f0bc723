//! The critical sections of a thread: what others may have to spin for.
//!
//! Between [`enter`] and [`leave`] the kernel lets the thread finish before it takes its hart
//! away, if that does not take long (`os_abi::thread`). They nest. A `leave` too
//! many is a lie about them, as any program may tell: the kernel lets such a thread finish for 100 µs
//! of its own quantum, and no longer.

use core::sync::atomic::Ordering::{Relaxed, SeqCst};

use os_abi::thread::{CRITICAL, OWED};

use crate::line;

/// The thread begins something that others may have to wait for.
#[inline]
pub fn enter() {
    let critical = line(CRITICAL);
    // Only the thread itself writes it, and its handler leaves it as it was.
    critical.store(critical.load(Relaxed).wrapping_add(1), Relaxed);
}

/// The end of that. The kernel has the hart if it is owed to it: `call` makes any call, for on
/// the way back the kernel looks which thread is to run.
#[inline]
pub fn leave(call: impl FnOnce()) {
    let critical = line(CRITICAL);
    let left = critical.load(Relaxed).wrapping_sub(1);
    critical.store(left, Relaxed);
    if left == 0 && line(OWED).load(Relaxed) != 0 {
        give_back(call);
    }
}

#[cold]
fn give_back(call: impl FnOnce()) {
    line(OWED).store(0, SeqCst);
    call();
}
