//! The atomic types of the modules that loom checks. Under `--cfg loom` these are loom's types,
//! otherwise those of the standard library.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
