//! The guard of a [`Mutex`], and the error of `try_lock`.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use super::super::error_text::error_text;
use super::Mutex;

/// Exclusive access to the value of a [`Mutex`]; unlocks it when dropped.
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let mutex = upshift::sync::Mutex::new(String::new());
/// let mut guard = mutex.lock().await;
/// guard.push_str("mine until the guard is dropped");
/// drop(guard);
/// assert!(mutex.try_lock().is_ok());
/// # });
/// ```
#[must_use = "the mutex is given back when the guard is dropped"]
pub struct MutexGuard<'a, T: ?Sized> {
    mutex: &'a Mutex<T>,
    /// Makes the guard `Send` and `Sync` if an exclusive reference is.
    exclusive: PhantomData<&'a mut T>,
}

impl<'a, T: ?Sized> MutexGuard<'a, T> {
    /// Returns the mutex of a guard. Not a method, so that it does not hide a method of the value.
    ///
    /// ```
    /// use upshift::sync::{Mutex, MutexGuard};
    ///
    /// let mutex = Mutex::new(1);
    /// let guard = mutex.try_lock()?;
    /// assert!(MutexGuard::mutex(&guard).try_lock().is_err());
    /// # Ok::<(), upshift::sync::TryLockError>(())
    /// ```
    pub fn mutex(this: &Self) -> &'a Mutex<T> {
        this.mutex
    }

    /// Creates the guard. The caller has locked the mutex.
    #[inline]
    pub(super) fn new(mutex: &'a Mutex<T>) -> MutexGuard<'a, T> {
        MutexGuard {
            mutex,
            exclusive: PhantomData,
        }
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: there is one guard at a time, so no exclusive reference to the value exists
        // elsewhere.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: there is one guard at a time, and it is borrowed exclusively, so no other
        // reference to the value exists.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.mutex.unlock();
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Display> fmt::Display for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// The error of [`Mutex::try_lock`], and of the `try_` methods of
/// [`RwLock`](super::super::RwLock): the caller would have to wait.
///
/// ```
/// use upshift::sync::{Mutex, TryLockError};
///
/// fn increment(mutex: &Mutex<u32>) -> Result<u32, TryLockError> {
///     let mut count = mutex.try_lock()?;
///     *count += 1;
///     Ok(*count)
/// }
/// let mutex = Mutex::new(1);
/// assert_eq!(increment(&mutex), Ok(2));
/// let _guard = mutex.try_lock()?;
/// assert!(increment(&mutex).is_err());
/// # Ok::<(), TryLockError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TryLockError(());

impl TryLockError {
    pub(in crate::sync) fn new() -> TryLockError {
        TryLockError(())
    }
}

error_text!([] TryLockError {
    TryLockError(()) => "the lock is held: try again later, or wait for it with an async call",
});
