//! The budget of a poll: how many leaf futures may complete in it before it gives way.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::coroutine::budget;
use crate::coroutine::coop;

/// Gives way if the budget of this poll is used up, or something more urgent waits; else
/// counts as one leaf future.
pub async fn consume_budget() {
    poll_fn(coop::poll_proceed).await;
}

/// May another leaf future complete in this poll?
#[must_use]
pub fn has_budget_remaining() -> bool {
    budget::left() > 0
}

/// A future within which leaf futures do not use up the budget of the poll. They still give
/// way to what is more urgent.
pub fn unconstrained<F>(inner: F) -> Unconstrained<F> {
    Unconstrained { inner }
}

/// Made by [`unconstrained`].
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct Unconstrained<F> {
    inner: F,
}

impl<F: Future> Future for Unconstrained<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        /// Puts the budget back, also if the poll panics.
        struct Back(u32);
        impl Drop for Back {
            fn drop(&mut self) {
                budget::replace(self.0);
            }
        }
        let _back = Back(budget::replace(u32::MAX));
        // SAFETY: a pinned field of a pinned whole; there is no `Drop`, and nothing moves it.
        unsafe { self.map_unchecked_mut(|whole| &mut whole.inner) }.poll(cx)
    }
}
