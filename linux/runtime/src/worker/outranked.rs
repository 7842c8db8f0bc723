//! The board: what the other processes of the machine are told, and when one of them goes first.

use std::time::Duration;

use upshift_core::Yielded;

use super::Worker;
use crate::board::Post;
use crate::host::Linux;
use crate::time::clock;

/// How long a vCPU sleeps after it has given way to another process.
const YIELD_SLEEP: Duration = Duration::from_micros(500);

impl Worker {
    /// Is another process to go first, before what is being polled?
    pub(crate) fn is_outranked(&self) -> bool {
        let level = self.executor.running_level().unwrap_or_default().get();
        self.post
            .as_ref()
            .is_some_and(|post| post.is_outranked(level))
    }

    /// The board is told that the next poll is of `level`.
    #[inline]
    pub(crate) fn publish(&self, level: u8) {
        if let Some(post) = &self.post {
            self.publish_on(post, level);
        }
    }

    #[inline(never)]
    fn publish_on(&self, post: &Post, level: u8) {
        post.polls(self.executor.bitmap(), level, self.executor.clock());
    }

    /// Has another process just gone first on this CPU, because what it has to do is more urgent than the next poll?
    #[inline]
    pub(crate) fn yields_to_others(&self, back: Option<&Yielded<'_, Linux>>) -> bool {
        self.post.as_ref().is_some_and(|post| {
            post.is_outranked(self.next_level(back)) && self.give_way(post, back)
        })
    }

    /// Lets a more urgent process have the CPU for a moment, unless it has had its due. Takes in what comes meanwhile.
    #[cold]
    fn give_way(&self, post: &Post, back: Option<&Yielded<'_, Linux>>) -> bool {
        let now = clock::now();
        if !post.gives_way(self.executor.bitmap(), self.next_level(back), now) {
            return false;
        }
        let moment = self.timers.next_deadline().map_or(YIELD_SLEEP, |next| {
            YIELD_SLEEP.min(Duration::from_nanos(next.saturating_sub(now)))
        });
        self.outbox.is_submitted();
        // A due timer makes it a moment of no length: another process may be ready on this CPU all the same.
        if moment.is_zero() {
            std::thread::yield_now();
        }
        if let Err(error) = self.ring.wait(Some(moment)) {
            self.shared.report(&error);
        }
        self.turn();
        true
    }
}
