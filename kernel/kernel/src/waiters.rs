//! Waits for a change of state that a lock protects.
//!
//! All waiters are woken and check their conditions again; the scheduler runs the most urgent
//! waiter first. No wake is lost, because a waiter checks its condition and enters the list under
//! the lock under which the state changes. The list has an entry per waiting coroutine; dropping a
//! waiter removes its entry, in O(waiters).

use alloc::vec::Vec;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};

use upshift_core::Level;

use crate::arch::lock::IrqLock;
use crate::{chaos, executor};

/// List of waiters, behind the lock of the object that they wait for.
pub(crate) struct Waiters(Vec<Waker>);

impl Waiters {
    pub(crate) const fn new() -> Waiters {
        Waiters(Vec::new())
    }

    /// Adds a coroutine. Without memory for the entry, the coroutine is woken at once, and checks
    /// its condition again.
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

    pub(crate) fn remove(&mut self, waker: &Waker) {
        self.0.retain(|known| !known.will_wake(waker));
        if self.0.is_empty() {
            // An empty list keeps no memory.
            self.0 = Vec::new();
        }
    }

    /// Takes all waiters, which the caller wakes after it has released the lock.
    #[must_use = "the waiters must be woken"]
    pub(crate) fn take(&mut self) -> Waiters {
        core::mem::replace(self, Waiters::new())
    }

    /// Wakes all waiters, in the order of their arrival.
    pub(crate) fn wake(self) {
        for waker in self.0 {
            waker.wake();
        }
    }
}

/// State that coroutines wait for.
pub(crate) trait Awaited {
    fn waiters(&mut self) -> &mut Waiters;
}

/// Waits until `condition`, called under the lock, returns a result.
pub(crate) fn wait_until<T, R, F>(lock: &IrqLock<T>, condition: F) -> impl Future<Output = R> + Send
where
    T: Awaited + Send,
    F: FnMut(&mut T) -> Option<R> + Send + Unpin,
{
    WaitUntil {
        lock,
        condition,
        registered: None,
    }
}

/// An object that is as urgent as its waiters.
pub(crate) trait Urgent: Awaited {
    /// Moves a waiter from a level to another.
    fn move_waiter(&mut self, before: Option<Level>, now: Option<Level>);
}

/// Waits like [`wait_until`], and passes the level of the waiter, and its changes, to the awaited
/// object.
pub(crate) fn wait_until_urgent<T, R, F>(
    lock: &IrqLock<T>,
    condition: F,
) -> impl Future<Output = R> + Send
where
    T: Urgent + Send,
    F: FnMut(&mut T) -> Option<R> + Send + Unpin,
{
    WaitUntilUrgent {
        lock,
        condition,
        registered: None,
        level: None,
    }
}

struct WaitUntilUrgent<'a, T: Urgent, F> {
    lock: &'a IrqLock<T>,
    condition: F,
    registered: Option<Waker>,
    level: Option<Level>,
}

impl<T: Urgent, R, F: FnMut(&mut T) -> Option<R> + Unpin> Future for WaitUntilUrgent<'_, T, F> {
    type Output = R;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<R> {
        let this = self.get_mut();
        let mut data = this.lock.lock();
        if let Some(result) = (this.condition)(&mut data) {
            return Poll::Ready(result);
        }
        data.waiters().add(cx.waker());
        // The waiter is polled again when its level changes.
        let level = executor::domain().record_wait();
        if level != this.level {
            data.move_waiter(this.level, level);
            this.level = level;
        }
        drop(data);
        this.registered = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl<T: Urgent, F> Drop for WaitUntilUrgent<'_, T, F> {
    fn drop(&mut self) {
        if let Some(waker) = self.registered.take() {
            let mut data = self.lock.lock();
            data.waiters().remove(&waker);
            if let Some(level) = self.level {
                data.move_waiter(Some(level), None);
            }
        }
    }
}

struct WaitUntil<'a, T: Awaited, F> {
    lock: &'a IrqLock<T>,
    condition: F,
    /// Waker that is in the list, unless the list has been taken.
    registered: Option<Waker>,
}

impl<T: Awaited, R, F: FnMut(&mut T) -> Option<R> + Unpin> Future for WaitUntil<'_, T, F> {
    type Output = R;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<R> {
        let this = self.get_mut();
        let mut data = this.lock.lock();
        if let Some(result) = (this.condition)(&mut data) {
            return Poll::Ready(result);
        }
        data.waiters().add(cx.waker());
        drop(data);
        this.registered = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl<T: Awaited, F> Drop for WaitUntil<'_, T, F> {
    fn drop(&mut self) {
        if let Some(waker) = self.registered.take() {
            self.lock.lock().waiters().remove(&waker);
        }
    }
}
