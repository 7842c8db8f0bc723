//! A lock for a few instructions, and the critical sections of a thread.
//!
//! Between [`enter`] and [`leave`] the kernel lets the thread finish before it takes its hart away,
//! if that does not take long (`os_abi::thread`). So a thread that spins for a [`SpinLock`] seldom
//! waits for a holder that does not run; if it does, it gives its hart away after a while.
//!
//! The handler of a user interrupt takes none of these locks.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use os_pages::critical;
pub use os_pages::critical::enter;

use crate::{clock, sys};

/// Ends a critical section.
#[inline]
pub fn leave() {
    critical::leave(|| {
        let _ = sys::clock();
    });
}

/// Waits for the holder of a lock, after `spins` waits before: spins, then yields to threads of the
/// same level, and then sleeps, so that a less urgent holder runs.
///
/// The sleep doubles from 100 µs to 12.8 ms: several urgent waiters that look every 100 µs can use
/// up a slow hart, and the holder would never run.
pub(crate) fn relax(spins: u32) {
    match spins {
        0..50 => core::hint::spin_loop(),
        50..100 => {
            let _ = sys::yield_cpu();
        }
        _ => clock::sleep_micros(100 << (spins - 100).min(7)),
    }
}

/// See the module.
pub struct SpinLock<T> {
    held: AtomicBool,
    data: UnsafeCell<T>,
}

// SAFETY: the data is reached by one thread at a time; it moves between threads,
// hence `Send`.
unsafe impl<T: Send> Sync for SpinLock<T> {}

impl<T> SpinLock<T> {
    /// Creates an unlocked lock.
    pub const fn new(data: T) -> SpinLock<T> {
        SpinLock {
            held: AtomicBool::new(false),
            data: UnsafeCell::new(data),
        }
    }

    /// Acquires the lock. Costs an exchange if the lock is free.
    pub fn lock(&self) -> SpinGuard<'_, T> {
        enter();
        let mut spins = 0;
        while self.held.swap(true, Acquire) {
            while self.held.load(Relaxed) {
                relax(spins);
                spins += 1;
            }
        }
        SpinGuard { lock: self }
    }
}

/// Holds the lock until it is dropped.
pub struct SpinGuard<'a, T> {
    lock: &'a SpinLock<T>,
}

impl<T> Deref for SpinGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the lock is held.
        unsafe { &*self.lock.data.get() }
    }
}

impl<T> DerefMut for SpinGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held, and the guard is borrowed mutably.
        unsafe { &mut *self.lock.data.get() }
    }
}

impl<T> Drop for SpinGuard<'_, T> {
    fn drop(&mut self) {
        self.lock.held.store(false, Release);
        leave();
    }
}
