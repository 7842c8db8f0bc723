//! Atomics from `core`, or from `loom` under the model checker.
//!
//! Every word that two threads access without the vCPU lock uses these types, except for counters
//! that only inspection reads. So the same source runs in production and under the model checker.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

/// Orders a store before a load for the compiler only. The heavy barrier of another thread
/// ([`Host::heavy_barrier`](crate::Host::heavy_barrier)) orders them for the processor.
#[inline]
pub(crate) fn light_barrier() {
    #[cfg(not(any(loom, miri)))]
    core::sync::atomic::compiler_fence(Ordering::SeqCst);
    // loom and Miri do not model a barrier that one thread makes for another.
    #[cfg(any(loom, miri))]
    fence(Ordering::SeqCst);
}

/// A counter for inspection only, which means that no step depends on a value that another thread
/// has written. The model checker does not track these counters, since a vCPU has thousands of
/// them.
pub(crate) type Statistic = core::sync::atomic::AtomicU64;

pub(crate) fn zeros<const N: usize>() -> [Statistic; N] {
    [const { Statistic::new(0) }; N]
}

/// Begins another cache line in a `repr(C)` struct: 128 bytes, because processors fetch lines in
/// pairs.
#[repr(align(128))]
pub(crate) struct NextLine;
