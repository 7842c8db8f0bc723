//! A place where so many meet.
//!
//! Invariant, under the lock: fewer have arrived in this round than are awaited. The one
//! that completes the round begins the next one and wakes the others, most urgent first.

use std::fmt;

use super::lock::Lock;
use super::{Notify, proceed};

/// Lets no coroutine pass until so many have arrived; then all of them, and the next round begins.
///
/// A coroutine that has begun to wait counts as arrived, also if its future is dropped.
///
/// ```
/// use std::sync::Arc;
/// use upshift::{Priority, sync::Barrier};
///
/// upshift::Runtime::new()?.block_on(async {
///     let barrier = Arc::new(Barrier::new(2));
///     let theirs = barrier.clone();
///     let other = upshift::spawn(async move { theirs.wait().await }, Priority::Inherit);
///     let led = barrier.wait().await.is_leader();
///     assert_ne!(led, other.await.unwrap().is_leader());
/// });
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Barrier {
    awaited: usize,
    state: Lock<Round>,
    over: Notify,
}

struct Round {
    arrived: usize,
    number: u64,
}

impl Barrier {
    /// For so many; 0 counts as 1.
    #[must_use]
    pub fn new(awaited: usize) -> Barrier {
        Barrier {
            awaited: awaited.max(1),
            state: Lock::new(Round {
                arrived: 0,
                number: 0,
            }),
            over: Notify::new(),
        }
    }

    /// Waits until all have arrived. One of each round is the leader: the last.
    pub async fn wait(&self) -> BarrierWaitResult {
        proceed().await;
        // Made before the round is looked at, so it sees the end of it.
        let mut over = self.over.notified();
        let round = {
            let mut state = self.state.lock();
            state.arrived += 1;
            if state.arrived < self.awaited {
                Some(state.number)
            } else {
                state.arrived = 0;
                state.number += 1;
                None
            }
        };
        let Some(round) = round else {
            self.over.notify_waiters();
            return BarrierWaitResult(true);
        };
        loop {
            over.await;
            over = self.over.notified();
            // Else it was the end of the round before.
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

/// What [`Barrier::wait`] gives.
#[derive(Clone, Debug)]
pub struct BarrierWaitResult(bool);

impl BarrierWaitResult {
    /// Is it the one of its round that was last?
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.0
    }
}
