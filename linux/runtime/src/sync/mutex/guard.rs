//! The right to the value of a [`Mutex`], and the error of not getting it at once.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use super::super::says::says;
use super::Mutex;

/// The right to the value of a [`Mutex`]; gives it back when dropped.
#[must_use = "the mutex is given back when the guard is dropped"]
pub struct MutexGuard<'a, T: ?Sized> {
    mutex: &'a Mutex<T>,
    /// `Send` and `Sync` as an exclusive reference is.
    exclusive: PhantomData<&'a mut T>,
}

impl<'a, T: ?Sized> MutexGuard<'a, T> {
    /// The mutex.
    pub fn mutex(this: &Self) -> &'a Mutex<T> {
        this.mutex
    }

    /// The caller has made the word its own.
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
        // SAFETY: there is one guard at a time.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: there is one guard at a time, and it is borrowed exclusively.
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

/// The mutex is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TryLockError(());

impl TryLockError {
    pub(in crate::sync) fn new() -> TryLockError {
        TryLockError(())
    }
}

says!([] TryLockError {
    TryLockError(()) => "the mutex is held: try again later, or wait with `lock().await`",
});
