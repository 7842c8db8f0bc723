//! The atomics of the model-checked files: `loom`'s under `--cfg loom`, the standard ones
//! otherwise.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
