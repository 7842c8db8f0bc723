//! A lock for one writer or several readers, which may be held across `await`.
//!
//! The lock has two parts: [`Raw`], the lock without a value, and the value. The guards unlock
//! `Raw`, so a guard of a part of the value need not know the whole.

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

/// A lock that gives shared access to several readers, or exclusive access to one writer.
///
/// * Waiters are served most urgent level first, first come first served within a level. A reader
///   does not overtake a waiting writer that is at least as urgent, so that writers do not starve.
/// * Waiters *lend their level* to the writer that holds the lock. Readers receive no level,
///   because the lock counts them but does not know their names.
/// * There is no poisoning. When a coroutine panics, the lock is released, and the next holder sees
///   the value as it was left.
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

// SAFETY: sending a lock sends its value, and `T: Send` allows that.
unsafe impl<T: ?Sized + Send> Send for RwLock<T> {}
// SAFETY: several threads read the value at a time, which `T: Sync` allows, or one thread writes
// it, which `T: Send` allows.
unsafe impl<T: ?Sized + Send + Sync> Sync for RwLock<T> {}
impl<T: ?Sized> std::panic::UnwindSafe for RwLock<T> {}
impl<T: ?Sized> std::panic::RefUnwindSafe for RwLock<T> {}

/// Largest number of readers at a time.
const MAX_READERS: u32 = u32::MAX >> 3;

impl<T> RwLock<T> {
    const_fn! {
        /// Creates an unlocked lock, for up to `u32::MAX / 8` readers at a time.
        ///
        /// ```
        /// use upshift::sync::RwLock;
        ///
        /// static ROUTES: RwLock<Vec<String>> = RwLock::const_new(Vec::new());
        /// ```
        #[must_use]
        pub const fn const_new(value: T) -> RwLock<T> {
            RwLock { raw: Raw::new(MAX_READERS), value: UnsafeCell::new(value) }
        }
    }

    const_fn! {
        /// Creates an unlocked lock, for at most `readers` readers at a time.
        ///
        /// # Panics
        /// If `readers` is 0 or above `u32::MAX / 8`.
        #[must_use]
        #[track_caller]
        pub const fn const_with_max_readers(value: T, readers: u32) -> RwLock<T> {
            assert!(readers > 0, "a RwLock may not be created with 0 readers");
            assert!(readers <= MAX_READERS, "an RwLock admits at most u32::MAX / 8 readers");
            RwLock { raw: Raw::new(readers), value: UnsafeCell::new(value) }
        }
    }

    /// Creates an unlocked lock, for up to `u32::MAX / 8` readers at a time.
    ///
    /// ```
    /// use upshift::sync::RwLock;
    ///
    /// let lock = RwLock::new(5);
    /// assert_eq!(lock.into_inner(), 5);
    /// ```
    #[must_use]
    pub fn new(value: T) -> RwLock<T> {
        RwLock::const_new(value)
    }

    /// Creates an unlocked lock, for at most `readers` readers at a time.
    ///
    /// # Panics
    /// If `readers` is 0 or above `u32::MAX / 8`.
    ///
    /// ```
    /// let lock = upshift::sync::RwLock::with_max_readers(5, 1);
    /// let only = lock.try_read()?;
    /// assert!(lock.try_read().is_err());
    /// # drop(only);
    /// # Ok::<(), upshift::sync::TryLockError>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn with_max_readers(value: T, readers: u32) -> RwLock<T> {
        RwLock::const_with_max_readers(value, readers)
    }

    /// Consumes the lock and returns the value.
    ///
    /// ```
    /// assert_eq!(upshift::sync::RwLock::new(3).into_inner(), 3);
    /// ```
    #[must_use]
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Locks for reading: waits until no writer holds the lock or waits ahead of the caller.
    ///
    /// Do not wait for a second read lock while holding the first: if a writer queues in between,
    /// the writer waits for the first lock and the second lock waits for the writer (deadlock).
    ///
    /// # Cancellation safety
    /// The future may be dropped at any time. It then leaves the queue, and a lock that it had been
    /// handed goes to the next waiters.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let lock = upshift::sync::RwLock::new(1);
    /// let reader = lock.read().await;
    /// assert_eq!(*reader, 1);
    /// assert!(lock.try_read().is_ok());
    /// assert!(lock.try_write().is_err());
    /// # });
    /// ```
    pub async fn read(&self) -> RwLockReadGuard<'_, T> {
        self.raw.enter(Side::Read).await;
        RwLockReadGuard::new(self)
    }

    /// Locks for writing: waits until the lock is free.
    ///
    /// # Cancellation safety
    /// The future may be dropped at any time. It then leaves the queue, and a lock that it had been
    /// handed goes to the next waiters.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let lock = upshift::sync::RwLock::new(1);
    /// *lock.write().await += 1;
    /// assert_eq!(*lock.read().await, 2);
    /// # });
    /// ```
    pub async fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.raw.enter(Side::Write).await;
        RwLockWriteGuard::new(self)
    }

    /// [`read`](RwLock::read) with a guard that can be moved into another coroutine.
    ///
    /// # Cancellation safety
    /// Like that of [`read`](RwLock::read).
    ///
    /// ```
    /// use std::sync::Arc;
    /// use upshift::{Priority, sync::RwLock};
    ///
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let lock = Arc::new(RwLock::new(1));
    /// let reader = lock.clone().read_owned().await;
    /// let other = upshift::spawn(async move { *reader + 1 }, Priority::Inherit);
    /// assert_eq!(other.await.unwrap(), 2);
    /// # });
    /// ```
    pub async fn read_owned(self: Arc<Self>) -> OwnedRwLockReadGuard<T>
    where
        T: Sized,
    {
        self.raw.enter(Side::Read).await;
        OwnedRwLockReadGuard::new(self)
    }

    /// [`write`](RwLock::write) with a guard that can be moved into another coroutine.
    ///
    /// # Cancellation safety
    /// Like that of [`write`](RwLock::write).
    ///
    /// ```
    /// use std::sync::Arc;
    /// use upshift::{Priority, sync::RwLock};
    ///
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let lock = Arc::new(RwLock::new(1));
    /// let mut writer = lock.clone().write_owned().await;
    /// upshift::spawn(async move { *writer += 1 }, Priority::Inherit).await.unwrap();
    /// assert_eq!(*lock.read().await, 2);
    /// # });
    /// ```
    pub async fn write_owned(self: Arc<Self>) -> OwnedRwLockWriteGuard<T>
    where
        T: Sized,
    {
        self.raw.enter(Side::Write).await;
        OwnedRwLockWriteGuard::new(self)
    }

    /// Locks for reading, if no writer holds the lock or waits ahead of the caller.
    ///
    /// # Errors
    /// [`TryLockError`] if the caller would have to wait.
    ///
    /// ```
    /// let lock = upshift::sync::RwLock::new(1);
    /// assert_eq!(*lock.try_read()?, 1);
    /// # Ok::<(), upshift::sync::TryLockError>(())
    /// ```
    pub fn try_read(&self) -> Result<RwLockReadGuard<'_, T>, TryLockError> {
        self.raw.try_enter(Side::Read)?;
        Ok(RwLockReadGuard::new(self))
    }

    /// Locks for writing, if the lock is free and no waiter goes ahead of the caller.
    ///
    /// # Errors
    /// [`TryLockError`] if the caller would have to wait.
    ///
    /// ```
    /// let lock = upshift::sync::RwLock::new(1);
    /// let reader = lock.try_read()?;
    /// assert!(lock.try_write().is_err());
    /// drop(reader);
    /// *lock.try_write()? += 1;
    /// # Ok::<(), upshift::sync::TryLockError>(())
    /// ```
    pub fn try_write(&self) -> Result<RwLockWriteGuard<'_, T>, TryLockError> {
        self.raw.try_enter(Side::Write)?;
        Ok(RwLockWriteGuard::new(self))
    }

    /// [`try_read`](RwLock::try_read) with a guard that can be moved into another coroutine.
    ///
    /// # Errors
    /// [`TryLockError`] if the caller would have to wait.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use upshift::sync::RwLock;
    ///
    /// let lock = Arc::new(RwLock::new(1));
    /// let reader = lock.clone().try_read_owned()?;
    /// assert_eq!(*reader, 1);
    /// assert!(lock.try_write_owned().is_err());
    /// # Ok::<(), upshift::sync::TryLockError>(())
    /// ```
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
    /// [`TryLockError`] if the caller would have to wait.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use upshift::sync::RwLock;
    ///
    /// let lock = Arc::new(RwLock::new(1));
    /// let mut writer = lock.clone().try_write_owned()?;
    /// std::thread::spawn(move || *writer += 1).join().unwrap();
    /// assert_eq!(*lock.try_read()?, 2);
    /// # Ok::<(), upshift::sync::TryLockError>(())
    /// ```
    pub fn try_write_owned(self: Arc<Self>) -> Result<OwnedRwLockWriteGuard<T>, TryLockError>
    where
        T: Sized,
    {
        self.raw.try_enter(Side::Write)?;
        Ok(OwnedRwLockWriteGuard::new(self))
    }

    /// [`read`](RwLock::read) for threads: blocks the calling thread.
    ///
    /// # Panics
    /// When called in a coroutine, whose vCPU it would stop.
    ///
    /// ```
    /// let lock = upshift::sync::RwLock::new(1);
    /// let (first, second) = (lock.blocking_read(), lock.blocking_read());
    /// assert_eq!(*first + *second, 2);
    /// ```
    #[track_caller]
    pub fn blocking_read(&self) -> RwLockReadGuard<'_, T> {
        park::block_on(self.read())
    }

    /// [`write`](RwLock::write) for threads: blocks the calling thread.
    ///
    /// # Panics
    /// When called in a coroutine, whose vCPU it would stop.
    ///
    /// ```
    /// let lock = upshift::sync::RwLock::new(1);
    /// *lock.blocking_write() += 1;
    /// assert_eq!(*lock.blocking_read(), 2);
    /// ```
    #[track_caller]
    pub fn blocking_write(&self) -> RwLockWriteGuard<'_, T> {
        park::block_on(self.write())
    }

    /// Returns the value without locking, because the caller has exclusive access to the lock.
    ///
    /// ```
    /// let mut lock = upshift::sync::RwLock::new(1);
    /// *lock.get_mut() += 1;
    /// assert_eq!(lock.into_inner(), 2);
    /// ```
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
