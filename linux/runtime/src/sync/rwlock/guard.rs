//! The rights to the value of an [`RwLock`], or to a part of it.
//!
//! A guard is the right to be inside and a pointer to what it gives access to, which lives as
//! long as the lock, which is borrowed.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};

use super::RwLock;
use super::raw::{Raw, Side};

/// Shared access to the value of an [`RwLock`], or to a part of it.
#[must_use = "the lock is given back when the guard is dropped"]
pub struct RwLockReadGuard<'a, T: ?Sized> {
    raw: &'a Raw,
    value: *const T,
    access: PhantomData<&'a T>,
}

impl<'a, T: ?Sized> RwLockReadGuard<'a, T> {
    /// The caller is inside.
    pub(super) fn new(lock: &'a RwLock<T>) -> RwLockReadGuard<'a, T> {
        RwLockReadGuard {
            raw: &lock.raw,
            value: lock.value.get(),
            access: PhantomData,
        }
    }

    /// Of a part of the value only.
    pub fn map<U: ?Sized>(this: Self, part: impl FnOnce(&T) -> &U) -> RwLockReadGuard<'a, U> {
        let value: *const U = part(&this);
        let this = ManuallyDrop::new(this);
        RwLockReadGuard {
            raw: this.raw,
            value,
            access: PhantomData,
        }
    }

    /// Of a part of the value only, if there is one.
    ///
    /// # Errors
    /// The guard of the whole, if there is not.
    pub fn try_map<U: ?Sized>(
        this: Self,
        part: impl FnOnce(&T) -> Option<&U>,
    ) -> Result<RwLockReadGuard<'a, U>, Self> {
        let Some(value) = part(&this) else {
            return Err(this);
        };
        let value: *const U = value;
        let this = ManuallyDrop::new(this);
        Ok(RwLockReadGuard {
            raw: this.raw,
            value,
            access: PhantomData,
        })
    }
}

impl<T: ?Sized> Deref for RwLockReadGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guards there are give shared access, and the lock outlives it.
        unsafe { &*self.value }
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLockReadGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Display> fmt::Display for RwLockReadGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized> Drop for RwLockReadGuard<'_, T> {
    fn drop(&mut self) {
        self.raw.leave(Side::Read);
    }
}

// SAFETY: as a shared reference; what waits may be let in from any thread.
unsafe impl<T: ?Sized + Sync> Send for RwLockReadGuard<'_, T> {}
// SAFETY: through a shared guard there is shared access only.
unsafe impl<T: ?Sized + Send + Sync> Sync for RwLockReadGuard<'_, T> {}

/// What a guard with exclusive access is besides: a pointer that gives the lock back when it is dropped.
macro_rules! exclusive {
    ($guard:ident) => {
        impl<T: ?Sized> Deref for $guard<'_, T> {
            type Target = T;
            fn deref(&self) -> &T {
                // SAFETY: it is the only guard, and the lock outlives it.
                unsafe { &*self.value }
            }
        }

        impl<T: ?Sized> DerefMut for $guard<'_, T> {
            fn deref_mut(&mut self) -> &mut T {
                // SAFETY: as above, and it is borrowed exclusively.
                unsafe { &mut *self.value }
            }
        }

        impl<T: ?Sized + fmt::Debug> fmt::Debug for $guard<'_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                (**self).fmt(f)
            }
        }

        impl<T: ?Sized + fmt::Display> fmt::Display for $guard<'_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                (**self).fmt(f)
            }
        }

        impl<T: ?Sized> Drop for $guard<'_, T> {
            fn drop(&mut self) {
                self.raw.leave(Side::Write);
            }
        }

        // SAFETY: as an exclusive reference; what waits may be let in from any thread.
        unsafe impl<T: ?Sized + Send + Sync> Send for $guard<'_, T> {}
        // SAFETY: through a shared guard there is shared access only.
        unsafe impl<T: ?Sized + Send + Sync> Sync for $guard<'_, T> {}
    };
}

/// Exclusive access to the value of an [`RwLock`].
#[must_use = "the lock is given back when the guard is dropped"]
pub struct RwLockWriteGuard<'a, T: ?Sized> {
    raw: &'a Raw,
    value: *mut T,
    access: PhantomData<&'a mut T>,
}

impl<'a, T: ?Sized> RwLockWriteGuard<'a, T> {
    /// The caller is inside.
    pub(super) fn new(lock: &'a RwLock<T>) -> RwLockWriteGuard<'a, T> {
        RwLockWriteGuard {
            raw: &lock.raw,
            value: lock.value.get(),
            access: PhantomData,
        }
    }

    /// Of a part of the value only.
    pub fn map<U: ?Sized>(
        this: Self,
        part: impl FnOnce(&mut T) -> &mut U,
    ) -> RwLockMappedWriteGuard<'a, U> {
        RwLockMappedWriteGuard::map(RwLockWriteGuard::into_mapped(this), part)
    }

    /// Of a part of the value only, if there is one.
    ///
    /// # Errors
    /// The guard of the whole, if there is not.
    pub fn try_map<U: ?Sized>(
        this: Self,
        part: impl FnOnce(&mut T) -> Option<&mut U>,
    ) -> Result<RwLockMappedWriteGuard<'a, U>, Self> {
        let whole = RwLockWriteGuard::into_mapped(this);
        RwLockMappedWriteGuard::try_map(whole, part).map_err(|whole| {
            let whole = ManuallyDrop::new(whole);
            RwLockWriteGuard {
                raw: whole.raw,
                value: whole.value,
                access: PhantomData,
            }
        })
    }

    /// Of the whole value, as a guard of a part.
    pub fn into_mapped(this: Self) -> RwLockMappedWriteGuard<'a, T> {
        let this = ManuallyDrop::new(this);
        RwLockMappedWriteGuard {
            raw: this.raw,
            value: this.value,
            access: PhantomData,
        }
    }

    /// Makes the writer a reader: no other writer comes between.
    pub fn downgrade(self) -> RwLockReadGuard<'a, T> {
        RwLockWriteGuard::downgrade_map(self, |value| value)
    }

    /// The same, of a part of the value only.
    pub fn downgrade_map<U: ?Sized>(
        this: Self,
        part: impl FnOnce(&T) -> &U,
    ) -> RwLockReadGuard<'a, U> {
        let value: *const U = part(&this);
        let this = ManuallyDrop::new(this);
        this.raw.downgrade();
        RwLockReadGuard {
            raw: this.raw,
            value,
            access: PhantomData,
        }
    }

    /// The same, if there is such a part.
    ///
    /// # Errors
    /// The writer's guard, if there is not.
    pub fn try_downgrade_map<U: ?Sized>(
        this: Self,
        part: impl FnOnce(&T) -> Option<&U>,
    ) -> Result<RwLockReadGuard<'a, U>, Self> {
        let Some(value) = part(&this) else {
            return Err(this);
        };
        let value: *const U = value;
        let this = ManuallyDrop::new(this);
        this.raw.downgrade();
        Ok(RwLockReadGuard {
            raw: this.raw,
            value,
            access: PhantomData,
        })
    }
}

exclusive!(RwLockWriteGuard);

/// Exclusive access to a part of the value of an [`RwLock`].
#[must_use = "the lock is given back when the guard is dropped"]
pub struct RwLockMappedWriteGuard<'a, T: ?Sized> {
    raw: &'a Raw,
    value: *mut T,
    access: PhantomData<&'a mut T>,
}

impl<'a, T: ?Sized> RwLockMappedWriteGuard<'a, T> {
    /// Of a part of the value only.
    pub fn map<U: ?Sized>(
        mut this: Self,
        part: impl FnOnce(&mut T) -> &mut U,
    ) -> RwLockMappedWriteGuard<'a, U> {
        let value: *mut U = part(&mut this);
        let this = ManuallyDrop::new(this);
        RwLockMappedWriteGuard {
            raw: this.raw,
            value,
            access: PhantomData,
        }
    }

    /// Of a part of the value only, if there is one.
    ///
    /// # Errors
    /// The guard of the whole, if there is not.
    pub fn try_map<U: ?Sized>(
        mut this: Self,
        part: impl FnOnce(&mut T) -> Option<&mut U>,
    ) -> Result<RwLockMappedWriteGuard<'a, U>, Self> {
        let Some(value) = part(&mut this) else {
            return Err(this);
        };
        let value: *mut U = value;
        let this = ManuallyDrop::new(this);
        Ok(RwLockMappedWriteGuard {
            raw: this.raw,
            value,
            access: PhantomData,
        })
    }
}

exclusive!(RwLockMappedWriteGuard);
