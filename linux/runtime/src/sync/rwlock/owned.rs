//! Guards that keep their [`RwLock`] alive.
//!
//! `T` is what is locked, `U` the part of it that the guard gives access to.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::Arc;

use super::RwLock;
use super::raw::Side;

/// [`RwLockReadGuard`](super::RwLockReadGuard) that keeps its [`RwLock`] alive.
#[must_use = "the lock is given back when the guard is dropped"]
pub struct OwnedRwLockReadGuard<T, U: ?Sized = T> {
    lock: Arc<RwLock<T>>,
    value: *const U,
    access: PhantomData<U>,
}

impl<T> OwnedRwLockReadGuard<T> {
    /// The caller is inside.
    pub(super) fn new(lock: Arc<RwLock<T>>) -> OwnedRwLockReadGuard<T> {
        let value = lock.value.get();
        OwnedRwLockReadGuard {
            lock,
            value,
            access: PhantomData,
        }
    }
}

impl<T, U: ?Sized> OwnedRwLockReadGuard<T, U> {
    /// The right to be inside, without a guard.
    fn into_lock(self) -> Arc<RwLock<T>> {
        let this = ManuallyDrop::new(self);
        // SAFETY: read once, since the guard is not dropped.
        unsafe { ptr::read(&raw const this.lock) }
    }

    /// Of a part of the value only.
    pub fn map<V: ?Sized>(this: Self, part: impl FnOnce(&U) -> &V) -> OwnedRwLockReadGuard<T, V> {
        let value: *const V = part(&this);
        OwnedRwLockReadGuard {
            lock: this.into_lock(),
            value,
            access: PhantomData,
        }
    }

    /// Of a part of the value only, if there is one.
    ///
    /// # Errors
    /// The guard of the whole, if there is not.
    pub fn try_map<V: ?Sized>(
        this: Self,
        part: impl FnOnce(&U) -> Option<&V>,
    ) -> Result<OwnedRwLockReadGuard<T, V>, Self> {
        let Some(value) = part(&this) else {
            return Err(this);
        };
        let value: *const V = value;
        Ok(OwnedRwLockReadGuard {
            lock: this.into_lock(),
            value,
            access: PhantomData,
        })
    }
}

impl<T, U: ?Sized> Deref for OwnedRwLockReadGuard<T, U> {
    type Target = U;
    fn deref(&self) -> &U {
        // SAFETY: the guards there are give shared access, and keeps the lock.
        unsafe { &*self.value }
    }
}

impl<T, U: ?Sized + fmt::Debug> fmt::Debug for OwnedRwLockReadGuard<T, U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T, U: ?Sized + fmt::Display> fmt::Display for OwnedRwLockReadGuard<T, U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T, U: ?Sized> Drop for OwnedRwLockReadGuard<T, U> {
    fn drop(&mut self) {
        self.lock.raw.leave(Side::Read);
    }
}

// SAFETY: as a reference to the value beside an owner of the lock.
unsafe impl<T: Send + Sync, U: ?Sized + Sync> Send for OwnedRwLockReadGuard<T, U> {}
// SAFETY: through a shared guard there is shared access only.
unsafe impl<T: Send + Sync, U: ?Sized + Send + Sync> Sync for OwnedRwLockReadGuard<T, U> {}

/// [`RwLockWriteGuard`](super::RwLockWriteGuard) that keeps its [`RwLock`] alive.
#[must_use = "the lock is given back when the guard is dropped"]
pub struct OwnedRwLockWriteGuard<T>(OwnedRwLockMappedWriteGuard<T>);

impl<T> OwnedRwLockWriteGuard<T> {
    /// The caller is inside.
    pub(super) fn new(lock: Arc<RwLock<T>>) -> OwnedRwLockWriteGuard<T> {
        let value = lock.value.get();
        OwnedRwLockWriteGuard(OwnedRwLockMappedWriteGuard {
            lock,
            value,
            access: PhantomData,
        })
    }

    /// Of a part of the value only.
    pub fn map<U: ?Sized>(
        this: Self,
        part: impl FnOnce(&mut T) -> &mut U,
    ) -> OwnedRwLockMappedWriteGuard<T, U> {
        OwnedRwLockMappedWriteGuard::map(this.0, part)
    }

    /// Of a part of the value only, if there is one.
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
        let lock = self.0.into_lock();
        lock.raw.downgrade();
        OwnedRwLockReadGuard::new(lock)
    }
}

impl<T> Deref for OwnedRwLockWriteGuard<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for OwnedRwLockWriteGuard<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T: fmt::Debug> fmt::Debug for OwnedRwLockWriteGuard<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: fmt::Display> fmt::Display for OwnedRwLockWriteGuard<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// Exclusive access to a part of the value of an [`RwLock`], which it keeps alive.
#[must_use = "the lock is given back when the guard is dropped"]
pub struct OwnedRwLockMappedWriteGuard<T, U: ?Sized = T> {
    lock: Arc<RwLock<T>>,
    value: *mut U,
    access: PhantomData<U>,
}

impl<T, U: ?Sized> OwnedRwLockMappedWriteGuard<T, U> {
    /// The right to be inside, without a guard.
    fn into_lock(self) -> Arc<RwLock<T>> {
        let this = ManuallyDrop::new(self);
        // SAFETY: read once, since the guard is not dropped.
        unsafe { ptr::read(&raw const this.lock) }
    }

    /// Of a part of the value only.
    pub fn map<V: ?Sized>(
        mut this: Self,
        part: impl FnOnce(&mut U) -> &mut V,
    ) -> OwnedRwLockMappedWriteGuard<T, V> {
        let value: *mut V = part(&mut this);
        OwnedRwLockMappedWriteGuard {
            lock: this.into_lock(),
            value,
            access: PhantomData,
        }
    }

    /// Of a part of the value only, if there is one.
    ///
    /// # Errors
    /// The guard of the whole, if there is not.
    pub fn try_map<V: ?Sized>(
        mut this: Self,
        part: impl FnOnce(&mut U) -> Option<&mut V>,
    ) -> Result<OwnedRwLockMappedWriteGuard<T, V>, Self> {
        let Some(value) = part(&mut this) else {
            return Err(this);
        };
        let value: *mut V = value;
        Ok(OwnedRwLockMappedWriteGuard {
            lock: this.into_lock(),
            value,
            access: PhantomData,
        })
    }
}

impl<T, U: ?Sized> Deref for OwnedRwLockMappedWriteGuard<T, U> {
    type Target = U;
    fn deref(&self) -> &U {
        // SAFETY: it is the only guard, and keeps the lock.
        unsafe { &*self.value }
    }
}

impl<T, U: ?Sized> DerefMut for OwnedRwLockMappedWriteGuard<T, U> {
    fn deref_mut(&mut self) -> &mut U {
        // SAFETY: as above, and it is borrowed exclusively.
        unsafe { &mut *self.value }
    }
}

impl<T, U: ?Sized + fmt::Debug> fmt::Debug for OwnedRwLockMappedWriteGuard<T, U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T, U: ?Sized + fmt::Display> fmt::Display for OwnedRwLockMappedWriteGuard<T, U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T, U: ?Sized> Drop for OwnedRwLockMappedWriteGuard<T, U> {
    fn drop(&mut self) {
        self.lock.raw.leave(Side::Write);
    }
}

// SAFETY: as a reference to the value beside an owner of the lock.
unsafe impl<T: Send + Sync, U: ?Sized + Send + Sync> Send for OwnedRwLockMappedWriteGuard<T, U> {}
// SAFETY: through a shared guard there is shared access only.
unsafe impl<T: Send + Sync, U: ?Sized + Send + Sync> Sync for OwnedRwLockMappedWriteGuard<T, U> {}
