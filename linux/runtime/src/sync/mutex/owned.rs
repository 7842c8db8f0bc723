//! A guard that keeps its [`Mutex`] alive.

use std::fmt;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::super::park;
use super::{Mutex, MutexGuard, TryLockError};

/// [`MutexGuard`] that keeps its [`Mutex`] alive, and can be moved into another coroutine. Until it
/// is dropped, waiters lend to the coroutine that locked the mutex, wherever the guard is.
///
/// ```
/// use std::sync::Arc;
/// use upshift::sync::Mutex;
///
/// let mutex = Arc::new(Mutex::new(0));
/// let mut guard = mutex.clone().try_lock_owned().unwrap();
/// std::thread::spawn(move || *guard += 1).join().unwrap();
/// assert_eq!(*mutex.blocking_lock(), 1);
/// ```
#[must_use = "the mutex is given back when the guard is dropped"]
pub struct OwnedMutexGuard<T: ?Sized> {
    mutex: Arc<Mutex<T>>,
}

// SAFETY: a shared guard gives shared access to the value, which `T: Sync` allows.
unsafe impl<T: ?Sized + Send + Sync> Sync for OwnedMutexGuard<T> {}

impl<T: ?Sized> OwnedMutexGuard<T> {
    /// Returns the mutex of a guard.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use upshift::sync::{Mutex, OwnedMutexGuard};
    ///
    /// let mutex = Arc::new(Mutex::new(1));
    /// let guard = mutex.clone().try_lock_owned()?;
    /// assert!(Arc::ptr_eq(OwnedMutexGuard::mutex(&guard), &mutex));
    /// # Ok::<(), upshift::sync::TryLockError>(())
    /// ```
    pub fn mutex(this: &Self) -> &Arc<Mutex<T>> {
        &this.mutex
    }
}

impl<T: ?Sized> Mutex<T> {
    /// [`lock`](Mutex::lock) with a guard that can be moved into another coroutine.
    ///
    /// # Cancellation safety
    /// Like that of [`lock`](Mutex::lock).
    ///
    /// ```
    /// use std::sync::Arc;
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let mutex = Arc::new(upshift::sync::Mutex::new(1));
    /// let mut guard = mutex.clone().lock_owned().await;
    /// upshift::spawn(async move { *guard += 1 }, upshift::Priority::Inherit).await.unwrap();
    /// assert_eq!(*mutex.lock().await, 2);
    /// # });
    /// ```
    pub async fn lock_owned(self: Arc<Self>) -> OwnedMutexGuard<T> {
        mem::forget(self.lock().await);
        OwnedMutexGuard { mutex: self }
    }

    /// [`try_lock`](Mutex::try_lock) with a guard that can be moved into another coroutine.
    ///
    /// # Errors
    /// [`TryLockError`] if the mutex is locked.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use upshift::sync::Mutex;
    ///
    /// let mutex = Arc::new(Mutex::new(0));
    /// let guard = mutex.clone().try_lock_owned()?;
    /// assert!(mutex.clone().try_lock_owned().is_err());
    /// drop(guard);
    /// assert!(mutex.try_lock_owned().is_ok());
    /// # Ok::<(), upshift::sync::TryLockError>(())
    /// ```
    pub fn try_lock_owned(self: Arc<Self>) -> Result<OwnedMutexGuard<T>, TryLockError> {
        mem::forget(self.try_lock()?);
        Ok(OwnedMutexGuard { mutex: self })
    }

    /// [`lock`](Mutex::lock) for threads: blocks the calling thread.
    ///
    /// # Panics
    /// When called in a coroutine, whose vCPU it would stop.
    ///
    /// ```
    /// use upshift::sync::Mutex;
    ///
    /// let total = Mutex::new(0);
    /// std::thread::scope(|scope| {
    ///     for n in 1..=3 {
    ///         let total = &total;
    ///         scope.spawn(move || *total.blocking_lock() += n);
    ///     }
    /// });
    /// assert_eq!(total.into_inner(), 6);
    /// ```
    #[track_caller]
    pub fn blocking_lock(&self) -> MutexGuard<'_, T> {
        park::block_on(self.lock())
    }

    /// [`lock_owned`](Mutex::lock_owned) for threads: blocks the calling thread.
    ///
    /// # Panics
    /// When called in a coroutine, whose vCPU it would stop.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use upshift::sync::Mutex;
    ///
    /// let mutex = Arc::new(Mutex::new(1));
    /// let mut guard = mutex.clone().blocking_lock_owned();
    /// *guard += 1;
    /// drop(guard);
    /// assert_eq!(*mutex.blocking_lock(), 2);
    /// ```
    #[track_caller]
    pub fn blocking_lock_owned(self: Arc<Self>) -> OwnedMutexGuard<T> {
        park::block_on(self.lock_owned())
    }
}

impl<T: ?Sized> Deref for OwnedMutexGuard<T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: there is one guard at a time, so no exclusive reference to the value exists
        // elsewhere.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T: ?Sized> DerefMut for OwnedMutexGuard<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: there is one guard at a time, and it is borrowed exclusively, so no other
        // reference to the value exists.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T: ?Sized> Drop for OwnedMutexGuard<T> {
    fn drop(&mut self) {
        self.mutex.unlock();
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for OwnedMutexGuard<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Display> fmt::Display for OwnedMutexGuard<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
