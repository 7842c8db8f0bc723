//! The atomics of the primitives, and the lock of a value that users look at: `std`'s, or `loom`'s under the model checker
//! (`scheduler/models`), so that the same source runs under exhaustion and in
//! production. The lock, which spins, is replaced there by the checker's.

#[cfg(loom)]
pub(super) use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(loom)]
pub(super) use loom::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
#[cfg(not(loom))]
pub(super) use std::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
pub(super) use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// `const` where the atomics can be made at compile time: `loom`'s cannot.
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
