//! A mutex that may be held across `await`, with priority inheritance. A waiter *lends* its level
//! to the holder, so the holder runs at least at that level until it unlocks.
//!
//! The state is one word, so that a coroutine that finds the mutex taken learns from the same read
//! which coroutine holds it:
//!
//! ```text
//!   bits 63..32     31         30      29..0
//!   generation   CONTENDED   LOCKED   index        of the holder; 0 = free
//! ```
//!
//! Transitions (1 and 2 are one compare-exchange, all others happen under the queue's lock):
//!
//! ```text
//!            1 lock                     3 wait
//!     free ──────────► locked(holder) ──────────► locked(holder) CONTENDED
//!       ▲ ◄──────────    2 unlock                   │ 4 unlock: hand over
//!       └───────────────────────────────────────────┤   to the next waiter,
//!              4 no waiter is left                   └──► locked(next) [CONTENDED]
//! ```
//!
//! * A contended mutex is never free, so no newcomer can take it before its next holder.
//! * CONTENDED is set before a waiter is in the queue, so transition 2 cannot miss a waiter.
//! * All ids belong to one runtime, *the mutex's runtime*: that of the first coroutine that takes
//!   the mutex. Holders and waiters of other runtimes have no name here; they neither lend nor
//!   receive a level. When the mutex's runtime is gone and no waiter is in the queue, an unnamed
//!   holder makes its own runtime the mutex's. So an id is never looked up in a runtime other than
//!   its own.
//! * The coroutine that the word names counts the mutex among its locks, before the word names the
//!   coroutine, and until the word no longer names it. So a level that was lent for this mutex does
//!   not end when the coroutine releases another lock.
//! * A waiter lends under the queue's lock. Under that lock it also withdraws the loan, when it
//!   gives up or is polled at a less urgent level. A holder with waiters takes the queue's lock
//!   before it reports the release, so all loans for this mutex end with the release.
//! * If a future was handed the mutex and is dropped before it is polled, its drop performs
//!   transition 4.
//!
//! To lock and unlock without contention costs two atomic read-modify-writes, and two updates of
//! the scheduler's count of the locks that the coroutine holds. A guard may be dropped on any
//! thread.

use std::cell::UnsafeCell;
use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};

use upshift_core::{CoroutineId, Level};

use super::atomic::{AtomicU64, Ordering, const_fn};
use super::lock::{self, Lock};
use super::wait_queue::WaitQueue;
use super::wake;
use crate::context::{self, LockOwner};

mod guard;
mod lock_future;
mod owned;

pub use guard::{MutexGuard, TryLockError};
pub use lock_future::MutexLockFuture;
pub use owned::OwnedMutexGuard;

// Values and bits of the word; see the documentation of the module.
const UNLOCKED: u64 = 0;
const CONTENDED: u64 = 1 << 31;
const LOCKED: u64 = 1 << 30;
/// Mask of the holder's index.
const INDEX: u64 = LOCKED - 1;
/// The holder has no id in the mutex's runtime.
const UNNAMED: u64 = LOCKED | INDEX;
/// Number that stands for the runtime of a mutex that no coroutine has taken yet.
const NO_RUNTIME: u64 = 0;

#[inline]
fn locked_by(holder: Option<CoroutineId>) -> u64 {
    match holder {
        Some(id) if u64::from(id.index()) < INDEX => id.to_u64() | LOCKED,
        _ => UNNAMED,
    }
}

#[inline]
fn holder(word: u64) -> Option<CoroutineId> {
    (word & INDEX != INDEX).then(|| CoroutineId::from_u64(word & !(CONTENDED | LOCKED)))
}

/// An exclusive lock that may be held across `await`s.
///
/// * Waiters are served most urgent level first, first come first served within a level. The lock
///   is handed over, so no newcomer takes it in between.
/// * A waiter *lends its level* to the coroutine that holds the lock, which avoids priority
///   inversion: urgent work waits only for the critical section, and not for all work at the levels
///   between.
/// * Coroutines of several runtimes may share a mutex. Only the coroutines of one runtime lend: the
///   runtime that used the mutex first or, once that runtime is gone, another.
/// * There is no poisoning. When a coroutine panics, the lock is released, and the next holder sees
///   the value as it was left.
///
/// A lock and an unlock without contention cost two atomic operations. For a critical section of a
/// few instructions without `await`, use `std::sync::Mutex`.
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
    /// Number of the runtime whose ids are in the word and in the queue.
    runtime: AtomicU64,
    /// The waiters, each with the word that will name it as the holder.
    waiters: Lock<WaitQueue<u64>>,
    value: UnsafeCell<T>,
}

// SAFETY: sending a mutex sends its value, and `T: Send` allows that.
unsafe impl<T: ?Sized + Send> Send for Mutex<T> {}
// SAFETY: a shared mutex gives out one exclusive reference at a time, which only moves the value
// between threads. `T: Send` allows that.
unsafe impl<T: ?Sized + Send> Sync for Mutex<T> {}

impl<T: ?Sized> UnwindSafe for Mutex<T> {}
impl<T: ?Sized> RefUnwindSafe for Mutex<T> {}

impl<T> Mutex<T> {
    const_fn! {
        /// Creates an unlocked mutex.
        ///
        /// ```
        /// static COUNT: upshift::sync::Mutex<u32> = upshift::sync::Mutex::new(0);
        /// ```
        #[must_use]
        pub const fn new(value: T) -> Mutex<T> {
            Mutex {
                word: AtomicU64::new(UNLOCKED),
                runtime: AtomicU64::new(NO_RUNTIME),
                waiters: Lock::new(WaitQueue::new()),
                value: UnsafeCell::new(value),
            }
        }
    }

    const_fn! {
        /// Creates an unlocked mutex: the same as [`new`](Mutex::new), under tokio's name.
        #[must_use]
        pub const fn const_new(value: T) -> Mutex<T> {
            Mutex::new(value)
        }
    }

    /// Consumes the mutex and returns the value.
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
    /// Locks the mutex, waiting until it is free.
    ///
    /// # Cancellation safety
    /// The future may be dropped at any time. It then leaves the queue, and a lock that it had been
    /// handed goes to the next waiter. If it is polled again after it was ready, it locks once
    /// more.
    ///
    /// # Deadlock
    /// A coroutine that locks a mutex that it holds waits for ever.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let list = upshift::sync::Mutex::new(Vec::new());
    /// list.lock().await.push(1);
    /// assert_eq!(list.into_inner(), [1]);
    /// # });
    /// ```
    #[inline]
    pub fn lock(&self) -> MutexLockFuture<'_, T> {
        MutexLockFuture::new(self)
    }

    /// Locks the mutex if it is free.
    ///
    /// # Errors
    /// [`TryLockError`] if the mutex is locked.
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
        if self.word.load(Ordering::Relaxed) != UNLOCKED {
            return Err(TryLockError::new());
        }
        self.take().ok_or(TryLockError::new())
    }

    /// Returns the value without locking, because the caller has exclusive access to the mutex.
    ///
    /// ```
    /// let mut mutex = upshift::sync::Mutex::new(1);
    /// *mutex.get_mut() += 1;
    /// assert_eq!(mutex.into_inner(), 2);
    /// ```
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// Transition 1: locks the mutex if it is free.
    #[inline]
    fn take(&self) -> Option<MutexGuard<'_, T>> {
        let (word, other_runtime) = self.claim_name();
        // Release, too, so that a thread that reads the word sees the runtime of the id in it.
        let exchange =
            self.word
                .compare_exchange(UNLOCKED, word, Ordering::AcqRel, Ordering::Relaxed);
        if exchange.is_err() {
            self.release_name(word);
            return None;
        }
        if let Some(number) = other_runtime {
            self.replace_runtime(number);
        }
        Some(self.guard())
    }

    /// Returns the word of a mutex that the caller locks, and the number of the caller's runtime if
    /// that is not the mutex's. If the word names the caller, the mutex now counts among the
    /// caller's locks.
    #[inline]
    fn claim_name(&self) -> (u64, Option<u64>) {
        let runtime = self.runtime.load(Ordering::Relaxed);
        match context::record_lock(runtime) {
            LockOwner::Named(id) => (self.word_of(id), None),
            LockOwner::Elsewhere(number) if runtime == NO_RUNTIME => self.adopt_runtime(number),
            LockOwner::Elsewhere(number) => (UNNAMED, Some(number)),
            LockOwner::Unnamed => (UNNAMED, None),
        }
    }

    /// Returns the word that names this holder, which already counts the mutex among its locks.
    #[inline]
    fn word_of(&self, id: CoroutineId) -> u64 {
        let word = locked_by(Some(id));
        if word == UNNAMED {
            // The index does not fit into the word, so the holder stays unnamed.
            context::record_unlock(self.runtime.load(Ordering::Relaxed), id);
        }
        word
    }

    /// Makes the caller's runtime the mutex's runtime, if no coroutine has taken the mutex yet.
    /// Until then neither the word nor a waiter in the queue has named a coroutine. Returns the
    /// result of [`claim_name`](Mutex::claim_name).
    #[cold]
    fn adopt_runtime(&self, number: u64) -> (u64, Option<u64>) {
        let exchange =
            self.runtime
                .compare_exchange(NO_RUNTIME, number, Ordering::Relaxed, Ordering::Relaxed);
        match exchange {
            Ok(_) => self.claim_name(),
            Err(runtime) if runtime == number => self.claim_name(),
            Err(_) => (UNNAMED, None),
        }
    }

    /// Makes the caller's runtime the mutex's if the former runtime is gone. The caller holds the
    /// mutex without a name.
    #[cold]
    fn replace_runtime(&self, number: u64) {
        if context::is_alive(self.runtime.load(Ordering::Relaxed)) {
            return;
        }
        let waiters = self.waiters.lock();
        if !waiters.is_empty() || self.word.load(Ordering::Relaxed) & !CONTENDED != UNNAMED {
            return;
        }
        // The former runtime is gone, so none of its coroutines is being polled.
        self.runtime.store(number, Ordering::Relaxed);
        let (word, _) = self.claim_name();
        // The caller holds the mutex and the queue's lock, so no other thread changes the word.
        let contended = self.word.load(Ordering::Relaxed) & CONTENDED;
        self.word.store(word | contended, Ordering::Release);
        drop(waiters);
    }

    /// Creates the guard. The caller has locked the mutex.
    #[inline]
    fn guard(&self) -> MutexGuard<'_, T> {
        MutexGuard::new(self)
    }

    /// Removes the mutex from the locks of the holder that `word` names.
    #[inline]
    fn release_name(&self, word: u64) {
        if let Some(id) = holder(word) {
            context::record_unlock(self.runtime.load(Ordering::Relaxed), id);
        }
    }

    /// Transitions 2 and 4. The caller holds the mutex.
    #[inline]
    fn unlock(&self) {
        let word = self.word.load(Ordering::Relaxed);
        // The runtime stays while the word names a holder; afterwards it may change.
        let runtime = self.runtime.load(Ordering::Relaxed);
        let freed = word & CONTENDED == 0
            && self
                .word
                .compare_exchange(word, UNLOCKED, Ordering::Release, Ordering::Relaxed)
                .is_ok();
        if !freed {
            self.hand_over(self.waiters.lock());
        }
        if let Some(id) = holder(word) {
            context::record_unlock(runtime, id);
        }
    }

    /// Transition 4.
    #[cold]
    fn hand_over(&self, mut waiters: lock::Guard<'_, WaitQueue<u64>>) {
        let runtime = self.runtime.load(Ordering::Relaxed);
        let mut next = UNLOCKED;
        waiters.settle_first(|word| level_of(runtime, word));
        let waker = waiters.pop(|word| {
            next = match holder(word) {
                // The coroutine that queued has ended; its future has been moved elsewhere.
                Some(id) if !context::record_handover(runtime, id) => UNNAMED,
                _ => word,
            };
            next
        });
        if !waiters.is_empty() {
            self.lend_on(&waiters, next);
            next |= CONTENDED;
        }
        self.word.store(next, Ordering::Release);
        drop(waiters);
        if let Some(waker) = waker {
            wake(waker);
        }
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Lends the level of the first waiter to the next holder, because the waiters have lent only
    /// to the former holder. The next holder is at least as urgent now, but its level may change
    /// before it unlocks.
    fn lend_on(&self, waiters: &WaitQueue<u64>, next: u64) {
        if let Some((level, waiting)) = waiters.first()
            && waiting != UNNAMED
            && let Some(id) = holder(next)
        {
            context::lend(self.runtime.load(Ordering::Relaxed), id, level);
        }
    }

    /// Adjusts the loan of the holder in `word` after a waiter left or changed its level.
    fn update_loan(&self, waiters: &WaitQueue<u64>, word: u64) {
        let level = match waiters.first() {
            // An unnamed waiter has lent nothing, and named waiters behind it may have lent.
            Some((_, UNNAMED)) => return,
            Some((level, _)) => Some(level),
            None => None,
        };
        if let Some(id) = holder(word) {
            context::set_loan(self.runtime.load(Ordering::Relaxed), id, level);
        }
    }
}

/// Returns the present level of the waiter that `word` names.
fn level_of(runtime: u64, word: u64) -> Option<Level> {
    holder(word).and_then(|id| context::level_of(runtime, id))
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
            Ok(value) => f.debug_struct("Mutex").field("data", &&*value).finish(),
            Err(_) => {
                let locked = format_args!("<locked>");
                f.debug_struct("Mutex").field("data", &locked).finish()
            }
        }
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Transition 3. Returns the word of the contended mutex, or `None` if it is free.
    fn contend(&self) -> Option<u64> {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            if word == UNLOCKED {
                return None;
            }
            if word & CONTENDED != 0 {
                return Some(word);
            }
            match self.word.compare_exchange_weak(
                word,
                word | CONTENDED,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(word | CONTENDED),
                Err(now) => word = now,
            }
        }
    }
}
