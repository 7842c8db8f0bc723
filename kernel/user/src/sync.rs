//! [`Mutex`] and [`Condvar`] for threads, on `futex_wait` and `futex_wake`.
//!
//! An uncontended mutex costs a compare-exchange to lock and another to unlock, and no system call.
//! For a contended mutex the waiter makes a call, which parks its thread and lends its level to the
//! holder, and the holder makes a call that hands the lock to the most urgent waiter. A condition
//! variable without waiters costs two atomic operations per notification. A wait blocks the thread
//! and its vCPU, so coroutines should not hold a mutex for long.
//!
//! No wake is lost, because the kernel compares the word while it holds the lock under which wakers
//! look for waiters.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use os_abi::Error;
use os_abi::number::TIMED_OUT;
use os_abi::thread::{CONTENDED, HOLDER, NUMBER};

use crate::{lock, sys};
use os_pages::line;

/// Word of an unlocked mutex; other values: see `os_abi::thread`.
const FREE: u32 = 0;

/// Waits while the word has this value. Returns false if the deadline has passed.
fn wait(word: &AtomicU32, value: u32, deadline: u64) -> bool {
    let address = core::ptr::from_ref(word) as usize;
    let answer = sys::futex_wait(address, value as usize, deadline as usize);
    // For lack of memory the call does not wait; the caller then checks its condition again.
    answer != Ok(TIMED_OUT)
}

/// Returns the word of a mutex that the calling thread holds.
fn holder_word() -> u32 {
    line(NUMBER).load(Relaxed) as u32 & HOLDER
}

fn wake(word: &AtomicU32, count: usize) {
    let address = core::ptr::from_ref(word) as usize;
    let _ = sys::futex_wake(address, count);
}

/// Data that one thread at a time accesses. See the module.
pub struct Mutex<T> {
    state: AtomicU32,
    data: UnsafeCell<T>,
}

// SAFETY: the mutex gives one thread at a time access to the data, which may pass from thread to
// thread because `T: Send`.
unsafe impl<T: Send> Sync for Mutex<T> {}

impl<T> Mutex<T> {
    /// Creates an unlocked mutex around `data`.
    pub const fn new(data: T) -> Mutex<T> {
        Mutex {
            state: AtomicU32::new(FREE),
            data: UnsafeCell::new(data),
        }
    }

    /// Waits until the lock is free, and acquires it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        if self.try_set_holder().is_err() {
            self.lock_slow();
        }
        MutexGuard { mutex: self }
    }

    /// Acquires the lock if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.try_set_holder()
            .is_ok()
            .then(|| MutexGuard { mutex: self })
    }

    fn try_set_holder(&self) -> Result<u32, u32> {
        self.state
            .compare_exchange(FREE, holder_word(), Acquire, Relaxed)
    }

    fn address(&self) -> usize {
        core::ptr::from_ref(&self.state) as usize
    }

    #[cold]
    fn lock_slow(&self) {
        let mut tries = 0;
        // The kernel's locks order the accesses of the previous holder before the accesses of this
        // thread.
        while let Err(error) = sys::futex_lock(self.address()) {
            assert!(
                error == Error::OutOfMemory,
                "`futex_lock` failed for another reason than memory: {error}"
            );
            // Retry until there is memory for the waiter.
            lock::relax(tries);
            tries += 1;
        }
    }

    fn unlock(&self) {
        // The kernel may mark the word as contended at any time.
        let seen = self.state.load(Relaxed);
        let is_unlocked = seen & CONTENDED == 0
            && (self.state.compare_exchange(seen, FREE, Release, Relaxed)).is_ok();
        if !is_unlocked {
            let _ = sys::futex_unlock(self.address());
        }
    }
}

/// Holds the lock until it is dropped.
pub struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock, so no other thread has access.
        unsafe { &*self.mutex.data.get() }
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the lock and is borrowed mutably, so this is the only reference.
        unsafe { &mut *self.mutex.data.get() }
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.mutex.unlock();
    }
}

/// A queue of threads that wait for a change of the data behind a mutex.
pub struct Condvar {
    /// Number of notifications.
    sequence: AtomicU32,
    waiters: AtomicU32,
}

impl Condvar {
    /// Creates a condition variable without waiters.
    #[must_use]
    pub const fn new() -> Condvar {
        Condvar {
            sequence: AtomicU32::new(0),
            waiters: AtomicU32::new(0),
        }
    }

    /// Releases the lock, waits for a notification and acquires the lock again. The wait may end
    /// without a notification, so the caller checks its condition again.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.wait_until(guard, u64::MAX).0
    }

    /// Waits like [`wait`](Condvar::wait), at most until the clock shows `deadline`. Returns false
    /// if the deadline has passed.
    pub fn wait_until<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        deadline: u64,
    ) -> (MutexGuard<'a, T>, bool) {
        let mutex = guard.mutex;
        self.waiters.fetch_add(1, SeqCst);
        // The number is read while the lock is held, so any later notification changes it.
        let sequence = self.sequence.load(SeqCst);
        drop(guard);
        let notified = wait(&self.sequence, sequence, deadline);
        self.waiters.fetch_sub(1, SeqCst);
        (mutex.lock(), notified)
    }

    /// Wakes the thread that has waited longest.
    pub fn notify_one(&self) {
        self.notify(1);
    }

    /// Wakes all waiting threads.
    pub fn notify_all(&self) {
        self.notify(usize::MAX);
    }

    fn notify(&self, count: usize) {
        self.sequence.fetch_add(1, SeqCst);
        if self.waiters.load(SeqCst) != 0 {
            wake(&self.sequence, count);
        }
    }
}

impl Default for Condvar {
    fn default() -> Condvar {
        Condvar::new()
    }
}
