//! A mutex with priority inheritance ([`Lock`]).
//!
//! The lock protects the records of the elevated threads. A thread that restores its own policy
//! leaves SCHED_FIFO *while it holds* the lock. An elevated thread on the same CPU could then keep
//! the holder from releasing the lock. The thread that is to demote this elevated thread would wait
//! for the lock forever. Therefore the kernel lends the priority of a waiter to the holder
//! (`FUTEX_LOCK_PI`). On a kernel without such futexes the waiter sleeps and tries again.
//!
//! Without contention, locking and unlocking cost one compare-exchange each. A thread must not lock
//! twice, and must not end while it holds the lock.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::ptr::null;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

use crate::sys::current_tid;

#[derive(Debug)]
pub(crate) struct Lock<T> {
    /// The word in the kernel's format: 0, or the holder's tid and a bit that is set while other
    /// threads wait.
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: only one thread at a time has a guard, and only the guard gives access to the value.
unsafe impl<T: Send> Sync for Lock<T> {}

/// A guard that gives access to the value. It stays on the thread that took the lock, because the
/// kernel identifies the holder by its tid.
#[derive(Debug)]
pub(crate) struct Locked<'a, T> {
    lock: &'a Lock<T>,
    tid: u32,
    _not_send: std::marker::PhantomData<*const ()>,
}

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Lock<T> {
        Lock {
            word: AtomicU32::new(0),
            value: UnsafeCell::new(value),
        }
    }

    pub(crate) fn lock(&self) -> Locked<'_, T> {
        loop {
            if let Some(locked) = self.try_lock() {
                return locked;
            }
            match self.futex(libc::FUTEX_LOCK_PI) {
                Ok(()) => return self.guard(current_tid() as u32),
                // The holder is unlocking at this moment, or a signal interrupted the call.
                Err(libc::EAGAIN | libc::EINTR) => {}
                Err(_) => std::thread::sleep(Duration::from_micros(50)),
            }
        }
    }

    pub(crate) fn try_lock(&self) -> Option<Locked<'_, T>> {
        let tid = current_tid() as u32;
        let exchange = self.word.compare_exchange(0, tid, Acquire, Relaxed);
        exchange.is_ok().then(|| self.guard(tid))
    }

    fn guard(&self, tid: u32) -> Locked<'_, T> {
        Locked {
            lock: self,
            tid,
            _not_send: std::marker::PhantomData,
        }
    }

    fn futex(&self, operation: libc::c_int) -> Result<(), libc::c_int> {
        // SAFETY: the word is valid during the call; the null pointer means no time limit.
        let result = unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.word.as_ptr(),
                operation | libc::FUTEX_PRIVATE_FLAG,
                0,
                null::<libc::timespec>(),
            )
        };
        match result {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()
                .raw_os_error()
                .unwrap_or(libc::EAGAIN)),
        }
    }
}

impl<T> Deref for Locked<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard gives exclusive access, so no mutable reference exists.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Locked<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard gives exclusive access, and is borrowed mutably.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Locked<'_, T> {
    fn drop(&mut self) {
        let word = &self.lock.word;
        let exchange = word.compare_exchange(self.tid, 0, Release, Relaxed);
        if exchange.is_err() {
            // Other threads wait, so the kernel passes the lock to the most urgent of them.
            let result = self.lock.futex(libc::FUTEX_UNLOCK_PI);
            debug_assert_eq!(result, Ok(()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time_has_the_value() {
        let lock = Lock::new(0u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..5000 {
                        let mut value = lock.lock();
                        let before = *value;
                        if round % 512 == 0 {
                            std::thread::sleep(Duration::from_micros(20));
                        }
                        *value = before + 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), 20_000);
        assert_eq!(lock.word.load(Relaxed), 0);
    }

    #[test]
    fn a_held_lock_is_not_taken_by_try_lock() {
        let lock = Lock::new(());
        let held = lock.lock();
        std::thread::scope(|scope| {
            let tried = scope.spawn(|| lock.try_lock().is_none()).join();
            assert!(tried.unwrap());
        });
        drop(held);
        assert!(lock.try_lock().is_some());
    }
}
