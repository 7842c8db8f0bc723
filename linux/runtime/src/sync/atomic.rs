//! The atomics of the primitives, and the lock of a value that users borrow: `std`'s, or
//! `loom`'s under the model checker (`scheduler/models`), so that the checker and production run
//! the same source. The checker replaces the spinning [`Lock`](super::Lock) too.

#[cfg(loom)]
pub(super) use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(loom)]
pub(super) use loom::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
#[cfg(not(loom))]
pub(super) use std::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
pub(super) use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Makes a function `const` where atomics can be created at compile time: `loom`'s cannot.
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
