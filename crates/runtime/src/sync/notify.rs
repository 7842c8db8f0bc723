//! Waking without data: at most one stored permit.
//!
//! Invariant, under the lock: while there is a waiter no permit is stored. A waiter
//! that `notify_one` chose and that is dropped before it ran hands the
//! notification on. Every call takes the lock once: one atomic step.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use super::atomic::{AtomicU64, Ordering, const_fn};
use super::lock::{Guard, Lock};
use super::spare::Spare;
use super::wait_queue::{Key, WaitQueue};
use super::{may_proceed, waiting_level};

/// Wakes coroutines that wait for something to have happened.
///
/// [`notify_one`](Notify::notify_one) wakes the most urgent waiter (first come
/// first served within a level). If nothing waits it stores a permit, which the
/// next [`notified`](Notify::notified) takes; further calls do not add to it.
/// [`notify_waiters`](Notify::notify_waiters) wakes everybody whose `notified()`
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
    Nobody,
    One,
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
        Notified {
            notify: self,
            broadcasts: self.broadcasts.load(Ordering::Acquire),
            stage: Stage::New,
        }
    }

    /// Wakes the most urgent waiter, or stores the permit.
    pub fn notify_one(&self) {
        self.pass_on(self.state.lock());
    }

    /// Wakes all waiters. O(waiters).
    pub fn notify_waiters(&self) {
        let mut state = self.state.lock();
        self.broadcasts.fetch_add(1, Ordering::Release);
        let woken = state.waiters.pop_all(|_| By::All);
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }

    fn pass_on(&self, mut state: Guard<'_, State>) {
        let waker = state.waiters.pop(|_| By::One);
        if waker.is_none() {
            state.permit = true;
        }
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
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

/// The future of [`Notify::notified`].
///
/// When it is dropped after `notify_one` chose it, the next waiter is woken (or
/// the permit stored) instead.
#[must_use = "futures do nothing unless awaited"]
pub struct Notified<'a> {
    notify: &'a Notify,
    broadcasts: u64,
    stage: Stage,
}

#[derive(Clone, Copy)]
enum Stage {
    New,
    Waiting(Key),
    Done,
}

impl Notified<'_> {
    /// Enters the queue now instead of at the first poll; true if there already
    /// is a notification for it, which it takes.
    ///
    /// Then a `notify_one` from here on counts for this future before any that is
    /// polled later.
    ///
    /// ```
    /// let notify = upshift::sync::Notify::new();
    /// let mut notified = notify.notified();
    /// assert!(!notified.enable());
    /// notify.notify_one();
    /// assert!(notified.enable());
    /// ```
    pub fn enable(&mut self) -> bool {
        self.advance(&mut Context::from_waker(Waker::noop()), false)
            .is_ready()
    }

    fn advance(&mut self, cx: &mut Context<'_>, give_way: bool) -> Poll<()> {
        let before;
        let mut waker = Spare::of(cx.waker());
        let mut state = self.notify.state.lock();
        let here = match self.stage {
            Stage::Done => true,
            Stage::Waiting(key) => state.waiters.granted(key),
            Stage::New => {
                state.permit || self.notify.broadcasts.load(Ordering::Relaxed) != self.broadcasts
            }
        };
        if here {
            if give_way && !may_proceed() {
                drop(state);
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            match self.stage {
                Stage::Done => {}
                Stage::Waiting(key) => drop(state.waiters.release(key)),
                Stage::New => {
                    // A broadcast takes no permit away.
                    if self.notify.broadcasts.load(Ordering::Relaxed) == self.broadcasts {
                        state.permit = false;
                    }
                }
            }
            self.stage = Stage::Done;
            return Poll::Ready(());
        }
        match self.stage {
            Stage::Waiting(key) => {
                before = state.waiters.refresh(key, waiting_level(), &mut waker);
                drop(state);
                drop(before);
            }
            _ => {
                let waker = waker.take();
                self.stage =
                    Stage::Waiting(state.waiters.insert(waiting_level(), By::Nobody, waker));
            }
        }
        Poll::Pending
    }
}

impl Future for Notified<'_> {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.advance(cx, true)
    }
}

impl Drop for Notified<'_> {
    fn drop(&mut self) {
        if let Stage::Waiting(key) = self.stage {
            let mut state = self.notify.state.lock();
            let released = state.waiters.release(key);
            if released.granted == Some(By::One) {
                self.notify.pass_on(state);
            } else {
                drop(state);
            }
        }
    }
}

impl fmt::Debug for Notified<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notified").finish_non_exhaustive()
    }
}
