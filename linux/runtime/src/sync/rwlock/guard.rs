//! Guards of the value of an [`RwLock`], or of a part of it.
//!
//! A guard contains the held lock ([`Held`]), as a reference or as an `Arc`, and a pointer to the
//! part of the value that the guard gives access to. The part lives as long as the lock. In owned
//! guards, `T` is the value and `U` the part.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::Arc;

use super::RwLock;
use super::raw::{Raw, Side};

/// A reference to a lock, which leads to the lock's [`Raw`].
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

/// The lock, held for writing or for reading; released when dropped.
struct Held<L: ToRaw, const WRITES: bool>(L);

impl<L: ToRaw> Held<L, true> {
    /// Turns the write lock into a read lock.
    fn downgrade(self) -> Held<L, false> {
        self.0.raw().downgrade();
        let this = ManuallyDrop::new(self);
        // SAFETY: the reference is moved out once, because `this`, the write lock, is never
        // dropped.
        Held(unsafe { ptr::read(&raw const this.0) })
    }
}

impl<L: ToRaw, const WRITES: bool> Drop for Held<L, WRITES> {
    fn drop(&mut self) {
        let side = if WRITES { Side::Write } else { Side::Read };
        self.0.raw().leave(side);
    }
}

macro_rules! impl_deref {
    ([$($generics:tt)*] $guard:ty, $part:ty) => {
        impl<$($generics)*> Deref for $guard {
            type Target = $part;
            fn deref(&self) -> &$part {
                // SAFETY: the guards of readers give shared access only, and a writer has one
                // guard. The guard keeps the lock locked, and the lock owns the value.
                unsafe { &*self.value }
            }
        }
        impl_fmt!([$($generics)*] $guard, $part);
    };
}

macro_rules! impl_deref_mut {
    ([$($generics:tt)*] $guard:ty, $part:ty) => {
        impl_deref!([$($generics)*] $guard, $part);
        impl<$($generics)*> DerefMut for $guard {
            fn deref_mut(&mut self) -> &mut $part {
                // SAFETY: a writer has one guard, which is borrowed exclusively. The guard keeps
                // the lock locked, and the lock owns the value.
                unsafe { &mut *self.value }
            }
        }
    };
}

/// Implements access for the guard of the whole, which wraps the guard of a part.
macro_rules! impl_deref_inner {
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
        impl_fmt!([$($generics)*] $guard, $part);
    };
}

macro_rules! impl_fmt {
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

/// Shared access to the value of an [`RwLock`], or to a part of it; unlocks when dropped.
///
/// ```
/// let lock = upshift::sync::RwLock::new(1);
/// let (first, second) = (lock.try_read()?, lock.try_read()?);
/// assert_eq!(*first + *second, 2);
/// assert!(lock.try_write().is_err());
/// drop((first, second));
/// assert!(lock.try_write().is_ok());
/// # Ok::<(), upshift::sync::TryLockError>(())
/// ```
#[must_use = "the lock is given back when the guard is dropped"]
pub struct RwLockReadGuard<'a, T: ?Sized> {
    held: Held<&'a Raw, false>,
    value: *const T,
    access: PhantomData<&'a T>,
}

impl<'a, T: ?Sized> RwLockReadGuard<'a, T> {
    /// Creates the guard. The caller holds the lock for reading.
    pub(super) fn new(lock: &'a RwLock<T>) -> RwLockReadGuard<'a, T> {
        RwLockReadGuard {
            held: Held(&lock.raw),
            value: lock.value.get(),
            access: PhantomData,
        }
    }

    /// Narrows the guard to a part of the value.
    ///
    /// ```
    /// use upshift::sync::{RwLock, RwLockReadGuard};
    ///
    /// let lock = RwLock::new((1, "one"));
    /// let name = RwLockReadGuard::map(lock.try_read()?, |pair| &pair.1);
    /// assert_eq!(*name, "one");
    /// # Ok::<(), upshift::sync::TryLockError>(())
    /// ```
    pub fn map<U: ?Sized>(this: Self, part: impl FnOnce(&T) -> &U) -> RwLockReadGuard<'a, U> {
        let value: *const U = part(&*this);
        RwLockReadGuard {
            held: this.held,
            value,
            access: PhantomData,
        }
    }

    /// Narrows the guard to a part of the value, if `part` returns one.
    ///
    /// # Errors
    /// The guard as it was, if `part` returns `None`.
    ///
    /// ```
    /// use upshift::sync::{RwLock, RwLockReadGuard};
    ///
    /// let lock = RwLock::new(vec![1, 2]);
    /// let list = lock.try_read()?;
    /// let list = RwLockReadGuard::try_map(list, |list| list.get(9)).unwrap_err();
    /// let first = RwLockReadGuard::try_map(list, |list| list.first()).unwrap();
    /// assert_eq!(*first, 1);
    /// # Ok::<(), upshift::sync::TryLockError>(())
    /// ```
    pub fn try_map<U: ?Sized>(
        this: Self,
        part: impl FnOnce(&T) -> Option<&U>,
    ) -> Result<RwLockReadGuard<'a, U>, Self> {
        match part(&*this).map(|part| part as *const U) {
            Some(value) => Ok(RwLockReadGuard {
                held: this.held,
                value,
                access: PhantomData,
            }),
            None => Err(this),
        }
    }
}

impl_deref!([T: ?Sized] RwLockReadGuard<'_, T>, T);

// SAFETY: the guard is like a shared reference, and any thread may release the lock.
unsafe impl<T: ?Sized + Sync> Send for RwLockReadGuard<'_, T> {}
// SAFETY: a shared guard gives shared access only.
unsafe impl<T: ?Sized + Send + Sync> Sync for RwLockReadGuard<'_, T> {}

/// Exclusive access to a part of the value of an [`RwLock`]; unlocks when dropped.
///
/// ```
/// use upshift::sync::{RwLock, RwLockMappedWriteGuard, RwLockWriteGuard};
///
/// let lock = RwLock::new((1, "one"));
/// let mut number: RwLockMappedWriteGuard<i32> =
///     RwLockWriteGuard::map(lock.try_write()?, |pair| &mut pair.0);
/// *number += 1;
/// assert!(lock.try_read().is_err()); // The whole lock is held.
/// drop(number);
/// assert_eq!(*lock.try_read()?, (2, "one"));
/// # Ok::<(), upshift::sync::TryLockError>(())
/// ```
#[must_use = "the lock is given back when the guard is dropped"]
pub struct RwLockMappedWriteGuard<'a, T: ?Sized> {
    held: Held<&'a Raw, true>,
    value: *mut T,
    access: PhantomData<&'a mut T>,
}

impl<'a, T: ?Sized> RwLockMappedWriteGuard<'a, T> {
    /// Narrows the guard to a part of its part.
    ///
    /// ```
    /// use upshift::sync::{RwLock, RwLockMappedWriteGuard, RwLockWriteGuard};
    ///
    /// let lock = RwLock::new(([1, 2], "pair"));
    /// let list = RwLockWriteGuard::map(lock.try_write()?, |pair| &mut pair.0);
    /// *RwLockMappedWriteGuard::map(list, |list| &mut list[1]) += 5;
    /// assert_eq!(lock.into_inner().0, [1, 7]);
    /// # Ok::<(), upshift::sync::TryLockError>(())
    /// ```
    pub fn map<U: ?Sized>(
        mut this: Self,
        part: impl FnOnce(&mut T) -> &mut U,
    ) -> RwLockMappedWriteGuard<'a, U> {
        let value: *mut U = part(&mut *this);
        RwLockMappedWriteGuard {
            held: this.held,
            value,
            access: PhantomData,
        }
    }

    /// Narrows the guard to a part of its part, if `part` returns one.
    ///
    /// # Errors
    /// The guard as it was, if `part` returns `None`.
    ///
    /// ```
    /// use upshift::sync::{RwLock, RwLockMappedWriteGuard, RwLockWriteGuard};
    ///
    /// let lock = RwLock::new((vec![1], "list"));
    /// let list = RwLockWriteGuard::map(lock.try_write()?, |pair| &mut pair.0);
    /// let list = RwLockMappedWriteGuard::try_map(list, |list| list.get_mut(9)).unwrap_err();
    /// *RwLockMappedWriteGuard::try_map(list, |list| list.first_mut()).unwrap() = 2;
    /// assert_eq!(lock.into_inner().0, [2]);
    /// # Ok::<(), upshift::sync::TryLockError>(())
    /// ```
    pub fn try_map<U: ?Sized>(
        mut this: Self,
        part: impl FnOnce(&mut T) -> Option<&mut U>,
    ) -> Result<RwLockMappedWriteGuard<'a, U>, Self> {
        match part(&mut *this).map(|part| part as *mut U) {
            Some(value) => Ok(RwLockMappedWriteGuard {
                held: this.held,
                value,
                access: PhantomData,
            }),
            None => Err(this),
        }
    }
}

impl_deref_mut!([T: ?Sized] RwLockMappedWriteGuard<'_, T>, T);

// SAFETY: the guard is like an exclusive reference, and any thread may release the lock.
unsafe impl<T: ?Sized + Send + Sync> Send for RwLockMappedWriteGuard<'_, T> {}
// SAFETY: a shared guard gives shared access only.
unsafe impl<T: ?Sized + Send + Sync> Sync for RwLockMappedWriteGuard<'_, T> {}

/// Exclusive access to the value of an [`RwLock`]; unlocks when dropped.
///
/// ```
/// let lock = upshift::sync::RwLock::new(1);
/// let mut value = lock.try_write()?;
/// *value += 1;
/// assert!(lock.try_read().is_err());
/// drop(value);
/// assert_eq!(*lock.try_read()?, 2);
/// # Ok::<(), upshift::sync::TryLockError>(())
/// ```
#[must_use = "the lock is given back when the guard is dropped"]
pub struct RwLockWriteGuard<'a, T: ?Sized>(RwLockMappedWriteGuard<'a, T>);

impl<'a, T: ?Sized> RwLockWriteGuard<'a, T> {
    /// Creates the guard. The caller holds the lock for writing.
    pub(super) fn new(lock: &'a RwLock<T>) -> RwLockWriteGuard<'a, T> {
        RwLockWriteGuard(RwLockMappedWriteGuard {
            held: Held(&lock.raw),
            value: lock.value.get(),
            access: PhantomData,
        })
    }

    /// Narrows the guard to a part of the value.
    ///
    /// ```
    /// use upshift::sync::{RwLock, RwLockWriteGuard};
    ///
    /// let lock = RwLock::new((1, "one"));
    /// *RwLockWriteGuard::map(lock.try_write()?, |pair| &mut pair.0) += 1;
    /// assert_eq!(lock.into_inner(), (2, "one"));
    /// # Ok::<(), upshift::sync::TryLockError>(())
    /// ```
    pub fn map<U: ?Sized>(
        this: Self,
        part: impl FnOnce(&mut T) -> &mut U,
    ) -> RwLockMappedWriteGuard<'a, U> {
        RwLockMappedWriteGuard::map(this.0, part)
    }

    /// Narrows the guard to a part of the value, if `part` returns one.
    ///
    /// # Errors
    /// The guard as it was, if `part` returns `None`.
    ///
    /// ```
    /// use upshift::sync::{RwLock, RwLockWriteGuard};
    ///
    /// let lock = RwLock::new(vec![1, 2]);
    /// let list = lock.try_write()?;
    /// let list = RwLockWriteGuard::try_map(list, |list| list.get_mut(9)).unwrap_err();
    /// *RwLockWriteGuard::try_map(list, |list| list.first_mut()).unwrap() = 5;
    /// assert_eq!(lock.into_inner(), [5, 2]);
    /// # Ok::<(), upshift::sync::TryLockError>(())
    /// ```
    pub fn try_map<U: ?Sized>(
        this: Self,
        part: impl FnOnce(&mut T) -> Option<&mut U>,
    ) -> Result<RwLockMappedWriteGuard<'a, U>, Self> {
        RwLockMappedWriteGuard::try_map(this.0, part).map_err(RwLockWriteGuard)
    }

    /// Converts the guard into a guard of a part; that part is the whole value.
    ///
    /// ```
    /// use upshift::sync::{RwLock, RwLockMappedWriteGuard, RwLockWriteGuard};
    ///
    /// // Takes the guard of a whole lock and of a part alike.
    /// fn increment(mut number: RwLockMappedWriteGuard<i32>) {
    ///     *number += 1;
    /// }
    /// let lock = RwLock::new(1);
    /// increment(RwLockWriteGuard::into_mapped(lock.try_write()?));
    /// assert_eq!(lock.into_inner(), 2);
    /// # Ok::<(), upshift::sync::TryLockError>(())
    /// ```
    pub fn into_mapped(this: Self) -> RwLockMappedWriteGuard<'a, T> {
        this.0
    }

    /// Turns the write lock into a read lock, with no other writer in between. Waiting readers
    /// may enter.
    ///
    /// ```
    /// let lock = upshift::sync::RwLock::new(1);
    /// let mut writer = lock.try_write()?;
    /// *writer += 1;
    /// let reader = writer.downgrade();
    /// assert_eq!(*reader + *lock.try_read()?, 4);
    /// # Ok::<(), upshift::sync::TryLockError>(())
    /// ```
    pub fn downgrade(self) -> RwLockReadGuard<'a, T> {
        RwLockWriteGuard::downgrade_map(self, |value| value)
    }

    /// Turns the write lock into a read lock of a part of the value.
    ///
    /// ```
    /// use upshift::sync::{RwLock, RwLockWriteGuard};
    ///
    /// let lock = RwLock::new((1, "one"));
    /// let mut pair = lock.try_write()?;
    /// pair.0 = 2;
    /// let number = RwLockWriteGuard::downgrade_map(pair, |pair| &pair.0);
    /// assert_eq!(*number, 2);
    /// assert!(lock.try_read().is_ok());
    /// # Ok::<(), upshift::sync::TryLockError>(())
    /// ```
    pub fn downgrade_map<U: ?Sized>(
        this: Self,
        part: impl FnOnce(&T) -> &U,
    ) -> RwLockReadGuard<'a, U> {
        let value: *const U = part(&this);
        RwLockReadGuard {
            held: this.0.held.downgrade(),
            value,
            access: PhantomData,
        }
    }

    /// Turns the write lock into a read lock of a part of the value, if `part` returns one.
    ///
    /// # Errors
    /// The guard as it was, if `part` returns `None`.
    ///
    /// ```
    /// use upshift::sync::{RwLock, RwLockWriteGuard};
    ///
    /// let lock = RwLock::new(vec![1, 2]);
    /// let list = lock.try_write()?;
    /// let last = RwLockWriteGuard::try_downgrade_map(list, |list| list.last()).unwrap();
    /// assert_eq!(*last, 2);
    /// assert!(lock.try_read().is_ok());
    /// # Ok::<(), upshift::sync::TryLockError>(())
    /// ```
    pub fn try_downgrade_map<U: ?Sized>(
        this: Self,
        part: impl FnOnce(&T) -> Option<&U>,
    ) -> Result<RwLockReadGuard<'a, U>, Self> {
        match part(&this).map(|part| part as *const U) {
            Some(value) => Ok(RwLockReadGuard {
                held: this.0.held.downgrade(),
                value,
                access: PhantomData,
            }),
            None => Err(this),
        }
    }
}

impl_deref_inner!([T: ?Sized] RwLockWriteGuard<'_, T>, T);

/// [`RwLockReadGuard`] that keeps its [`RwLock`] alive.
///
/// ```
/// use std::sync::Arc;
/// use upshift::sync::RwLock;
///
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let lock = Arc::new(RwLock::new("shared"));
/// let guard = lock.clone().read_owned().await;
/// // The guard can be moved into another coroutine.
/// let length = upshift::task::spawn(async move { guard.len() });
/// assert_eq!(length.await.unwrap(), 6);
/// # });
/// ```
#[must_use = "the lock is given back when the guard is dropped"]
pub struct OwnedRwLockReadGuard<T, U: ?Sized = T> {
    held: Held<Arc<RwLock<T>>, false>,
    value: *const U,
    access: PhantomData<U>,
}

impl<T> OwnedRwLockReadGuard<T> {
    /// Creates the guard. The caller holds the lock for reading.
    pub(super) fn new(lock: Arc<RwLock<T>>) -> OwnedRwLockReadGuard<T> {
        let value = lock.value.get();
        OwnedRwLockReadGuard {
            held: Held(lock),
            value,
            access: PhantomData,
        }
    }
}

impl<T, U: ?Sized> OwnedRwLockReadGuard<T, U> {
    /// Narrows the guard to a part of the value.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use upshift::sync::{OwnedRwLockReadGuard, RwLock};
    ///
    /// let lock = Arc::new(RwLock::new((1, "one")));
    /// let name = OwnedRwLockReadGuard::map(lock.try_read_owned()?, |pair| &pair.1);
    /// assert_eq!(*name, "one");
    /// # Ok::<(), upshift::sync::TryLockError>(())
    /// ```
    pub fn map<V: ?Sized>(this: Self, part: impl FnOnce(&U) -> &V) -> OwnedRwLockReadGuard<T, V> {
        let value: *const V = part(&*this);
        OwnedRwLockReadGuard {
            held: this.held,
            value,
            access: PhantomData,
        }
    }

    /// Narrows the guard to a part of the value, if `part` returns one.
    ///
    /// # Errors
    /// The guard as it was, if `part` returns `None`.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use upshift::sync::{OwnedRwLockReadGuard, RwLock};
    ///
    /// let list = Arc::new(RwLock::new(vec![1, 2])).try_read_owned()?;
    /// let list = OwnedRwLockReadGuard::try_map(list, |list| list.get(9)).unwrap_err();
    /// let first = OwnedRwLockReadGuard::try_map(list, |list| list.first()).unwrap();
    /// assert_eq!(*first, 1);
    /// # Ok::<(), upshift::sync::TryLockError>(())
    /// ```
    pub fn try_map<V: ?Sized>(
        this: Self,
        part: impl FnOnce(&U) -> Option<&V>,
    ) -> Result<OwnedRwLockReadGuard<T, V>, Self> {
        match part(&*this).map(|part| part as *const V) {
            Some(value) => Ok(OwnedRwLockReadGuard {
                held: this.held,
                value,
                access: PhantomData,
            }),
            None => Err(this),
        }
    }
}

impl_deref!([T, U: ?Sized] OwnedRwLockReadGuard<T, U>, U);

// SAFETY: the guard is like a reference to the value together with an `Arc` of the lock.
unsafe impl<T: Send + Sync, U: ?Sized + Sync> Send for OwnedRwLockReadGuard<T, U> {}
// SAFETY: a shared guard gives shared access only.
unsafe impl<T: Send + Sync, U: ?Sized + Send + Sync> Sync for OwnedRwLockReadGuard<T, U> {}

/// [`RwLockMappedWriteGuard`] that keeps its [`RwLock`] alive.
///
/// ```
/// use std::sync::Arc;
/// use upshift::sync::{OwnedRwLockWriteGuard, RwLock};
///
/// let lock = Arc::new(RwLock::new((1, "one")));
/// let pair = lock.clone().try_write_owned()?;
/// let mut number = OwnedRwLockWriteGuard::map(pair, |pair| &mut pair.0);
/// *number += 1;
/// drop(number);
/// assert_eq!(*lock.try_read()?, (2, "one"));
/// # Ok::<(), upshift::sync::TryLockError>(())
/// ```
#[must_use = "the lock is given back when the guard is dropped"]
pub struct OwnedRwLockMappedWriteGuard<T, U: ?Sized = T> {
    held: Held<Arc<RwLock<T>>, true>,
    value: *mut U,
    access: PhantomData<U>,
}

impl<T, U: ?Sized> OwnedRwLockMappedWriteGuard<T, U> {
    /// Narrows the guard to a part of its part.
    pub fn map<V: ?Sized>(
        mut this: Self,
        part: impl FnOnce(&mut U) -> &mut V,
    ) -> OwnedRwLockMappedWriteGuard<T, V> {
        let value: *mut V = part(&mut *this);
        OwnedRwLockMappedWriteGuard {
            held: this.held,
            value,
            access: PhantomData,
        }
    }

    /// Narrows the guard to a part of its part, if `part` returns one.
    ///
    /// # Errors
    /// The guard as it was, if `part` returns `None`.
    pub fn try_map<V: ?Sized>(
        mut this: Self,
        part: impl FnOnce(&mut U) -> Option<&mut V>,
    ) -> Result<OwnedRwLockMappedWriteGuard<T, V>, Self> {
        match part(&mut *this).map(|part| part as *mut V) {
            Some(value) => Ok(OwnedRwLockMappedWriteGuard {
                held: this.held,
                value,
                access: PhantomData,
            }),
            None => Err(this),
        }
    }
}

impl_deref_mut!([T, U: ?Sized] OwnedRwLockMappedWriteGuard<T, U>, U);

// SAFETY: the guard is like a reference to the value together with an `Arc` of the lock.
unsafe impl<T: Send + Sync, U: ?Sized + Send + Sync> Send for OwnedRwLockMappedWriteGuard<T, U> {}
// SAFETY: a shared guard gives shared access only.
unsafe impl<T: Send + Sync, U: ?Sized + Send + Sync> Sync for OwnedRwLockMappedWriteGuard<T, U> {}

/// [`RwLockWriteGuard`] that keeps its [`RwLock`] alive.
///
/// ```
/// use std::sync::Arc;
/// use upshift::sync::RwLock;
///
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let lock = Arc::new(RwLock::new(1));
/// let mut guard = lock.clone().write_owned().await;
/// // The guard can be moved into another coroutine.
/// upshift::task::spawn(async move { *guard += 1 }).detach();
/// assert_eq!(*lock.read().await, 2);
/// # });
/// ```
#[must_use = "the lock is given back when the guard is dropped"]
pub struct OwnedRwLockWriteGuard<T>(OwnedRwLockMappedWriteGuard<T>);

impl<T> OwnedRwLockWriteGuard<T> {
    /// Creates the guard. The caller holds the lock for writing.
    pub(super) fn new(lock: Arc<RwLock<T>>) -> OwnedRwLockWriteGuard<T> {
        let value = lock.value.get();
        OwnedRwLockWriteGuard(OwnedRwLockMappedWriteGuard {
            held: Held(lock),
            value,
            access: PhantomData,
        })
    }

    /// Narrows the guard to a part of the value.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use upshift::sync::{OwnedRwLockWriteGuard, RwLock};
    ///
    /// let lock = Arc::new(RwLock::new((1, "one")));
    /// let pair = lock.clone().try_write_owned()?;
    /// *OwnedRwLockWriteGuard::map(pair, |pair| &mut pair.0) += 1;
    /// assert_eq!(*lock.try_read()?, (2, "one"));
    /// # Ok::<(), upshift::sync::TryLockError>(())
    /// ```
    pub fn map<U: ?Sized>(
        this: Self,
        part: impl FnOnce(&mut T) -> &mut U,
    ) -> OwnedRwLockMappedWriteGuard<T, U> {
        OwnedRwLockMappedWriteGuard::map(this.0, part)
    }

    /// Narrows the guard to a part of the value, if `part` returns one.
    ///
    /// # Errors
    /// The guard as it was, if `part` returns `None`.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use upshift::sync::{OwnedRwLockWriteGuard, RwLock};
    ///
    /// let lock = Arc::new(RwLock::new(vec![1, 2]));
    /// let list = lock.clone().try_write_owned()?;
    /// *OwnedRwLockWriteGuard::try_map(list, |list| list.first_mut()).unwrap() = 5;
    /// assert_eq!(*lock.try_read()?, [5, 2]);
    /// # Ok::<(), upshift::sync::TryLockError>(())
    /// ```
    pub fn try_map<U: ?Sized>(
        this: Self,
        part: impl FnOnce(&mut T) -> Option<&mut U>,
    ) -> Result<OwnedRwLockMappedWriteGuard<T, U>, Self> {
        OwnedRwLockMappedWriteGuard::try_map(this.0, part).map_err(OwnedRwLockWriteGuard)
    }

    /// Turns the write lock into a read lock, with no other writer in between.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use upshift::sync::RwLock;
    ///
    /// let lock = Arc::new(RwLock::new(1));
    /// let mut writer = lock.clone().try_write_owned()?;
    /// *writer += 1;
    /// let reader = writer.downgrade();
    /// assert_eq!(*reader + *lock.try_read()?, 4);
    /// # Ok::<(), upshift::sync::TryLockError>(())
    /// ```
    pub fn downgrade(self) -> OwnedRwLockReadGuard<T> {
        OwnedRwLockReadGuard {
            held: self.0.held.downgrade(),
            value: self.0.value,
            access: PhantomData,
        }
    }
}

impl_deref_inner!([T] OwnedRwLockWriteGuard<T>, T);
