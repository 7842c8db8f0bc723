//! Requests for cancellation, in a tree.
//!
//! Invariant, under a token's lock: while the token is not cancelled, its list has all of its live
//! children; a cancelled token has no list. So the thread that cancels a token takes the list and
//! then cancels the children in it, and a child of a cancelled token is created cancelled. No two
//! locks are held at a time.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use super::lock::Lock;
use super::{Notify, OwnedNotified};

/// A token that tells any number of coroutines that they should end.
///
/// Clones are the same token. A [child](CancellationToken::child_token) is cancelled with its
/// parent, but not the parent with its child. Waiters of a token are woken most urgent level
/// first.
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
    /// Keeps the ancestors alive, because a cancellation reaches a token through its parent.
    parent: Option<Arc<Node>>,
    state: Lock<State>,
    /// An `Arc`, because [`OwnedNotified`] owns its `Notify`.
    cancellation: Arc<Notify>,
}

struct State {
    is_cancelled: bool,
    children: Vec<Weak<Node>>,
}

/// Drops the ancestors in a loop, because recursion could overflow the stack on a long chain.
impl Drop for Node {
    fn drop(&mut self) {
        let mut ancestor = self.parent.take();
        while let Some(mut node) = ancestor.and_then(Arc::into_inner) {
            ancestor = node.parent.take();
        }
    }
}

impl CancellationToken {
    /// Creates a token that is not cancelled and has no parent.
    ///
    /// ```
    /// let token = upshift::sync::CancellationToken::new();
    /// assert!(!token.is_cancelled());
    /// token.clone().cancel(); // Clones are the same token.
    /// assert!(token.is_cancelled());
    /// ```
    #[must_use]
    pub fn new() -> CancellationToken {
        CancellationToken::with_parent(None, false)
    }

    fn with_parent(parent: Option<Arc<Node>>, is_cancelled: bool) -> CancellationToken {
        CancellationToken {
            node: Arc::new(Node {
                parent,
                state: Lock::new(State {
                    is_cancelled,
                    children: Vec::new(),
                }),
                cancellation: Arc::new(Notify::new()),
            }),
        }
    }

    /// Creates a token that is cancelled with this token.
    ///
    /// ```
    /// use upshift::sync::CancellationToken;
    ///
    /// let server = CancellationToken::new();
    /// let connection = server.child_token();
    /// let other = server.child_token();
    /// connection.cancel();
    /// assert!(!server.is_cancelled() && !other.is_cancelled());
    /// server.cancel();
    /// assert!(other.is_cancelled());
    /// ```
    #[must_use]
    pub fn child_token(&self) -> CancellationToken {
        let child = CancellationToken::with_parent(Some(self.node.clone()), false);
        let mut dead_children = Vec::new();
        let mut state = self.node.state.lock();
        if state.is_cancelled {
            drop(state);
            return CancellationToken::with_parent(None, true);
        }
        // Dropped children are removed before the list grows, which costs O(1) per child on
        // average.
        if state.children.len() == state.children.capacity() {
            let children = std::mem::take(&mut state.children);
            let (live, dead): (Vec<_>, Vec<_>) = children
                .into_iter()
                .partition(|child| child.strong_count() > 0);
            state.children = live;
            let room = state.children.len().max(4);
            state.children.reserve(room);
            dead_children = dead;
        }
        state.children.push(Arc::downgrade(&child.node));
        drop(state);
        drop(dead_children);
        child
    }

    /// Cancels this token and all of its descendants. O(tokens and waiters).
    ///
    /// ```
    /// let token = upshift::sync::CancellationToken::new();
    /// let child = token.child_token();
    /// token.cancel();
    /// assert!(token.is_cancelled() && child.is_cancelled());
    /// ```
    pub fn cancel(&self) {
        let mut nodes = vec![Arc::downgrade(&self.node)];
        while let Some(node) = nodes.pop() {
            let Some(node) = node.upgrade() else {
                continue;
            };
            let mut state = node.state.lock();
            if state.is_cancelled {
                continue;
            }
            state.is_cancelled = true;
            let children = std::mem::take(&mut state.children);
            drop(state);
            node.cancellation.notify_waiters();
            nodes.extend(children);
        }
    }

    /// Returns true if the token has been cancelled.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let token = upshift::sync::CancellationToken::new();
    /// let worker_token = token.clone();
    /// let worker = upshift::task::spawn(async move {
    ///     while !worker_token.is_cancelled() {
    ///         upshift::yield_now().await;
    ///     }
    ///     "cleaned up"
    /// });
    /// token.cancel();
    /// assert_eq!(worker.await.unwrap(), "cleaned up");
    /// # });
    /// ```
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.node.state.lock().is_cancelled
    }

    /// Waits until the token is cancelled.
    ///
    /// # Cancellation safety
    /// The future may be dropped at any time.
    ///
    /// ```
    /// use upshift::sync::CancellationToken;
    ///
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let token = CancellationToken::new();
    /// let child = token.child_token();
    /// let worker = upshift::spawn(
    ///     async move {
    ///         child.cancelled().await;
    ///         "cleaned up"
    ///     },
    ///     upshift::Priority::Inherit,
    /// );
    /// token.cancel();
    /// assert_eq!(worker.await.unwrap(), "cleaned up");
    /// # });
    /// ```
    pub fn cancelled(&self) -> Cancelled {
        self.clone().cancelled_owned()
    }

    /// Waits like [`cancelled`](CancellationToken::cancelled), but consumes the token.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let token = upshift::sync::CancellationToken::new();
    /// let wait = token.clone().cancelled_owned();
    /// let waiter = upshift::spawn(wait, upshift::Priority::Inherit);
    /// token.cancel();
    /// waiter.await.unwrap();
    /// # });
    /// ```
    pub fn cancelled_owned(self) -> Cancelled {
        let notified = self.node.cancellation.clone().notified_owned();
        Cancelled {
            token: self,
            notified,
        }
    }

    /// Returns a guard that cancels the token when it is dropped.
    ///
    /// ```
    /// use upshift::sync::CancellationToken;
    ///
    /// let token = CancellationToken::new();
    /// drop(token.clone().drop_guard().disarm());
    /// assert!(!token.is_cancelled());
    /// drop(token.clone().drop_guard());
    /// assert!(token.is_cancelled());
    /// ```
    pub fn drop_guard(self) -> DropGuard {
        DropGuard { token: Some(self) }
    }

    /// Runs a future until it is ready or the token is cancelled. Returns `None` if the token was
    /// cancelled first; the future is dropped then.
    ///
    /// # Cancellation safety
    /// Like that of `future`, which is dropped with the returned future.
    ///
    /// ```
    /// use upshift::sync::CancellationToken;
    ///
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let token = CancellationToken::new();
    /// assert_eq!(token.run_until_cancelled(async { 1 }).await, Some(1));
    /// token.cancel();
    /// let forever = std::future::pending::<()>();
    /// assert_eq!(token.run_until_cancelled(forever).await, None);
    /// # });
    /// ```
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
    /// Created before the token is checked for the first time, so that no cancellation is
    /// missed.
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

/// A guard that cancels its token when it is dropped; created by [`CancellationToken::drop_guard`].
///
/// ```
/// use upshift::sync::CancellationToken;
///
/// let token = CancellationToken::new();
/// {
///     let _guard = token.clone().drop_guard();
///     assert!(!token.is_cancelled());
/// } // A scope that ends by `?` or a panic cancels the token, too.
/// assert!(token.is_cancelled());
/// ```
#[derive(Debug)]
#[must_use = "the token is cancelled when this guard is dropped"]
pub struct DropGuard {
    token: Option<CancellationToken>,
}

impl DropGuard {
    /// Returns the token without cancelling it.
    ///
    /// ```
    /// let guard = upshift::sync::CancellationToken::new().drop_guard();
    /// let token = guard.disarm();
    /// assert!(!token.is_cancelled());
    /// ```
    #[must_use]
    pub fn disarm(mut self) -> CancellationToken {
        self.token.take().expect("only `disarm` takes the token")
    }
}

impl Drop for DropGuard {
    fn drop(&mut self) {
        if let Some(token) = &self.token {
            token.cancel();
        }
    }
}
