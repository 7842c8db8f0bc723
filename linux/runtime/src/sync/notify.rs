//! Notifications without data. At most one is stored, as a permit.
//!
//! Invariant, under the lock: while there is a waiter no permit is stored. A waiter that
//! `notify_one` chose, and that is dropped before it is polled, passes the notification on. Every
//! call takes the lock once, which costs one atomic exchange.

use std::fmt;
use std::sync::Arc;

use super::atomic::{AtomicU64, Ordering, const_fn};
use super::lock::{Guard, Lock};
use super::wait_queue::WaitQueue;
use super::wake;

mod notified;

use notified::Waiting;
pub use notified::{Notified, OwnedNotified};

/// Notifies coroutines of an event, without data.
///
/// [`notify_one`](Notify::notify_one) wakes the most urgent waiter (first come first served
/// within a level). If there is no waiter it stores a permit, which the next
/// [`notified`](Notify::notified) takes; further calls do not add to it.
/// [`notify_waiters`](Notify::notify_waiters) wakes every waiter whose `notified()` was called
/// before, and stores nothing.
///
/// ```
/// use std::sync::{Arc, atomic::{AtomicBool, Ordering}};
/// use upshift::{Priority, sync::Notify};
///
/// upshift::Runtime::new()?.block_on(async {
///     let shared = Arc::new((AtomicBool::new(false), Notify::new()));
///     let theirs = shared.clone();
///     let child = upshift::spawn(
///         async move {
///             while !theirs.0.load(Ordering::Acquire) {
///                 theirs.1.notified().await;
///             }
///         },
///         Priority::Inherit,
///     );
///     shared.0.store(true, Ordering::Release);
///     shared.1.notify_one();
///     child.await.unwrap();
/// });
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Notify {
    /// Number of calls of `notify_waiters`; changes under the lock.
    broadcasts: AtomicU64,
    state: Lock<State>,
}

struct State {
    permit: bool,
    waiters: WaitQueue<WokenBy>,
}

/// The call that took a waiter out of the queue: `None` while it is in the queue, then
/// `notify_one`, `notify_last` or `notify_waiters`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WokenBy {
    None,
    One,
    Last,
    All,
}

impl Notify {
    const_fn! {
        /// Creates a `Notify` without a permit.
        ///
        /// ```
        /// static CHANGED: upshift::sync::Notify = upshift::sync::Notify::new();
        /// ```
        #[must_use]
        pub const fn new() -> Notify {
            Notify {
                broadcasts: AtomicU64::new(0),
                state: Lock::new(State {
                    permit: false,
                    waiters: WaitQueue::new(),
                }),
            }
        }
    }

    const_fn! {
        /// Creates a `Notify` without a permit: the same as [`new`](Notify::new), under
        /// tokio's name.
        ///
        /// ```
        /// use upshift::sync::Notify;
        ///
        /// static CHANGED: Notify = Notify::const_new();
        /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
        /// CHANGED.notify_one();
        /// CHANGED.notified().await;
        /// # });
        /// ```
        #[must_use]
        pub const fn const_new() -> Notify {
            Notify::new()
        }
    }

    fn waiting(&self) -> Waiting {
        Waiting::since(self.broadcasts.load(Ordering::Acquire))
    }

    /// Waits for a notification.
    ///
    /// From this call on (not only from the first poll) the future receives
    /// `notify_waiters`; a `notify_one` is stored until a future takes it.
    ///
    /// # Cancellation safety
    /// The future may be dropped at any time. Its place in the queue is lost. A notification by
    /// `notify_one` that the future had received goes to the next waiter, or is stored.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let notify = upshift::sync::Notify::new();
    /// notify.notify_one();
    /// notify.notified().await;
    /// # });
    /// ```
    pub fn notified(&self) -> Notified<'_> {
        Notified::new(self)
    }

    /// [`notified`](Notify::notified) with a future that keeps the `Notify` alive, and can be
    /// moved into another coroutine.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use upshift::{Priority, sync::Notify};
    ///
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let notify = Arc::new(Notify::new());
    /// let waiter = upshift::spawn(notify.clone().notified_owned(), Priority::Inherit);
    /// notify.notify_one();
    /// waiter.await.unwrap();
    /// # });
    /// ```
    pub fn notified_owned(self: Arc<Self>) -> OwnedNotified {
        OwnedNotified::new(self)
    }

    /// Wakes the most urgent waiter, within a level the first in the queue, or stores the permit.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let notify = upshift::sync::Notify::new();
    /// notify.notify_one();
    /// notify.notify_one(); // Without effect: there is a permit.
    /// notify.notified().await;
    /// # });
    /// ```
    pub fn notify_one(&self) {
        self.pass_on(self.state.lock(), WokenBy::One);
    }

    /// Wakes the most urgent waiter, within a level the last in the queue, or stores the permit.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let notify = upshift::sync::Notify::new();
    /// let mut first = std::pin::pin!(notify.notified());
    /// let mut second = std::pin::pin!(notify.notified());
    /// first.as_mut().enable();
    /// second.as_mut().enable();
    /// notify.notify_last();
    /// second.await;
    /// assert!(!first.enable());
    /// # });
    /// ```
    pub fn notify_last(&self) {
        self.pass_on(self.state.lock(), WokenBy::Last);
    }

    /// Wakes all waiters, and stores no permit. O(waiters).
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let notify = upshift::sync::Notify::new();
    /// let (first, second) = (notify.notified(), notify.notified());
    /// notify.notify_waiters();
    /// first.await;
    /// second.await;
    /// # });
    /// ```
    pub fn notify_waiters(&self) {
        let mut state = self.state.lock();
        self.broadcasts.fetch_add(1, Ordering::Release);
        let wakers = state.waiters.pop_all(|_| WokenBy::All);
        drop(state);
        wakers.into_iter().for_each(wake);
    }

    /// Wakes the waiter that `by` selects, or stores the permit.
    fn pass_on(&self, mut state: Guard<'_, State>, by: WokenBy) {
        let waker = match by {
            WokenBy::Last => state.waiters.pop_newest(|_| WokenBy::Last),
            _ => state.waiters.pop(|_| WokenBy::One),
        };
        if waker.is_none() {
            state.permit = true;
        }
        drop(state);
        if let Some(waker) = waker {
            wake(waker);
        }
    }
}

impl Default for Notify {
    fn default() -> Notify {
        Notify::new()
    }
}

impl fmt::Debug for Notify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notify").finish_non_exhaustive()
    }
}
