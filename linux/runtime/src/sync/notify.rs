//! Waking without data: at most one stored permit.
//!
//! Invariant, under the lock: while there is a waiter no permit is stored. A waiter
//! that `notify_one` chose and that is dropped before it ran hands the
//! notification on. Every call takes the lock once: one atomic step.

use std::fmt;
use std::sync::Arc;

use super::atomic::{AtomicU64, Ordering, const_fn};
use super::lock::{Guard, Lock};
use super::wait_queue::WaitQueue;
use super::wake;

mod notified;

use notified::Waiting;
pub use notified::{Notified, OwnedNotified};

/// Wakes coroutines that wait for something to have happened.
///
/// [`notify_one`](Notify::notify_one) wakes the most urgent waiter (first come
/// first served within a level). If nothing waits it stores a permit, which the
/// next [`notified`](Notify::notified) takes; further calls do not add to it.
/// [`notify_waiters`](Notify::notify_waiters) wakes every waiter whose `notified()`
/// was called before, and stores nothing.
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
    /// Calls of `notify_waiters`; changes under the lock.
    broadcasts: AtomicU64,
    state: Lock<State>,
}

struct State {
    permit: bool,
    waiters: WaitQueue<By>,
}

/// Which call took a waiter out of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    None,
    One,
    Last,
    All,
}

impl Notify {
    const_fn! {
        /// Without a permit.
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
        /// [`new`](Notify::new), which is `const` too.
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
    /// From the moment of this call (not only of the first poll) the future sees
    /// `notify_waiters`; it can miss no `notify_one`, which is stored.
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

    /// [`notified`](Notify::notified) with a future that keeps the `Notify` alive.
    pub fn notified_owned(self: Arc<Self>) -> OwnedNotified {
        OwnedNotified::new(self)
    }

    /// Wakes the most urgent waiter, of equals the one that waits longest, or stores
    /// the permit.
    pub fn notify_one(&self) {
        self.pass_on(self.state.lock(), By::One);
    }

    /// Wakes the most urgent waiter, of equals the one that came last, or stores the
    /// permit.
    pub fn notify_last(&self) {
        self.pass_on(self.state.lock(), By::Last);
    }

    /// Wakes all waiters. O(waiters).
    pub fn notify_waiters(&self) {
        let mut state = self.state.lock();
        self.broadcasts.fetch_add(1, Ordering::Release);
        let woken = state.waiters.pop_all(|_| By::All);
        drop(state);
        woken.into_iter().for_each(wake);
    }

    fn pass_on(&self, mut state: Guard<'_, State>, by: By) {
        let waker = match by {
            By::Last => state.waiters.pop_newest(|_| By::Last),
            _ => state.waiters.pop(|_| By::One),
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
