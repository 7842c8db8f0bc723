//! The rights to the value of an [`RwLock`], or to a part of it.
//!
//! A guard is the right to be inside ([`Inside`]), by a reference to the lock or as one of its
//! owners, and a pointer to the part of the value that it gives access to, which lives as long as
//! the lock. In guards that own, `T` is the value and `U` the part.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::Arc;

use super::RwLock;
use super::raw::{Raw, Side};

/// A way to a lock.
trait ToRaw {
    fn raw(&self) -> &Raw;
}

impl ToRaw for &Raw {
    fn raw(&self) -> &Raw {
        self
    }
}

impl<T> ToRaw for Arc<RwLock<T>> {
    fn raw(&self) -> &Raw {
        &self.raw
    }
}

/// The right to be inside, as a writer or as a reader. Given back when it is dropped.
struct Inside<L: ToRaw, const WRITES: bool>(L);

impl<L: ToRaw> Inside<L, true> {
    /// Makes the writer a reader.
    fn downgrade(self) -> Inside<L, false> {
        self.0.raw().downgrade();
        let this = ManuallyDrop::new(self);
        // SAFETY: read once, since the writer's right is not dropped.
        Inside(unsafe { ptr::read(&raw const this.0) })
    }
}

impl<L: ToRaw, const WRITES: bool> Drop for Inside<L, WRITES> {
    fn drop(&mut self) {
        let side = if WRITES { Side::Write } else { Side::Read };
        self.0.raw().leave(side);
    }
}

/// Implements shared access through the pointer of a guard.
macro_rules! gives_access {
    ([$($generics:tt)*] $guard:ty, $part:ty) => {
        impl<$($generics)*> Deref for $guard {
            type Target = $part;
            fn deref(&self) -> &$part {
                // SAFETY: all guards give shared access, or there is one; the lock outlives it.
                unsafe { &*self.value }
            }
        }
        shows!([$($generics)*] $guard, $part);
    };
}

/// Implements exclusive access through the pointer of a guard of a writer.
macro_rules! gives_exclusive_access {
    ([$($generics:tt)*] $guard:ty, $part:ty) => {
        gives_access!([$($generics)*] $guard, $part);
        impl<$($generics)*> DerefMut for $guard {
            fn deref_mut(&mut self) -> &mut $part {
                // SAFETY: it is the only guard, is borrowed exclusively, and the lock outlives it.
                unsafe { &mut *self.value }
            }
        }
    };
}

/// Implements access through the guard of a part, which is the whole.
macro_rules! is_of_the_whole {
    ([$($generics:tt)*] $guard:ty, $part:ty) => {
        impl<$($generics)*> Deref for $guard {
            type Target = $part;
            fn deref(&self) -> &$part {
                &self.0
            }
        }
        impl<$($generics)*> DerefMut for $guard {
            fn deref_mut(&mut self) -> &mut $part {
                &mut self.0
            }
        }
        shows!([$($generics)*] $guard, $part);
    };
}

/// Formats a guard as the value that it gives access to.
macro_rules! shows {
    ([$($generics:tt)*] $guard:ty, $part:ty) => {
        impl<$($generics)*> fmt::Debug for $guard where $part: fmt::Debug {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                (**self).fmt(f)
            }
        }
        impl<$($generics)*> fmt::Display for $guard where $part: fmt::Display {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                (**self).fmt(f)
            }
        }
    };
}

/// Shared access to the value of an [`RwLock`], or to a part of it.
#[must_use = "the lock is given back when the guard is dropped"]
pub struct RwLockReadGuard<'a, T: ?Sized> {
    inside: Inside<&'a Raw, false>,
    value: *const T,
    access: PhantomData<&'a T>,
}

impl<'a, T: ?Sized> RwLockReadGuard<'a, T> {
    /// The caller is inside.
    pub(super) fn new(lock: &'a RwLock<T>) -> RwLockReadGuard<'a, T> {
        RwLockReadGuard {
            inside: Inside(&lock.raw),
            value: lock.value.get(),
            access: PhantomData,
        }
    }

    /// Returns a guard of a part of the value only.
    pub fn map<U: ?Sized>(this: Self, part: impl FnOnce(&T) -> &U) -> RwLockReadGuard<'a, U> {
        let value: *const U = part(&*this);
        RwLockReadGuard {
            inside: this.inside,
            value,
            access: PhantomData,
        }
    }

    /// Returns a guard of a part of the value only, if there is one.
    ///
    /// # Errors
    /// The guard of the whole, if there is not.
    pub fn try_map<U: ?Sized>(
        this: Self,
        part: impl FnOnce(&T) -> Option<&U>,
    ) -> Result<RwLockReadGuard<'a, U>, Self> {
        match part(&*this).map(|part| part as *const U) {
            Some(value) => Ok(RwLockReadGuard {
                inside: this.inside,
                value,
                access: PhantomData,
            }),
            None => Err(this),
        }
    }
}

gives_access!([T: ?Sized] RwLockReadGuard<'_, T>, T);

// SAFETY: as a shared reference; what waits may be let in from any thread.
unsafe impl<T: ?Sized + Sync> Send for RwLockReadGuard<'_, T> {}
// SAFETY: through a shared guard there is shared access only.
unsafe impl<T: ?Sized + Send + Sync> Sync for RwLockReadGuard<'_, T> {}

/// Exclusive access to a part of the value of an [`RwLock`].
#[must_use = "the lock is given back when the guard is dropped"]
pub struct RwLockMappedWriteGuard<'a, T: ?Sized> {
    inside: Inside<&'a Raw, true>,
    value: *mut T,
    access: PhantomData<&'a mut T>,
}

impl<'a, T: ?Sized> RwLockMappedWriteGuard<'a, T> {
    /// Returns a guard of a part of the value only.
    pub fn map<U: ?Sized>(
        mut this: Self,
        part: impl FnOnce(&mut T) -> &mut U,
    ) -> RwLockMappedWriteGuard<'a, U> {
        let value: *mut U = part(&mut *this);
        RwLockMappedWriteGuard {
            inside: this.inside,
            value,
            access: PhantomData,
        }
    }

    /// Returns a guard of a part of the value only, if there is one.
    ///
    /// # Errors
    /// The guard of the whole, if there is not.
    pub fn try_map<U: ?Sized>(
        mut this: Self,
        part: impl FnOnce(&mut T) -> Option<&mut U>,
    ) -> Result<RwLockMappedWriteGuard<'a, U>, Self> {
        match part(&mut *this).map(|part| part as *mut U) {
            Some(value) => Ok(RwLockMappedWriteGuard {
                inside: this.inside,
                value,
                access: PhantomData,
            }),
            None => Err(this),
        }
    }
}

gives_exclusive_access!([T: ?Sized] RwLockMappedWriteGuard<'_, T>, T);

// SAFETY: as an exclusive reference; waiters may be let in from any thread.
unsafe impl<T: ?Sized + Send + Sync> Send for RwLockMappedWriteGuard<'_, T> {}
// SAFETY: through a shared guard there is shared access only.
unsafe impl<T: ?Sized + Send + Sync> Sync for RwLockMappedWriteGuard<'_, T> {}

/// Exclusive access to the value of an [`RwLock`].
#[must_use = "the lock is given back when the guard is dropped"]
pub struct RwLockWriteGuard<'a, T: ?Sized>(RwLockMappedWriteGuard<'a, T>);

impl<'a, T: ?Sized> RwLockWriteGuard<'a, T> {
    /// The caller is inside.
    pub(super) fn new(lock: &'a RwLock<T>) -> RwLockWriteGuard<'a, T> {
        RwLockWriteGuard(RwLockMappedWriteGuard {
            inside: Inside(&lock.raw),
            value: lock.value.get(),
            access: PhantomData,
        })
    }

    /// Returns a guard of a part of the value only.
    pub fn map<U: ?Sized>(
        this: Self,
        part: impl FnOnce(&mut T) -> &mut U,
    ) -> RwLockMappedWriteGuard<'a, U> {
        RwLockMappedWriteGuard::map(this.0, part)
    }

    /// Returns a guard of a part of the value only, if there is one.
    ///
    /// # Errors
    /// The guard of the whole, if there is not.
    pub fn try_map<U: ?Sized>(
        this: Self,
        part: impl FnOnce(&mut T) -> Option<&mut U>,
    ) -> Result<RwLockMappedWriteGuard<'a, U>, Self> {
        RwLockMappedWriteGuard::try_map(this.0, part).map_err(RwLockWriteGuard)
    }

    /// Returns a guard of the whole value as one of a part.
    pub fn into_mapped(this: Self) -> RwLockMappedWriteGuard<'a, T> {
        this.0
    }

    /// Makes the writer a reader: no other writer comes between.
    pub fn downgrade(self) -> RwLockReadGuard<'a, T> {
        RwLockWriteGuard::downgrade_map(self, |value| value)
    }

    /// Makes the writer a reader of a part of the value only.
    pub fn downgrade_map<U: ?Sized>(
        this: Self,
        part: impl FnOnce(&T) -> &U,
    ) -> RwLockReadGuard<'a, U> {
        let value: *const U = part(&this);
        RwLockReadGuard {
            inside: this.0.inside.downgrade(),
            value,
            access: PhantomData,
        }
    }

    /// Makes the writer a reader of a part of the value only, if there is one.
    ///
    /// # Errors
    /// The writer's guard, if there is not.
    pub fn try_downgrade_map<U: ?Sized>(
        this: Self,
        part: impl FnOnce(&T) -> Option<&U>,
    ) -> Result<RwLockReadGuard<'a, U>, Self> {
        match part(&this).map(|part| part as *const U) {
            Some(value) => Ok(RwLockReadGuard {
                inside: this.0.inside.downgrade(),
                value,
                access: PhantomData,
            }),
            None => Err(this),
        }
    }
}

is_of_the_whole!([T: ?Sized] RwLockWriteGuard<'_, T>, T);

/// [`RwLockReadGuard`] that keeps its [`RwLock`] alive.
#[must_use = "the lock is given back when the guard is dropped"]
pub struct OwnedRwLockReadGuard<T, U: ?Sized = T> {
    inside: Inside<Arc<RwLock<T>>, false>,
    value: *const U,
    access: PhantomData<U>,
}

impl<T> OwnedRwLockReadGuard<T> {
    /// The caller is inside.
    pub(super) fn new(lock: Arc<RwLock<T>>) -> OwnedRwLockReadGuard<T> {
        let value = lock.value.get();
        OwnedRwLockReadGuard {
            inside: Inside(lock),
            value,
            access: PhantomData,
        }
    }
}

impl<T, U: ?Sized> OwnedRwLockReadGuard<T, U> {
    /// Returns a guard of a part of the value only.
    pub fn map<V: ?Sized>(this: Self, part: impl FnOnce(&U) -> &V) -> OwnedRwLockReadGuard<T, V> {
        let value: *const V = part(&*this);
        OwnedRwLockReadGuard {
            inside: this.inside,
            value,
            access: PhantomData,
        }
    }

    /// Returns a guard of a part of the value only, if there is one.
    ///
    /// # Errors
    /// The guard of the whole, if there is not.
    pub fn try_map<V: ?Sized>(
        this: Self,
        part: impl FnOnce(&U) -> Option<&V>,
    ) -> Result<OwnedRwLockReadGuard<T, V>, Self> {
        match part(&*this).map(|part| part as *const V) {
            Some(value) => Ok(OwnedRwLockReadGuard {
                inside: this.inside,
                value,
                access: PhantomData,
            }),
            None => Err(this),
        }
    }
}

gives_access!([T, U: ?Sized] OwnedRwLockReadGuard<T, U>, U);

// SAFETY: as a reference to the value beside an owner of the lock.
unsafe impl<T: Send + Sync, U: ?Sized + Sync> Send for OwnedRwLockReadGuard<T, U> {}
// SAFETY: through a shared guard there is shared access only.
unsafe impl<T: Send + Sync, U: ?Sized + Send + Sync> Sync for OwnedRwLockReadGuard<T, U> {}

/// Exclusive access to a part of the value of an [`RwLock`], which it keeps alive.
#[must_use = "the lock is given back when the guard is dropped"]
pub struct OwnedRwLockMappedWriteGuard<T, U: ?Sized = T> {
    inside: Inside<Arc<RwLock<T>>, true>,
    value: *mut U,
    access: PhantomData<U>,
}

impl<T, U: ?Sized> OwnedRwLockMappedWriteGuard<T, U> {
    /// Returns a guard of a part of the value only.
    pub fn map<V: ?Sized>(
        mut this: Self,
        part: impl FnOnce(&mut U) -> &mut V,
    ) -> OwnedRwLockMappedWriteGuard<T, V> {
        let value: *mut V = part(&mut *this);
        OwnedRwLockMappedWriteGuard {
            inside: this.inside,
            value,
            access: PhantomData,
        }
    }

    /// Returns a guard of a part of the value only, if there is one.
    ///
    /// # Errors
    /// The guard of the whole, if there is not.
    pub fn try_map<V: ?Sized>(
        mut this: Self,
        part: impl FnOnce(&mut U) -> Option<&mut V>,
    ) -> Result<OwnedRwLockMappedWriteGuard<T, V>, Self> {
        match part(&mut *this).map(|part| part as *mut V) {
            Some(value) => Ok(OwnedRwLockMappedWriteGuard {
                inside: this.inside,
                value,
                access: PhantomData,
            }),
            None => Err(this),
        }
    }
}

gives_exclusive_access!([T, U: ?Sized] OwnedRwLockMappedWriteGuard<T, U>, U);

// SAFETY: as a reference to the value beside an owner of the lock.
unsafe impl<T: Send + Sync, U: ?Sized + Send + Sync> Send for OwnedRwLockMappedWriteGuard<T, U> {}
// SAFETY: through a shared guard there is shared access only.
unsafe impl<T: Send + Sync, U: ?Sized + Send + Sync> Sync for OwnedRwLockMappedWriteGuard<T, U> {}

/// [`RwLockWriteGuard`] that keeps its [`RwLock`] alive.
#[must_use = "the lock is given back when the guard is dropped"]
pub struct OwnedRwLockWriteGuard<T>(OwnedRwLockMappedWriteGuard<T>);

impl<T> OwnedRwLockWriteGuard<T> {
    /// The caller is inside.
    pub(super) fn new(lock: Arc<RwLock<T>>) -> OwnedRwLockWriteGuard<T> {
        let value = lock.value.get();
        OwnedRwLockWriteGuard(OwnedRwLockMappedWriteGuard {
            inside: Inside(lock),
            value,
            access: PhantomData,
        })
    }

    /// Returns a guard of a part of the value only.
    pub fn map<U: ?Sized>(
        this: Self,
        part: impl FnOnce(&mut T) -> &mut U,
    ) -> OwnedRwLockMappedWriteGuard<T, U> {
        OwnedRwLockMappedWriteGuard::map(this.0, part)
    }

    /// Returns a guard of a part of the value only, if there is one.
    ///
    /// # Errors
    /// The guard of the whole, if there is not.
    pub fn try_map<U: ?Sized>(
        this: Self,
        part: impl FnOnce(&mut T) -> Option<&mut U>,
    ) -> Result<OwnedRwLockMappedWriteGuard<T, U>, Self> {
        OwnedRwLockMappedWriteGuard::try_map(this.0, part).map_err(OwnedRwLockWriteGuard)
    }

    /// Makes the writer a reader: no other writer comes between.
    pub fn downgrade(self) -> OwnedRwLockReadGuard<T> {
        OwnedRwLockReadGuard {
            inside: self.0.inside.downgrade(),
            value: self.0.value,
            access: PhantomData,
        }
    }
}

is_of_the_whole!([T] OwnedRwLockWriteGuard<T>, T);
