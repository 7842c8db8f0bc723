//! A spinlock that protects the state of a synchronization primitive.
//!
//! Invariant: the value is touched only through a [`Guard`], of which there is one at a time. The
//! lock is held for about ten instructions and never across a wake, a drop of a waker or of a
//! user's value, or an `await`; so if an attempt to lock fails, the holder is running on another
//! CPU or has been interrupted. The lock is neither fair nor poisoned.
//!
//! Locking is one atomic exchange and unlocking is a plain store, where `std::sync::Mutex` needs a
//! second exchange, which checks for sleepers. A thread that finds the lock taken spins, then
//! yields, then sleeps with growing pauses. The sleep prevents a deadlock: even a holder that the
//! waiter itself has preempted (real-time priorities on one CPU) gets to run.

use std::cell::UnsafeCell;
use std::fmt;
use std::hint::spin_loop;
use std::ops::{Deref, DerefMut};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::preempt::permit::Critical;

/// Number of attempts before the thread yields instead of spinning.
const SPINS: u32 = 64;
/// Number of attempts before the thread sleeps instead of yielding.
const YIELDS: u32 = SPINS + 64;

/// A value behind a spinlock.
pub(crate) struct Lock<T> {
    is_held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: sending a lock sends its value, and `T: Send` allows that.
unsafe impl<T: Send> Send for Lock<T> {}
// SAFETY: a shared lock gives the value to one thread at a time, which only moves it between
// threads. `T: Send` allows that.
unsafe impl<T: Send> Sync for Lock<T> {}

// The lock is released before a panic of user code unwinds through the primitive.
impl<T> UnwindSafe for Lock<T> {}
impl<T> RefUnwindSafe for Lock<T> {}

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Lock<T> {
        Lock {
            is_held: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        // The holder's poll is not suspended until the holder unlocks, because other threads would
        // spin meanwhile.
        let critical = Critical::enter();
        if self.is_held.swap(true, Ordering::Acquire) {
            self.wait();
        }
        Guard {
            lock: self,
            critical,
        }
    }

    #[cold]
    fn wait(&self) {
        let mut attempts = 0_u32;
        loop {
            if !self.is_held.load(Ordering::Relaxed) && !self.is_held.swap(true, Ordering::Acquire)
            {
                return;
            }
            attempts = attempts.saturating_add(1);
            if attempts < SPINS {
                spin_loop();
            } else if attempts < YIELDS {
                std::thread::yield_now();
            } else {
                let micros = u64::from(attempts - YIELDS + 1).min(1000);
                std::thread::sleep(Duration::from_micros(micros));
            }
        }
    }
}

impl<T> fmt::Debug for Lock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").finish_non_exhaustive()
    }
}

/// Guard of a [`Lock`]; its drop unlocks.
pub(crate) struct Guard<'a, T> {
    lock: &'a Lock<T>,
    #[expect(dead_code, reason = "its drop, after the unlock, permits suspension")]
    critical: Critical,
}

// SAFETY: a shared guard gives shared access to the value, and `T: Sync` allows that.
unsafe impl<T: Sync> Sync for Guard<'_, T> {}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard holds the lock, so no exclusive reference to the value exists
        // elsewhere.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard holds the lock, and is borrowed exclusively, so no other reference to
        // the value exists.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.is_held.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time_holds_the_lock() {
        let count = Lock::new(0_u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        *count.lock() += 1;
                    }
                });
            }
        });
        assert_eq!(*count.lock(), 40_000);
    }

    #[test]
    fn a_thread_waits_for_a_long_holder() {
        let value = Lock::new(0);
        std::thread::scope(|scope| {
            let guard = value.lock();
            scope.spawn(|| *value.lock() = 2);
            std::thread::sleep(Duration::from_millis(20));
            drop(guard);
        });
        assert_eq!(*value.lock(), 2);
    }
}
