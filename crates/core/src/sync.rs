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
