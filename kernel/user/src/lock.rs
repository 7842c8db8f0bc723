//! A spin lock for short critical sections, and the critical sections of a thread.
//!
//! Between [`enter`] and [`leave`] the kernel delays the preemption of the thread for a short time
//! (`os_abi::thread`). Therefore a thread that spins for a [`SpinLock`] seldom waits for a
//! preempted holder; if it does, it yields its hart after a while.
//!
//! The handler of a user interrupt acquires none of these locks.

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

/// Waits for the holder of a lock, after `spins` previous waits: spins, then yields to threads of
/// the same level, and then sleeps, so that a less urgent holder can run.
///
/// The sleep doubles from 100 µs to 12.8 ms, because several urgent waiters that checked every 100
/// µs could use up a slow hart, and the holder would never run.
pub(crate) fn relax(spins: u32) {
    match spins {
        0..50 => core::hint::spin_loop(),
        50..100 => {
            let _ = sys::yield_cpu();
        }
        _ => clock::sleep_micros(100 << (spins - 100).min(7)),
    }
}

/// Data behind a spin lock that short critical sections hold. See the module.
pub struct SpinLock<T> {
    held: AtomicBool,
    data: UnsafeCell<T>,
}

// SAFETY: the lock gives one thread at a time access to the data, which may pass from thread to
// thread because `T: Send`.
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
        // SAFETY: the guard holds the lock, so no other thread has access.
        unsafe { &*self.lock.data.get() }
    }
}

impl<T> DerefMut for SpinGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the lock and is borrowed mutably, so this is the only reference.
        unsafe { &mut *self.lock.data.get() }
    }
}

impl<T> Drop for SpinGuard<'_, T> {
    fn drop(&mut self) {
        self.lock.held.store(false, Release);
        leave();
    }
}
