//! [`Lock`]: a mutex that lends the priority of the threads that wait for it to its holder.
//!
//! The threads of a set are of very different priorities, and one that gives itself back becomes ordinary *while it holds* the set's
//! lock. Anything elevated on its CPU would then keep it from letting go, and with it the thread that is to take the elevated back. The kernel
//! inherits priorities through futexes of this kind (`FUTEX_LOCK_PI`); one without them makes the waiter sleep and look again.
//!
//! Free: one compare-exchange to take, one to let go. A thread does not take it twice, and does not end while it holds it.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::ptr::null;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

use crate::sys::current_tid;

/// See the module.
#[derive(Debug)]
pub(crate) struct Lock<T> {
    /// 0, or the holder's tid and the kernel's mark that others wait: the kernel's format.
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: one thread at a time has the value, by the guard.
unsafe impl<T: Send> Sync for Lock<T> {}

/// The right to the value. It stays on the thread that has taken the lock, as the kernel knows it by its tid.
#[derive(Debug)]
pub(crate) struct Locked<'a, T> {
    lock: &'a Lock<T>,
    tid: u32,
    _stays: std::marker::PhantomData<*const ()>,
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
            match self.call(libc::FUTEX_LOCK_PI) {
                Ok(()) => return self.taken(current_tid() as u32),
                // The holder lets go at this moment, or was interrupted in it.
                Err(libc::EAGAIN | libc::EINTR) => {}
                Err(_) => std::thread::sleep(Duration::from_micros(50)),
            }
        }
    }

    pub(crate) fn try_lock(&self) -> Option<Locked<'_, T>> {
        let own = current_tid() as u32;
        let free = self.word.compare_exchange(0, own, Acquire, Relaxed);
        free.is_ok().then(|| self.taken(own))
    }

    fn taken(&self, tid: u32) -> Locked<'_, T> {
        Locked {
            lock: self,
            tid,
            _stays: std::marker::PhantomData,
        }
    }

    fn call(&self, operation: libc::c_int) -> Result<(), libc::c_int> {
        // SAFETY: the word lives for the length of the call, and there is no time limit.
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
        // SAFETY: the guard is the right to it.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Locked<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard is the right to it, and borrowed mutably.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Locked<'_, T> {
    fn drop(&mut self) {
        let word = &self.lock.word;
        let alone = word.compare_exchange(self.tid, 0, Release, Relaxed);
        if alone.is_err() {
            // Others wait: the kernel hands it to the most urgent of them.
            let handed_on = self.lock.call(libc::FUTEX_UNLOCK_PI);
            debug_assert_eq!(handed_on, Ok(()));
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
    fn a_lock_that_is_held_is_not_taken_by_a_try() {
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
