//! The future of [`Mutex::lock`], which locks the mutex if the mutex is free, and otherwise queues
//! until the mutex is handed over to it. The documentation of the parent module describes the word
//! of the mutex and the numbered transitions.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::super::atomic::Ordering;
use super::super::may_proceed;
use super::super::wait_queue::Key;
use super::super::waker::LockSafeWaker;
use super::{CONTENDED, Mutex, MutexGuard, UNLOCKED, UNNAMED, holder, locked_by};
use crate::context;

/// The future of [`Mutex::lock`]. If the future is dropped after the mutex was handed to it, and
/// before it is polled again, the mutex goes to the next waiter.
#[must_use = "futures do nothing unless awaited"]
pub struct MutexLockFuture<'a, T: ?Sized> {
    mutex: &'a Mutex<T>,
    key: Option<Key>,
}

impl<'a, T: ?Sized> Future for MutexLockFuture<'a, T> {
    type Output = MutexGuard<'a, T>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<MutexGuard<'a, T>> {
        loop {
            if self.key.is_none() && self.mutex.word.load(Ordering::Relaxed) == UNLOCKED {
                if !may_proceed() {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                if let Some(guard) = self.mutex.take() {
                    return Poll::Ready(guard);
                }
            }
            if let Some(outcome) = self.poll_contended(cx) {
                return outcome;
            }
        }
    }
}

impl<'a, T: ?Sized> MutexLockFuture<'a, T> {
    pub(super) fn new(mutex: &'a Mutex<T>) -> MutexLockFuture<'a, T> {
        MutexLockFuture { mutex, key: None }
    }

    /// Queues, or takes the mutex that was handed over. Returns `None` if the mutex has just become
    /// free.
    #[cold]
    fn poll_contended(&mut self, cx: &mut Context<'_>) -> Option<Poll<MutexGuard<'a, T>>> {
        let mutex = self.mutex;
        let mut waker = LockSafeWaker::new(cx.waker());
        let mut waiters = mutex.waiters.lock();
        let runtime = mutex.runtime.load(Ordering::Relaxed);
        let word = match self.key {
            Some(key) if waiters.is_granted(key) => {
                if !may_proceed() {
                    drop(waiters);
                    cx.waker().wake_by_ref();
                    return Some(Poll::Pending);
                }
                let granted = waiters.release(key).granted.unwrap_or(UNNAMED);
                self.key = None;
                if holder(granted) != context::current_in(runtime) {
                    // The coroutine that queued is not the one that polls the future now. The word
                    // has to name the present one.
                    let (word, _) = mutex.claim_name();
                    let contended = if waiters.is_empty() { 0 } else { CONTENDED };
                    mutex.lend_on(&waiters, word);
                    mutex.word.store(word | contended, Ordering::Release);
                    mutex.release_name(granted);
                }
                drop(waiters);
                return Some(Poll::Ready(mutex.guard()));
            }
            Some(_) => mutex.word.load(Ordering::Relaxed),
            None => mutex.contend()?,
        };
        let level = context::level_to_lend().unwrap_or_default();
        // Loans change only under the queue's lock; the parent module explains why.
        let old_waker = match self.key {
            Some(key) => {
                let old_waker = waiters.refresh(key, level, &mut waker);
                mutex.update_loan(&waiters, word);
                old_waker
            }
            None => {
                let waker = waker.take();
                let me = locked_by(context::current_in(runtime));
                self.key = Some(waiters.insert(level, me, waker));
                if let Some(holder) = holder(word) {
                    context::lend_to_holder(runtime, holder);
                }
                None
            }
        };
        drop(waiters);
        drop(old_waker);
        Some(Poll::Pending)
    }
}

impl<T: ?Sized> Drop for MutexLockFuture<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.cancel(key);
        }
    }
}

impl<T: ?Sized> MutexLockFuture<'_, T> {
    #[cold]
    fn cancel(&self, key: Key) {
        let mut waiters = self.mutex.waiters.lock();
        let released = waiters.release(key);
        let Some(word) = released.granted else {
            // The future still waited, so another coroutine holds the mutex.
            let word = self.mutex.word.load(Ordering::Relaxed);
            self.mutex.update_loan(&waiters, word);
            drop(waiters);
            return;
        };
        let runtime = self.mutex.runtime.load(Ordering::Relaxed);
        self.mutex.hand_over(waiters);
        // Also ends the loans that the coroutine has received since the mutex was handed to it.
        if let Some(id) = holder(word) {
            context::record_unlock(runtime, id);
        }
    }
}

impl<T: ?Sized> fmt::Debug for MutexLockFuture<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MutexLockFuture").finish_non_exhaustive()
    }
}
