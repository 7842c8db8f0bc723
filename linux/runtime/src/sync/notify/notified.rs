//! The futures of [`Notify::notified`] and [`Notify::notified_owned`].

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::super::atomic::Ordering;
use super::super::wait_queue::Key;
use super::super::waker::LockSafeWaker;
use super::super::{may_proceed, waiting_level};
use super::{Notify, WokenBy};

/// The state of a `notified` future.
pub(super) struct Waiting {
    /// Number of broadcasts when the future was created.
    broadcasts: u64,
    stage: Stage,
}

#[derive(Clone, Copy)]
enum Stage {
    /// Not in the queue yet.
    New,
    /// In the queue, or chosen by a notification.
    Waiting(Key),
    /// Notified.
    Done,
}

impl Waiting {
    /// Creates the state of a future that was created after `broadcasts` broadcasts.
    pub(super) fn since(broadcasts: u64) -> Waiting {
        Waiting {
            broadcasts,
            stage: Stage::New,
        }
    }

    fn enable(&mut self, notify: &Notify) -> bool {
        self.advance(notify, &mut Context::from_waker(Waker::noop()), false)
            .is_ready()
    }

    /// Polls for a notification. With `give_way`, the result is not ready while the coroutine
    /// should give way to other coroutines.
    fn advance(&mut self, notify: &Notify, cx: &mut Context<'_>, give_way: bool) -> Poll<()> {
        let old_waker;
        let mut waker = LockSafeWaker::new(cx.waker());
        let mut state = notify.state.lock();
        let is_ready = match self.stage {
            Stage::Done => true,
            Stage::Waiting(key) => state.waiters.is_granted(key),
            Stage::New => {
                state.permit || notify.broadcasts.load(Ordering::Relaxed) != self.broadcasts
            }
        };
        if is_ready {
            if give_way && !may_proceed() {
                drop(state);
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            match self.stage {
                Stage::Done => {}
                Stage::Waiting(key) => drop(state.waiters.release(key)),
                Stage::New => {
                    // A notification by broadcast leaves the stored permit in place.
                    if notify.broadcasts.load(Ordering::Relaxed) == self.broadcasts {
                        state.permit = false;
                    }
                }
            }
            self.stage = Stage::Done;
            return Poll::Ready(());
        }
        match self.stage {
            Stage::Waiting(key) => {
                old_waker = state.waiters.refresh(key, waiting_level(), &mut waker);
                drop(state);
                drop(old_waker);
            }
            _ => {
                let waker = waker.take();
                self.stage =
                    Stage::Waiting(state.waiters.insert(waiting_level(), WokenBy::None, waker));
            }
        }
        Poll::Pending
    }

    /// Leaves the queue, and passes on a notification that was received but not used.
    fn cancel(&mut self, notify: &Notify) {
        if let Stage::Waiting(key) = self.stage {
            let mut state = notify.state.lock();
            let released = state.waiters.release(key);
            match released.granted {
                Some(by @ (WokenBy::One | WokenBy::Last)) => notify.pass_on(state, by),
                _ => drop(state),
            }
        }
    }
}

/// The future of [`Notify::notified`].
///
/// When it is dropped after `notify_one` chose it, the next waiter is woken (or the permit stored)
/// instead.
///
/// ```
/// use upshift::sync::Notify;
///
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let notify = Notify::new();
/// // A future created before the notification does not miss it.
/// let notified = notify.notified();
/// notify.notify_waiters();
/// notified.await;
/// # });
/// ```
#[must_use = "futures do nothing unless awaited"]
pub struct Notified<'a> {
    notify: &'a Notify,
    waiting: Waiting,
}

impl<'a> Notified<'a> {
    pub(super) fn new(notify: &'a Notify) -> Notified<'a> {
        let waiting = notify.waiting();
        Notified { notify, waiting }
    }

    /// Enters the queue now instead of at the first poll. Returns true if the future has already
    /// been notified; it then takes the notification.
    ///
    /// From then on a `notify_one` reaches this future before any future that is polled later. Call
    /// `enable` before a condition is checked, so that no notification is missed in between.
    ///
    /// ```
    /// let notify = upshift::sync::Notify::new();
    /// let mut notified = std::pin::pin!(notify.notified());
    /// assert!(!notified.as_mut().enable());
    /// notify.notify_one();
    /// assert!(notified.enable());
    /// ```
    pub fn enable(mut self: Pin<&mut Self>) -> bool {
        let notify = self.notify;
        self.waiting.enable(notify)
    }
}

impl Future for Notified<'_> {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let notify = self.notify;
        self.waiting.advance(notify, cx, true)
    }
}

impl Drop for Notified<'_> {
    fn drop(&mut self) {
        self.waiting.cancel(self.notify);
    }
}

impl fmt::Debug for Notified<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notified").finish_non_exhaustive()
    }
}

/// The future of [`Notify::notified_owned`]; otherwise like [`Notified`].
///
/// ```
/// use std::sync::Arc;
/// use upshift::sync::Notify;
///
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let notify = Arc::new(Notify::new());
/// let waiter = upshift::task::spawn(notify.clone().notified_owned());
/// notify.notify_waiters();
/// waiter.await.unwrap();
/// # });
/// ```
#[must_use = "futures do nothing unless awaited"]
pub struct OwnedNotified {
    notify: Arc<Notify>,
    waiting: Waiting,
}

impl OwnedNotified {
    pub(super) fn new(notify: Arc<Notify>) -> OwnedNotified {
        let waiting = notify.waiting();
        OwnedNotified { notify, waiting }
    }

    /// Enters the queue now instead of at the first poll; see [`Notified::enable`].
    pub fn enable(self: Pin<&mut Self>) -> bool {
        let OwnedNotified { notify, waiting } = self.get_mut();
        waiting.enable(notify)
    }
}

impl Future for OwnedNotified {
    type Output = ();
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let OwnedNotified { notify, waiting } = self.get_mut();
        waiting.advance(notify, cx, true)
    }
}

impl Drop for OwnedNotified {
    fn drop(&mut self) {
        self.waiting.cancel(&self.notify);
    }
}

impl fmt::Debug for OwnedNotified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedNotified").finish_non_exhaustive()
    }
}
