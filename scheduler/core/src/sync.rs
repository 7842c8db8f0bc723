//! The atomics of this crate: `core`'s, or `loom`'s under the model checker.
//!
//! Everything that two threads touch without the vCPU lock goes through this
//! shim, so that the same source runs under exhaustion and in production.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

/// Orders a store before a load as far as the compiler is concerned; the heavy barrier of another thread does the rest
/// ([`Host::heavy_barrier`](crate::Host::heavy_barrier)).
#[inline]
pub(crate) fn light_barrier() {
    #[cfg(not(any(loom, miri)))]
    core::sync::atomic::compiler_fence(Ordering::SeqCst);
    // Checkers know no barrier that one thread makes for another.
    #[cfg(any(loom, miri))]
    fence(Ordering::SeqCst);
}

/// A word that is for inspection only: no step depends on what another thread has written there. So the model checker
/// need not know of it, and the thousands of counters of a vCPU cost it nothing.
pub(crate) type Statistic = core::sync::atomic::AtomicU64;

/// So many counters at 0: one copy of a constant.
pub(crate) fn zeros<const N: usize>() -> [Statistic; N] {
    [const { Statistic::new(0) }; N]
}

/// Begins another cache line in a `repr(C)` struct: 128 bytes, for processors fetch lines in pairs.
#[repr(align(128))]
pub(crate) struct NextLine;
