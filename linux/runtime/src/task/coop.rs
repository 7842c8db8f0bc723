//! Functions about the budget of a poll, which is the number of leaf futures (futures that wait for
//! I/O, timers or other coroutines) that may complete before the poll gives way.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::coroutine::budget;
use crate::coroutine::coop;

/// Counts as one leaf future. Gives way if the budget of this poll is used up, or if something more
/// urgent waits.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
/// use upshift::task;
///
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let ran = Arc::new(AtomicBool::new(false));
/// let theirs = ran.clone();
/// task::spawn(async move { theirs.store(true, Relaxed) }).detach();
/// while !ran.load(Relaxed) {
///     task::consume_budget().await; // Gives way after some rounds.
/// }
/// # });
/// ```
pub async fn consume_budget() {
    poll_fn(coop::poll_proceed).await;
}

/// Returns whether another leaf future may complete in this poll.
///
/// ```
/// use upshift::task::coop;
///
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let equal = upshift::task::spawn(async {});
/// while coop::has_budget_remaining() {
///     coop::consume_budget().await;
/// }
/// assert!(!equal.is_finished());
/// coop::consume_budget().await; // Gives way, and begins with a new budget.
/// assert!(equal.is_finished() && coop::has_budget_remaining());
/// # });
/// ```
#[must_use]
pub fn has_budget_remaining() -> bool {
    budget::remaining() > 0
}

/// Creates a future within which leaf futures do not use up the budget of the poll. They still give
/// way to more urgent coroutines.
///
/// ```
/// use upshift::task::coop;
///
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let equal = upshift::task::spawn(async {});
/// let long = async {
///     for _ in 0..10_000 {
///         coop::consume_budget().await;
///     }
/// };
/// coop::unconstrained(long).await;
/// assert!(!equal.is_finished());
/// # });
/// ```
pub fn unconstrained<F>(inner: F) -> Unconstrained<F> {
    Unconstrained { inner }
}

/// Future of [`unconstrained`].
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct Unconstrained<F> {
    inner: F,
}

impl<F: Future> Future for Unconstrained<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        /// Restores the budget, even if the poll panics.
        struct RestoreBudget(u32);
        impl Drop for RestoreBudget {
            fn drop(&mut self) {
                budget::replace(self.0);
            }
        }
        let _restore = RestoreBudget(budget::replace(u32::MAX));
        // SAFETY: `inner` is pinned structurally, because the struct has no `Drop`, and nothing
        // moves the field out of it.
        unsafe { self.map_unchecked_mut(|whole| &mut whole.inner) }.poll(cx)
    }
}
