//! A barrier, at which a fixed number of coroutines wait for each other.
//!
//! Invariant, under the lock: fewer coroutines have arrived in this round than are awaited. The
//! last arrival of a round begins the next round and wakes the other coroutines, most urgent first.

use std::fmt;

use super::lock::Lock;
use super::{Notify, proceed};

/// A barrier, at which coroutines wait until a fixed number has arrived; then the next round
/// begins.
///
/// A coroutine that has begun to wait counts as arrived even if its future is dropped.
///
/// ```
/// use std::sync::Arc;
/// use upshift::{Priority, sync::Barrier};
///
/// upshift::Runtime::new()?.block_on(async {
///     let barrier = Arc::new(Barrier::new(2));
///     let theirs = barrier.clone();
///     let other = upshift::spawn(async move { theirs.wait().await }, Priority::Inherit);
///     let is_leader = barrier.wait().await.is_leader();
///     assert_ne!(is_leader, other.await.unwrap().is_leader());
/// });
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Barrier {
    awaited: usize,
    state: Lock<Round>,
    round_end: Notify,
}

struct Round {
    arrivals: usize,
    number: u64,
}

impl Barrier {
    /// Creates a barrier for `awaited` coroutines; 0 counts as 1.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let barrier = upshift::sync::Barrier::new(1);
    /// assert!(barrier.wait().await.is_leader()); // Nothing else is awaited.
    /// # });
    /// ```
    #[must_use]
    pub fn new(awaited: usize) -> Barrier {
        Barrier {
            awaited: awaited.max(1),
            state: Lock::new(Round {
                arrivals: 0,
                number: 0,
            }),
            round_end: Notify::new(),
        }
    }

    /// Waits until all coroutines of the round have arrived. The last of them is the leader.
    ///
    /// # Cancellation safety
    /// Not cancellation safe, because a future that has begun to wait counts as arrived even if it
    /// is dropped. The round then ends without one of its coroutines.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let barrier = upshift::sync::Barrier::new(1);
    /// assert!(barrier.wait().await.is_leader());
    /// # });
    /// ```
    pub async fn wait(&self) -> BarrierWaitResult {
        proceed().await;
        // The future is created before the round is read, so that the end of that round is not
        // missed.
        let mut round_end = self.round_end.notified();
        let round = {
            let mut state = self.state.lock();
            state.arrivals += 1;
            if state.arrivals < self.awaited {
                Some(state.number)
            } else {
                state.arrivals = 0;
                state.number += 1;
                None
            }
        };
        let Some(round) = round else {
            self.round_end.notify_waiters();
            return BarrierWaitResult(true);
        };
        loop {
            round_end.await;
            round_end = self.round_end.notified();
            // If the number is the same, the notification was for the end of an earlier round.
            if self.state.lock().number != round {
                return BarrierWaitResult(false);
            }
        }
    }
}

impl fmt::Debug for Barrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Barrier")
            .field("awaited", &self.awaited)
            .finish_non_exhaustive()
    }
}

/// The result of [`Barrier::wait`].
///
/// ```
/// use std::sync::Arc;
/// use upshift::sync::Barrier;
///
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let barrier = Arc::new(Barrier::new(2));
/// let theirs = barrier.clone();
/// let other = upshift::task::spawn(async move { theirs.wait().await.is_leader() });
/// let ours = barrier.wait().await.is_leader();
/// assert_ne!(ours, other.await.unwrap()); // One of both is the leader.
/// # });
/// ```
#[derive(Clone, Debug)]
pub struct BarrierWaitResult(bool);

impl BarrierWaitResult {
    /// Returns true for the last coroutine of each round.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.0
    }
}
