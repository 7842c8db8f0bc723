//! Asking for an end, in a tree.
//!
//! Invariant, under a token's lock: while it is not cancelled it has all children that are
//! alive in its list; a cancelled one has none. So the thread that cancels a token takes the list and
//! goes on with it, and a child of a cancelled token is born cancelled. No two locks are held
//! at a time.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use super::lock::Lock;
use super::{Notify, OwnedNotified};

/// Lets any number of coroutines know that they should end.
///
/// Clones are the same token. A [child](CancellationToken::child_token) is cancelled with its
/// parent, and not the other way round. What waits is woken most urgent level first within a
/// token.
///
/// ```
/// use upshift::{Priority, sync::CancellationToken};
///
/// upshift::Runtime::new()?.block_on(async {
///     let token = CancellationToken::new();
///     let child = token.child_token();
///     let worker = upshift::spawn(async move { child.cancelled().await }, Priority::Inherit);
///     token.cancel();
///     worker.await.unwrap();
/// });
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct CancellationToken {
    node: Arc<Node>,
}

struct Node {
    /// Kept, because the way to a child leads through its parent.
    parent: Option<Arc<Node>>,
    state: Lock<State>,
    /// `Arc` so that a future can keep it without the token.
    cancelled: Arc<Notify>,
}

struct State {
    cancelled: bool,
    children: Vec<Weak<Node>>,
}

/// One after the other, for a chain may be long.
impl Drop for Node {
    fn drop(&mut self) {
        let mut up = self.parent.take();
        while let Some(mut node) = up.and_then(Arc::into_inner) {
            up = node.parent.take();
        }
    }
}

impl CancellationToken {
    /// Not cancelled, without a parent.
    #[must_use]
    pub fn new() -> CancellationToken {
        CancellationToken::born(None, false)
    }

    fn born(parent: Option<Arc<Node>>, cancelled: bool) -> CancellationToken {
        CancellationToken {
            node: Arc::new(Node {
                parent,
                state: Lock::new(State {
                    cancelled,
                    children: Vec::new(),
                }),
                cancelled: Arc::new(Notify::new()),
            }),
        }
    }

    /// A token that is cancelled when this one is.
    #[must_use]
    pub fn child_token(&self) -> CancellationToken {
        let child = CancellationToken::born(Some(self.node.clone()), false);
        let mut dead = Vec::new();
        let mut state = self.node.state.lock();
        if state.cancelled {
            drop(state);
            return CancellationToken::born(None, true);
        }
        // Before the list grows those that are gone make room: O(1) per child on average.
        if state.children.len() == state.children.capacity() {
            let children = std::mem::take(&mut state.children);
            let (alive, gone): (Vec<_>, Vec<_>) = children
                .into_iter()
                .partition(|child| child.strong_count() > 0);
            state.children = alive;
            let room = state.children.len().max(4);
            state.children.reserve(room);
            dead = gone;
        }
        state.children.push(Arc::downgrade(&child.node));
        drop(state);
        drop(dead);
        child
    }

    /// Cancels this token and all below it. O(tokens and waiters).
    pub fn cancel(&self) {
        let mut below = vec![Arc::downgrade(&self.node)];
        while let Some(node) = below.pop() {
            let Some(node) = node.upgrade() else {
                continue;
            };
            let mut state = node.state.lock();
            if state.cancelled {
                continue;
            }
            state.cancelled = true;
            let children = std::mem::take(&mut state.children);
            drop(state);
            node.cancelled.notify_waiters();
            below.extend(children);
        }
    }

    /// Has it been cancelled?
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.node.state.lock().cancelled
    }

    /// Waits until it is cancelled. The future may be dropped at any time.
    pub fn cancelled(&self) -> Cancelled {
        self.clone().cancelled_owned()
    }

    /// [`cancelled`](CancellationToken::cancelled) of a token that is not needed otherwise.
    pub fn cancelled_owned(self) -> Cancelled {
        let notified = self.node.cancelled.clone().notified_owned();
        Cancelled {
            token: self,
            notified,
        }
    }

    /// Cancels the token when it is dropped.
    pub fn drop_guard(self) -> DropGuard {
        DropGuard { token: Some(self) }
    }

    /// The future's output, unless the token is cancelled before.
    pub async fn run_until_cancelled<F: Future>(&self, future: F) -> Option<F::Output> {
        let mut future = std::pin::pin!(future);
        let mut cancelled = self.cancelled();
        std::future::poll_fn(|cx| {
            if Pin::new(&mut cancelled).poll(cx).is_ready() {
                return Poll::Ready(None);
            }
            future.as_mut().poll(cx).map(Some)
        })
        .await
    }
}

impl Default for CancellationToken {
    fn default() -> CancellationToken {
        CancellationToken::new()
    }
}

impl fmt::Debug for CancellationToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancellationToken")
            .field("is_cancelled", &self.is_cancelled())
            .finish()
    }
}

/// The future of [`CancellationToken::cancelled`].
#[must_use = "futures do nothing unless awaited"]
pub struct Cancelled {
    token: CancellationToken,
    /// Asked for before the first look at the token.
    notified: OwnedNotified,
}

impl Future for Cancelled {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.token.is_cancelled() {
            return Poll::Ready(());
        }
        Pin::new(&mut self.notified).poll(cx)
    }
}

impl fmt::Debug for Cancelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cancelled").finish_non_exhaustive()
    }
}

/// Cancels its token when it is dropped; made by [`CancellationToken::drop_guard`].
#[derive(Debug)]
#[must_use = "the token is cancelled when this is dropped"]
pub struct DropGuard {
    token: Option<CancellationToken>,
}

impl DropGuard {
    /// The token, which is not cancelled then.
    #[must_use]
    pub fn disarm(mut self) -> CancellationToken {
        self.token.take().expect("there until it is disarmed")
    }
}

impl Drop for DropGuard {
    fn drop(&mut self) {
        if let Some(token) = &self.token {
            token.cancel();
        }
    }
}
