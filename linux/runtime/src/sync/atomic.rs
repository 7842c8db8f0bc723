//! The atomics that the primitives use, and the `RwLock` of a value that users borrow.
//!
//! They are `std`'s in production and `loom`'s under the model checker (`scheduler/models`), so
//! that both run the same source. The checker replaces the spinning [`Lock`](super::Lock) too.

#[cfg(loom)]
pub(super) use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(loom)]
pub(super) use loom::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
#[cfg(not(loom))]
pub(super) use std::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
pub(super) use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Makes a function `const`, except under `loom`, whose atomics cannot be created at compile time.
macro_rules! const_fn {
    ($(#[$about:meta])* $public:vis const fn $($rest:tt)*) => {
        $(#[$about])*
        #[cfg(not(loom))]
        $public const fn $($rest)*

        $(#[$about])*
        #[cfg(loom)]
        $public fn $($rest)*
    };
}
pub(super) use const_fn;
