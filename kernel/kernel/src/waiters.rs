//! Waiting for a change of something that is behind a lock.
//!
//! Every waiter is woken and looks again; the scheduler lets the most
//! urgent look first. No wake is lost: a waiter looks and enters the list under
//! the lock under which the thing changes. The list is as long as there are
//! waiting coroutines; one that is dropped takes its entry out, O(waiters).

use alloc::vec::Vec;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};

use upshift_core::Level;

use crate::arch::lock::IrqLock;
use crate::{chaos, executor};

/// The list of waiters. It lives behind the lock of the object that they wait for.
pub(crate) struct Waiters(Vec<Waker>);

impl Waiters {
    /// Creates an empty list.
    pub(crate) const fn new() -> Waiters {
        Waiters(Vec::new())
    }

    /// Adds a coroutine. If there is no memory for it, it is woken at once and
    /// so looks again in its turn.
    pub(crate) fn add(&mut self, waker: &Waker) {
        if self.0.iter().any(|known| known.will_wake(waker)) {
            return;
        }
        if !chaos::is_out_of_memory(16) && self.0.try_reserve(1).is_ok() {
            self.0.push(waker.clone());
        } else {
            waker.wake_by_ref();
        }
    }

    /// Takes a coroutine out again.
    pub(crate) fn remove(&mut self, waker: &Waker) {
        self.0.retain(|known| !known.will_wake(waker));
        if self.0.is_empty() {
            // Without a waiter it keeps no memory.
            self.0 = Vec::new();
        }
    }

    /// Takes all waiters, to be woken after the lock is released.
    #[must_use = "they are to be woken"]
    pub(crate) fn take(&mut self) -> Waiters {
        core::mem::replace(self, Waiters::new())
    }

    /// Wakes all waiters, in the order in which they came.
    pub(crate) fn wake(self) {
        for waker in self.0 {
            waker.wake();
        }
    }
}

/// Something that coroutines wait for.
pub(crate) trait Awaited {
    /// Returns the waiters.
    fn waiters(&mut self) -> &mut Waiters;
}

/// Waits until `look`, called under the lock, returns a result.
pub(crate) fn until<T, R, F>(lock: &IrqLock<T>, look: F) -> impl Future<Output = R> + Send
where
    T: Awaited + Send,
    F: FnMut(&mut T) -> Option<R> + Send + Unpin,
{
    Until {
        lock,
        look,
        listed: None,
    }
}

/// An object that is as urgent as its waiters.
pub(crate) trait Urgent: Awaited {
    /// Moves a waiter from a level to another.
    fn waits(&mut self, before: Option<Level>, now: Option<Level>);
}

/// Waits like [`until`], and passes the waiter's urgency, and its changes, to the awaited object.
pub(crate) fn until_urgent<T, R, F>(lock: &IrqLock<T>, look: F) -> impl Future<Output = R> + Send
where
    T: Urgent + Send,
    F: FnMut(&mut T) -> Option<R> + Send + Unpin,
{
    UntilUrgent {
        lock,
        look,
        listed: None,
        level: None,
    }
}

struct UntilUrgent<'a, T: Urgent, F> {
    lock: &'a IrqLock<T>,
    look: F,
    listed: Option<Waker>,
    /// The level at which it is known to wait.
    level: Option<Level>,
}

impl<T: Urgent, R, F: FnMut(&mut T) -> Option<R> + Unpin> Future for UntilUrgent<'_, T, F> {
    type Output = R;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<R> {
        let this = self.get_mut();
        let mut data = this.lock.lock();
        if let Some(found) = (this.look)(&mut data) {
            return Poll::Ready(found);
        }
        data.waiters().add(cx.waker());
        // The waiter is polled again when its level changes.
        let level = executor::domain().waits();
        if level != this.level {
            data.waits(this.level, level);
            this.level = level;
        }
        drop(data);
        this.listed = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl<T: Urgent, F> Drop for UntilUrgent<'_, T, F> {
    fn drop(&mut self) {
        if let Some(waker) = self.listed.take() {
            let mut data = self.lock.lock();
            data.waiters().remove(&waker);
            if let Some(level) = self.level {
                data.waits(Some(level), None);
            }
        }
    }
}

struct Until<'a, T: Awaited, F> {
    lock: &'a IrqLock<T>,
    look: F,
    /// The waker that is in the list, unless it has been taken from there.
    listed: Option<Waker>,
}

impl<T: Awaited, R, F: FnMut(&mut T) -> Option<R> + Unpin> Future for Until<'_, T, F> {
    type Output = R;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<R> {
        let this = self.get_mut();
        let mut data = this.lock.lock();
        if let Some(found) = (this.look)(&mut data) {
            return Poll::Ready(found);
        }
        data.waiters().add(cx.waker());
        drop(data);
        this.listed = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl<T: Awaited, F> Drop for Until<'_, T, F> {
    fn drop(&mut self) {
        if let Some(waker) = self.listed.take() {
            self.lock.lock().waiters().remove(&waker);
        }
    }
}
