//! A lock for one writer or several readers, that may be held across `await`.
//!
//! Two parts: [`Raw`], which says what may be inside, and the value. The guards unlock `Raw`,
//! so a guard of a part of the value needs not know the whole.

use std::cell::UnsafeCell;
use std::fmt;
use std::sync::Arc;

use super::TryLockError;
use super::atomic::const_fn;
use super::park;

mod guard;
mod raw;

pub use guard::{
    OwnedRwLockMappedWriteGuard, OwnedRwLockReadGuard, OwnedRwLockWriteGuard,
    RwLockMappedWriteGuard, RwLockReadGuard, RwLockWriteGuard,
};
use raw::{Raw, Side};

/// Access to a `T`: shared by several readers, or exclusive to one writer.
///
/// * What waits is served most urgent level first, first come first served within a level. A
///   reader does not overtake a writer that waits and is as urgent: writers do not starve.
/// * What waits *lends its level* to the writer that is inside. Readers are not lent to: the
///   lock does not know their names.
/// * There is no poisoning.
///
/// ```
/// use upshift::sync::RwLock;
///
/// upshift::Runtime::new()?.block_on(async {
///     let lock = RwLock::new(5);
///     {
///         let (first, second) = (lock.read().await, lock.read().await);
///         assert_eq!(*first + *second, 10);
///     }
///     *lock.write().await += 1;
///     assert_eq!(*lock.read().await, 6);
/// });
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct RwLock<T: ?Sized> {
    raw: Raw,
    value: UnsafeCell<T>,
}

// SAFETY: the value is moved to, or reached from, one thread at a time.
unsafe impl<T: ?Sized + Send> Send for RwLock<T> {}
// SAFETY: readers of several threads reach the value at a time, writers one at a time.
unsafe impl<T: ?Sized + Send + Sync> Sync for RwLock<T> {}
impl<T: ?Sized> std::panic::UnwindSafe for RwLock<T> {}
impl<T: ?Sized> std::panic::RefUnwindSafe for RwLock<T> {}

/// More readers than this are not counted.
const MAX_READERS: u32 = u32::MAX >> 3;

impl<T> RwLock<T> {
    const_fn! {
        /// A free lock, for as many readers as can be counted.
        #[must_use]
        pub const fn const_new(value: T) -> RwLock<T> {
            RwLock { raw: Raw::new(MAX_READERS), value: UnsafeCell::new(value) }
        }
    }

    const_fn! {
        /// A free lock, for so many readers at a time.
        ///
        /// # Panics
        /// For none, and for more than `u32::MAX / 8`.
        #[must_use]
        #[track_caller]
        pub const fn const_with_max_readers(value: T, readers: u32) -> RwLock<T> {
            assert!(readers > 0, "a RwLock may not be created with 0 readers");
            assert!(readers <= MAX_READERS, "a lock cannot have so many readers");
            RwLock { raw: Raw::new(readers), value: UnsafeCell::new(value) }
        }
    }

    /// A free lock.
    #[must_use]
    pub fn new(value: T) -> RwLock<T> {
        RwLock::const_new(value)
    }

    /// A free lock, for so many readers at a time.
    ///
    /// # Panics
    /// For none, and for more than `u32::MAX / 8`.
    #[must_use]
    #[track_caller]
    pub fn with_max_readers(value: T, readers: u32) -> RwLock<T> {
        RwLock::const_with_max_readers(value, readers)
    }

    /// The value.
    #[must_use]
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits until there is no writer. The future may be dropped at any time.
    pub async fn read(&self) -> RwLockReadGuard<'_, T> {
        self.raw.enter(Side::Read).await;
        RwLockReadGuard::new(self)
    }

    /// Waits until there is no holder. The future may be dropped at any time.
    pub async fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.raw.enter(Side::Write).await;
        RwLockWriteGuard::new(self)
    }

    /// [`read`](RwLock::read) with a guard that can be moved into another coroutine.
    pub async fn read_owned(self: Arc<Self>) -> OwnedRwLockReadGuard<T>
    where
        T: Sized,
    {
        self.raw.enter(Side::Read).await;
        OwnedRwLockReadGuard::new(self)
    }

    /// [`write`](RwLock::write) with a guard that can be moved into another coroutine.
    pub async fn write_owned(self: Arc<Self>) -> OwnedRwLockWriteGuard<T>
    where
        T: Sized,
    {
        self.raw.enter(Side::Write).await;
        OwnedRwLockWriteGuard::new(self)
    }

    /// A look at the value, if no writer is inside or goes before.
    ///
    /// # Errors
    /// [`TryLockError`].
    pub fn try_read(&self) -> Result<RwLockReadGuard<'_, T>, TryLockError> {
        self.raw.try_enter(Side::Read)?;
        Ok(RwLockReadGuard::new(self))
    }

    /// Exclusive access, if there is no holder, and no waiter goes before.
    ///
    /// # Errors
    /// [`TryLockError`].
    pub fn try_write(&self) -> Result<RwLockWriteGuard<'_, T>, TryLockError> {
        self.raw.try_enter(Side::Write)?;
        Ok(RwLockWriteGuard::new(self))
    }

    /// [`try_read`](RwLock::try_read) with a guard that can be moved into another coroutine.
    ///
    /// # Errors
    /// [`TryLockError`].
    pub fn try_read_owned(self: Arc<Self>) -> Result<OwnedRwLockReadGuard<T>, TryLockError>
    where
        T: Sized,
    {
        self.raw.try_enter(Side::Read)?;
        Ok(OwnedRwLockReadGuard::new(self))
    }

    /// [`try_write`](RwLock::try_write) with a guard that can be moved into another coroutine.
    ///
    /// # Errors
    /// [`TryLockError`].
    pub fn try_write_owned(self: Arc<Self>) -> Result<OwnedRwLockWriteGuard<T>, TryLockError>
    where
        T: Sized,
    {
        self.raw.try_enter(Side::Write)?;
        Ok(OwnedRwLockWriteGuard::new(self))
    }

    /// [`read`](RwLock::read) for threads: blocks the calling one.
    ///
    /// # Panics
    /// In a coroutine, whose vCPU it would stop.
    #[track_caller]
    pub fn blocking_read(&self) -> RwLockReadGuard<'_, T> {
        park::block_on(self.read())
    }

    /// [`write`](RwLock::write) for threads: blocks the calling one.
    ///
    /// # Panics
    /// In a coroutine, whose vCPU it would stop.
    #[track_caller]
    pub fn blocking_write(&self) -> RwLockWriteGuard<'_, T> {
        park::block_on(self.write())
    }

    /// The value: exclusive access to the lock needs no locking.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
}

impl<T: Default> Default for RwLock<T> {
    fn default() -> RwLock<T> {
        RwLock::new(T::default())
    }
}

impl<T> From<T> for RwLock<T> {
    fn from(value: T) -> RwLock<T> {
        RwLock::new(value)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.try_read() {
            Ok(value) => f.debug_struct("RwLock").field("data", &&*value).finish(),
            Err(_) => {
                let locked = format_args!("<locked>");
                f.debug_struct("RwLock").field("data", &locked).finish()
            }
        }
    }
}
