//! The spin lock [`IrqLock`], the only kind of lock in the kernel, and [`Once`].
//!
//! Every lock masks interrupts while it is held. So a handler never waits for a lock that the
//! interrupted code holds, and one kind of lock suffices. Critical sections are short: they contain
//! no system call, no `await`, and no fault on user memory. `main.rs` defines the order in which
//! locks are taken.

use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU8};

use super::csr;

/// A spin lock that masks interrupts of its hart while it is held.
pub(crate) struct IrqLock<T> {
    is_held: AtomicBool,
    data: UnsafeCell<T>,
}

// SAFETY: the lock gives one hart at a time access to the data, and no handler of that hart
// meanwhile; the data may pass from hart to hart, because `T: Send`.
unsafe impl<T: Send> Sync for IrqLock<T> {}

impl<T> IrqLock<T> {
    pub(crate) const fn new(data: T) -> IrqLock<T> {
        IrqLock {
            is_held: AtomicBool::new(false),
            data: UnsafeCell::new(data),
        }
    }

    #[inline]
    pub(crate) fn lock(&self) -> IrqGuard<'_, T> {
        let were_enabled = csr::interrupts_off();
        while self.is_held.swap(true, Acquire) {
            while self.is_held.load(Relaxed) {
                core::hint::spin_loop();
            }
        }
        IrqGuard {
            lock: self,
            were_enabled,
            not_send: PhantomData,
        }
    }
}

/// Holds the lock until it is dropped. It is not `Send`, so the compiler rejects a coroutine that
/// holds a guard across an `await`.
pub(crate) struct IrqGuard<'a, T> {
    lock: &'a IrqLock<T>,
    /// Set if interrupts were enabled when the lock was taken.
    were_enabled: bool,
    not_send: PhantomData<*const ()>,
}

impl<T> Deref for IrqGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock, so no other hart has access.
        unsafe { &*self.lock.data.get() }
    }
}

impl<T> DerefMut for IrqGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the lock and is borrowed mutably, so this is the only reference.
        unsafe { &mut *self.lock.data.get() }
    }
}

impl<T> Drop for IrqGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.is_held.store(false, Release);
        csr::interrupts_restore(self.were_enabled);
    }
}

const EMPTY: u8 = 0;
const BUSY: u8 = 1;
const FULL: u8 = 2;

/// A value that is set once, and shared from then on.
pub(crate) struct Once<T> {
    state: AtomicU8,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: only the hart that changed `EMPTY` to `BUSY` writes the value, and the value is read only
// after the state has become `FULL`.
unsafe impl<T: Send + Sync> Sync for Once<T> {}

impl<T> Drop for Once<T> {
    fn drop(&mut self) {
        if *self.state.get_mut() == FULL {
            // SAFETY: the state is `FULL`, so the value is initialized, and there is no other
            // reference.
            unsafe { self.value.get_mut().assume_init_drop() };
        }
    }
}

impl<T> Once<T> {
    pub(crate) const fn new() -> Once<T> {
        Once {
            state: AtomicU8::new(EMPTY),
            value: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    /// Sets the value.
    ///
    /// # Panics
    /// If it was set before.
    pub(crate) fn set(&self, value: T) {
        let first = self.state.compare_exchange(EMPTY, BUSY, Acquire, Relaxed);
        assert!(first.is_ok(), "a value is set twice");
        // SAFETY: this call alone changed the state to `BUSY`, and readers wait for `FULL`.
        unsafe { (*self.value.get()).write(value) };
        self.state.store(FULL, Release);
    }

    #[inline]
    pub(crate) fn try_get(&self) -> Option<&T> {
        if self.state.load(Acquire) == FULL {
            // SAFETY: the value was written before the state became `FULL`, and is not written
            // again.
            Some(unsafe { (*self.value.get()).assume_init_ref() })
        } else {
            None
        }
    }

    /// Returns the value.
    ///
    /// # Panics
    /// If it has not been set, which is an error in the boot order.
    #[inline]
    pub(crate) fn get(&self) -> &T {
        self.try_get()
            .expect("a boot-time value is used before it is set")
    }
}
