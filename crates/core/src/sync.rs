//! The atomics of this crate: `core`'s, or `loom`'s under the model checker.
//!
//! Everything that two threads touch without the vCPU lock goes through this
//! shim, so that the same source runs under exhaustion and in production.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

/// So many counters at 0: one copy of a constant where the atomics allow it.
#[cfg(not(loom))]
pub(crate) fn zeros<const N: usize>() -> [AtomicU64; N] {
    [const { AtomicU64::new(0) }; N]
}

/// The same, with atomics that are registered one by one.
#[cfg(loom)]
pub(crate) fn zeros<const N: usize>() -> [AtomicU64; N] {
    core::array::from_fn(|_| AtomicU64::new(0))
}
