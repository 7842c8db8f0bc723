//! A mutex that may be held across `await`, and lends.
//!
//! The state is one word, so that whoever finds the mutex taken knows in the same
//! step by whom:
//!
//! ```text
//!   bits 63..32     31         30      29..0
//!   generation   CONTENDED   LOCKED   index        of the holder; 0 = free
//! ```
//!
//! Transitions (1 and 2 are one compare-exchange, all others happen under the
//! queue's lock):
//!
//! ```text
//!            1 lock                     3 wait
//!     free ──────────► locked(holder) ──────────► locked(holder) CONTENDED
//!       ▲ ◄──────────    2 unlock                   │ 4 unlock: hand over
//!       └───────────────────────────────────────────┤   to the next waiter,
//!              4 nobody waits (any more)            └──► locked(next) [CONTENDED]
//! ```
//!
//! * A contended mutex is never free: nobody can take it before its next holder.
//! * CONTENDED is set before anybody is in the queue, so 2 cannot miss a waiter.
//! * A waiter lends under the queue's lock, and a holder with waiters goes through
//!   that lock before it reports the release: what was lent to it for this mutex
//!   ends with this mutex.
//! * A future that was handed the mutex and is dropped instead of polled does 4.
//!
//! Uncontended: two atomic read-modify-writes, and what the scheduler does to know
//! how many locks a coroutine holds.

use std::cell::UnsafeCell;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::task::{Context, Poll};

use upshift_core::CoroutineId;

use super::atomic::{AtomicU64, Ordering, const_fn};
use super::lock::{Guard, Lock};
use super::wait_queue::{Key, WaitQueue};
use super::{may_proceed, waiting_level};
use crate::context;

const FREE: u64 = 0;
const CONTENDED: u64 = 1 << 31;
const LOCKED: u64 = 1 << 30;
const INDEX: u64 = LOCKED - 1;
/// Locked outside of any coroutine.
const NOBODY: u64 = LOCKED | INDEX;

/// The word of a mutex that `holder` has.
#[inline]
fn locked_by(holder: Option<CoroutineId>) -> u64 {
    match holder {
        Some(id) if u64::from(id.index()) < INDEX => id.to_u64() | LOCKED,
        _ => NOBODY,
    }
}

/// Who has it, by its word.
#[inline]
fn holder(word: u64) -> Option<CoroutineId> {
    (word & INDEX != INDEX).then(|| CoroutineId::from_u64(word & !(CONTENDED | LOCKED)))
}

/// Exclusive access to a `T`, also across `await`s.
///
/// * Waiters are served most urgent level first, first come first served within a
///   level. The lock is handed over: nobody takes it in between.
/// * A waiter *lends its level* to the coroutine that holds the lock, so that what
///   is urgent waits for the critical section only, not for everything of the
///   levels between (priority inversion).
/// * There is no poisoning: when a coroutine panics the lock is given back and the
///   next holder sees the value as it was left.
///
/// A lock and an unlock without contention cost two atomic steps. The usual
/// advice holds: for a few instructions without `await`, `std::sync::Mutex` does.
///
/// ```
/// use std::sync::Arc;
/// use upshift::{Level, sync::Mutex};
///
/// upshift::Runtime::new()?.block_on(async {
///     let total = Arc::new(Mutex::new(0));
///     let theirs = total.clone();
///     let child = upshift::spawn(
///         async move { *theirs.lock().await += 1 },
///         Level::at::<40>(),
///     );
///     *total.lock().await += 1;
///     child.await.unwrap();
///     assert_eq!(*total.lock().await, 2);
/// });
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Mutex<T: ?Sized> {
    word: AtomicU64,
    waiters: Lock<WaitQueue<u64>>,
    value: UnsafeCell<T>,
}

// SAFETY: the value is moved to, or reached from, one thread at a time.
unsafe impl<T: ?Sized + Send> Send for Mutex<T> {}
// SAFETY: as above; a shared mutex gives out one exclusive reference at a time.
unsafe impl<T: ?Sized + Send> Sync for Mutex<T> {}

impl<T> Mutex<T> {
    const_fn! {
        /// A free mutex.
        ///
        /// ```
        /// static COUNT: upshift::sync::Mutex<u32> = upshift::sync::Mutex::new(0);
        /// ```
        #[must_use]
        pub const fn new(value: T) -> Mutex<T> {
            Mutex {
                word: AtomicU64::new(FREE),
                waiters: Lock::new(WaitQueue::new()),
                value: UnsafeCell::new(value),
            }
        }
    }

    /// The value.
    ///
    /// ```
    /// assert_eq!(upshift::sync::Mutex::new(3).into_inner(), 3);
    /// ```
    #[must_use]
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for the lock.
    ///
    /// The future may be dropped at any time: it leaves the queue, or hands the
    /// lock on. Polled again after its end it asks for the lock once more.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let list = upshift::sync::Mutex::new(Vec::new());
    /// list.lock().await.push(1);
    /// assert_eq!(list.into_inner(), [1]);
    /// # });
    /// ```
    #[inline]
    pub fn lock(&self) -> Locking<'_, T> {
        Locking {
            mutex: self,
            key: None,
        }
    }

    /// The lock if it is free.
    ///
    /// # Errors
    /// [`TryLockError`]: somebody has it.
    ///
    /// ```
    /// let mutex = upshift::sync::Mutex::new(1);
    /// let guard = mutex.try_lock()?;
    /// assert!(mutex.try_lock().is_err());
    /// # drop(guard);
    /// # Ok::<(), upshift::sync::TryLockError>(())
    /// ```
    #[inline]
    pub fn try_lock(&self) -> Result<MutexGuard<'_, T>, TryLockError> {
        self.take(context::current_id()).ok_or(TryLockError(()))
    }

    /// The value: whoever has the mutex exclusively needs no lock.
    ///
    /// ```
    /// let mut mutex = upshift::sync::Mutex::new(1);
    /// *mutex.get_mut() += 1;
    /// assert_eq!(mutex.into_inner(), 2);
    /// ```
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// Transition 1.
    #[inline]
    fn take(&self, me: Option<CoroutineId>) -> Option<MutexGuard<'_, T>> {
        self.word
            .compare_exchange(FREE, locked_by(me), Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
            .then(|| self.taken())
    }

    /// The guard of a caller who has made the word its own.
    #[inline]
    fn taken(&self) -> MutexGuard<'_, T> {
        context::lock_taken();
        MutexGuard {
            mutex: self,
            exclusive: PhantomData,
        }
    }

    /// Transitions 2 and 4. The caller holds the lock.
    #[inline]
    fn unlock(&self) {
        let word = self.word.load(Ordering::Relaxed);
        let freed = word & CONTENDED == 0
            && self
                .word
                .compare_exchange(word, FREE, Ordering::Release, Ordering::Relaxed)
                .is_ok();
        if !freed {
            self.hand_over(self.waiters.lock());
        }
        if let Some(id) = holder(word) {
            context::lock_released(id);
        }
    }

    /// Transition 4.
    #[cold]
    fn hand_over(&self, mut waiters: Guard<'_, WaitQueue<u64>>) {
        let mut next = FREE;
        let waker = waiters.pop(|id| {
            next = id;
            id
        });
        if !waiters.is_empty() {
            next |= CONTENDED;
        }
        self.word.store(next, Ordering::Release);
        drop(waiters);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Mutex<T> {
        Mutex::new(T::default())
    }
}

impl<T> From<T> for Mutex<T> {
    fn from(value: T) -> Mutex<T> {
        Mutex::new(value)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.try_lock() {
            Ok(value) => f.debug_struct("Mutex").field("value", &&*value).finish(),
            Err(_) => f.write_str("Mutex { <locked> }"),
        }
    }
}

/// The future of [`Mutex::lock`].
#[must_use = "futures do nothing unless awaited"]
pub struct Locking<'a, T: ?Sized> {
    mutex: &'a Mutex<T>,
    key: Option<Key>,
}

impl<'a, T: ?Sized> Future for Locking<'a, T> {
    type Output = MutexGuard<'a, T>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<MutexGuard<'a, T>> {
        loop {
            if self.key.is_none() && self.mutex.word.load(Ordering::Relaxed) == FREE {
                if !may_proceed() {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                if let Some(guard) = self.mutex.take(context::current_id()) {
                    return Poll::Ready(guard);
                }
            }
            if let Some(outcome) = self.poll_contended(cx) {
                return outcome;
            }
        }
    }
}

impl<'a, T: ?Sized> Locking<'a, T> {
    /// None: it has just become free.
    #[cold]
    fn poll_contended(&mut self, cx: &mut Context<'_>) -> Option<Poll<MutexGuard<'a, T>>> {
        let mutex = self.mutex;
        let me = context::current_id();
        let mut waiters = mutex.waiters.lock();
        let word = match self.key {
            Some(key) if waiters.granted(key) => {
                if !may_proceed() {
                    drop(waiters);
                    cx.waker().wake_by_ref();
                    return Some(Poll::Pending);
                }
                let _ = waiters.release(key);
                self.key = None;
                // The future may have moved to another coroutine.
                let contended = if waiters.is_empty() { 0 } else { CONTENDED };
                mutex
                    .word
                    .store(locked_by(me) | contended, Ordering::Relaxed);
                drop(waiters);
                return Some(Poll::Ready(mutex.taken()));
            }
            Some(_) => mutex.word.load(Ordering::Relaxed),
            None => mutex.contend()?,
        };
        let before = match self.key {
            Some(key) => waiters.refresh(key, waiting_level(), cx.waker()),
            None => {
                let waker = cx.waker().clone();
                self.key = Some(waiters.insert(waiting_level(), locked_by(me), waker));
                None
            }
        };
        // Under the queue's lock: see the module's third rule.
        if let Some(holder) = holder(word) {
            context::lend_to_holder(holder);
        }
        drop(waiters);
        drop(before);
        Some(Poll::Pending)
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Transition 3: the word of the contended mutex; none if it is free.
    fn contend(&self) -> Option<u64> {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            if word == FREE {
                return None;
            }
            if word & CONTENDED != 0 {
                return Some(word);
            }
            match self.word.compare_exchange_weak(
                word,
                word | CONTENDED,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(word | CONTENDED),
                Err(now) => word = now,
            }
        }
    }
}

impl<T: ?Sized> Drop for Locking<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.cancel(key);
        }
    }
}

impl<T: ?Sized> Locking<'_, T> {
    #[cold]
    fn cancel(&self, key: Key) {
        let mut waiters = self.mutex.waiters.lock();
        let released = waiters.release(key);
        let Some(word) = released.granted else {
            drop(waiters);
            return;
        };
        self.mutex.hand_over(waiters);
        // What others lent us since the hand-over ends too.
        let me = context::current_id();
        if let Some(id) = me
            && holder(word) == me
        {
            context::lock_taken();
            context::lock_released(id);
        }
    }
}

impl<T: ?Sized> fmt::Debug for Locking<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locking").finish_non_exhaustive()
    }
}

/// The right to the value of a [`Mutex`]; gives it back when dropped.
#[must_use = "the mutex is given back when the guard is dropped"]
pub struct MutexGuard<'a, T: ?Sized> {
    mutex: &'a Mutex<T>,
    /// `Send` and `Sync` as an exclusive reference is.
    exclusive: PhantomData<&'a mut T>,
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: there is one guard at a time.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: there is one guard at a time, and it is borrowed exclusively.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.mutex.unlock();
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Display> fmt::Display for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// Somebody else has the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TryLockError(());

impl fmt::Display for TryLockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the mutex is held: try again later, or wait with `lock().await`")
    }
}

impl std::error::Error for TryLockError {}
