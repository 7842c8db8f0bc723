//! A mutex that may be held across `await`, and lends.
//!
//! The state is one word, so that a coroutine that finds the mutex taken knows in the same
//! step by which thread:
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
//!              4 nothing waits (any more)            └──► locked(next) [CONTENDED]
//! ```
//!
//! * A contended mutex is never free: no other can take it before its next holder.
//! * CONTENDED is set before a waiter is in the queue, so 2 cannot miss a waiter.
//! * Ids are those of one runtime, *the mutex's runtime*: the first that takes it. Holders
//!   and waiters of other runtimes have no name here, and neither lend nor are lent to.
//!   It changes only when that runtime is gone, by an unnamed holder, with no waiter in
//!   the queue: so a word never outlives the runtime that gives it its meaning.
//! * The coroutine that the word names counts the mutex among its locks, from before the word
//!   says so until after: so what it is lent for one lock does not end with another.
//! * A waiter lends under the queue's lock, and takes back there what it has lent, when it gives up
//!   or is polled and has become less urgent. A holder with waiters goes through that lock before it
//!   reports the release: what was lent to it for this mutex ends with this mutex.
//! * A future that was handed the mutex and is dropped instead of polled does 4.
//!
//! Uncontended: two atomic read-modify-writes, and what the scheduler does to know
//! how many locks a coroutine holds. A guard may be dropped on any thread.

use std::cell::UnsafeCell;
use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};

use upshift_core::{CoroutineId, Level};

use super::atomic::{AtomicU64, Ordering, const_fn};
use super::lock::{self, Lock};
use super::wait_queue::WaitQueue;
use super::wake;
use crate::context::{self, Taker};

mod guard;
mod locking;
mod owned;

pub use guard::{MutexGuard, TryLockError};
pub use locking::Locking;
pub use owned::OwnedMutexGuard;

const UNLOCKED: u64 = 0;
const CONTENDED: u64 = 1 << 31;
const LOCKED: u64 = 1 << 30;
const INDEX: u64 = LOCKED - 1;
/// Locked by what has no name.
const UNNAMED: u64 = LOCKED | INDEX;
/// The runtime of a mutex that no coroutine has taken yet.
const NO_RUNTIME: u64 = 0;

/// The word of a mutex that `holder` has.
#[inline]
fn locked_by(holder: Option<CoroutineId>) -> u64 {
    match holder {
        Some(id) if u64::from(id.index()) < INDEX => id.to_u64() | LOCKED,
        _ => UNNAMED,
    }
}

/// What has it, by its word.
#[inline]
fn holder(word: u64) -> Option<CoroutineId> {
    (word & INDEX != INDEX).then(|| CoroutineId::from_u64(word & !(CONTENDED | LOCKED)))
}

/// Exclusive access to a `T`, also across `await`s.
///
/// * Waiters are served most urgent level first, first come first served within a
///   level. The lock is handed over: no other takes it in between.
/// * A waiter *lends its level* to the coroutine that holds the lock, so that what
///   is urgent waits for the critical section only, not for everything of the
///   levels between (priority inversion).
/// * Coroutines of several runtimes may share one. They lend within the runtime that
///   used it first; when that is gone, within another.
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
    /// The number of the runtime whose ids are in the word and in the queue.
    runtime: AtomicU64,
    waiters: Lock<WaitQueue<u64>>,
    value: UnsafeCell<T>,
}

// SAFETY: the value is moved to, or reached from, one thread at a time.
unsafe impl<T: ?Sized + Send> Send for Mutex<T> {}
// SAFETY: as above; a shared mutex gives out one exclusive reference at a time.
unsafe impl<T: ?Sized + Send> Sync for Mutex<T> {}

impl<T: ?Sized> UnwindSafe for Mutex<T> {}
impl<T: ?Sized> RefUnwindSafe for Mutex<T> {}

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
                word: AtomicU64::new(UNLOCKED),
                runtime: AtomicU64::new(NO_RUNTIME),
                waiters: Lock::new(WaitQueue::new()),
                value: UnsafeCell::new(value),
            }
        }
    }

    const_fn! {
        /// [`new`](Mutex::new), which is `const` too.
        #[must_use]
        pub const fn const_new(value: T) -> Mutex<T> {
            Mutex::new(value)
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
        Locking::new(self)
    }

    /// The lock if it is free.
    ///
    /// # Errors
    /// [`TryLockError`]: it is taken.
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

    /// The value: exclusive access to the mutex needs no lock.
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
    fn take(&self) -> Option<MutexGuard<'_, T>> {
        let (word, elsewhere) = self.name();
        // Release too: a reader of the word sees the runtime it belongs to.
        let taken = self
            .word
            .compare_exchange(UNLOCKED, word, Ordering::AcqRel, Ordering::Relaxed);
        if taken.is_err() {
            self.forget(word);
            return None;
        }
        if let Some(number) = elsewhere {
            self.settle_anew(number);
        }
        Some(self.guard())
    }

    /// The word of a mutex that the caller has, counted among its locks; with the
    /// caller's runtime if that is not the mutex's.
    #[inline]
    fn name(&self) -> (u64, Option<u64>) {
        let runtime = self.runtime.load(Ordering::Relaxed);
        match context::lock_taken(runtime) {
            Taker::Named(id) => (self.word_of(id), None),
            Taker::Elsewhere(number) if runtime == NO_RUNTIME => self.settle(number),
            Taker::Elsewhere(number) => (UNNAMED, Some(number)),
            Taker::Unnamed => (UNNAMED, None),
        }
    }

    /// The word of a holder that has been counted.
    #[inline]
    fn word_of(&self, id: CoroutineId) -> u64 {
        let word = locked_by(Some(id));
        if word == UNNAMED {
            // An index that does not fit.
            context::lock_released(self.runtime.load(Ordering::Relaxed), id);
        }
        word
    }

    /// The first coroutine: no word and no waiter has had a name yet.
    #[cold]
    fn settle(&self, number: u64) -> (u64, Option<u64>) {
        let settled =
            self.runtime
                .compare_exchange(NO_RUNTIME, number, Ordering::Relaxed, Ordering::Relaxed);
        match settled {
            Ok(_) => self.name(),
            Err(runtime) if runtime == number => self.name(),
            Err(_) => (UNNAMED, None),
        }
    }

    /// The caller has the mutex without a name, and is of this runtime: makes it the mutex's
    /// if the other one is gone.
    #[cold]
    fn settle_anew(&self, number: u64) {
        if context::is_alive(self.runtime.load(Ordering::Relaxed)) {
            return;
        }
        let waiters = self.waiters.lock();
        if !waiters.is_empty() || self.word.load(Ordering::Relaxed) & !CONTENDED != UNNAMED {
            return;
        }
        // The coroutine that took it under the old name is being polled no more.
        self.runtime.store(number, Ordering::Relaxed);
        let (word, _) = self.name();
        // The queue's lock is held, and the word is ours: no other thread changes it.
        let contended = self.word.load(Ordering::Relaxed) & CONTENDED;
        self.word.store(word | contended, Ordering::Release);
        drop(waiters);
    }

    /// The caller has made the word its own.
    #[inline]
    fn guard(&self) -> MutexGuard<'_, T> {
        MutexGuard::new(self)
    }

    /// The word names its holder no more.
    #[inline]
    fn forget(&self, word: u64) {
        if let Some(id) = holder(word) {
            context::lock_released(self.runtime.load(Ordering::Relaxed), id);
        }
    }

    /// Transitions 2 and 4. The caller holds the lock.
    #[inline]
    fn unlock(&self) {
        let word = self.word.load(Ordering::Relaxed);
        // While it is named the runtime stays; afterwards it may change.
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
            context::lock_released(runtime, id);
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
                // Its future has moved on, and it is gone.
                Some(id) if !context::lock_granted(runtime, id) => UNNAMED,
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
    /// Those that still wait have lent to the holder before. The next one is as urgent as they are, but its level may change before it
    /// has given the mutex back.
    fn lend_on(&self, waiters: &WaitQueue<u64>, next: u64) {
        if let Some((level, waiting)) = waiters.first()
            && waiting != UNNAMED
            && let Some(id) = holder(next)
        {
            context::lend(self.runtime.load(Ordering::Relaxed), id, level);
        }
    }

    /// A waiter has another level, or waits no more: what the holder in `word` is lent follows.
    fn lend_again(&self, waiters: &WaitQueue<u64>, word: u64) {
        let level = match waiters.first() {
            // Its level is not known here; those behind it may have lent.
            Some((_, UNNAMED)) => return,
            Some((level, _)) => Some(level),
            None => None,
        };
        if let Some(id) = holder(word) {
            context::lend_again(self.runtime.load(Ordering::Relaxed), id, level);
        }
    }
}

/// The level of the waiter that `word` names.
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
    /// Transition 3: the word of the contended mutex; none if it is free.
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
