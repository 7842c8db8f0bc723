//! Publishes the vCPU's levels on the board, and gives way to more urgent processes.

use std::time::Duration;

use upshift_core::Yielded;

use super::Worker;
use crate::board::Post;
use crate::host::Linux;
use crate::time::clock;

/// Sleep of a vCPU that gives way to another process.
const YIELD_SLEEP: Duration = Duration::from_micros(500);

impl Worker {
    /// Returns whether another process has something more urgent than the poll under way.
    pub(crate) fn is_outranked(&self) -> bool {
        let level = self.executor.running_level().unwrap_or_default().get();
        self.post
            .as_ref()
            .is_some_and(|post| post.is_outranked(level))
    }

    /// Publishes the level of the next poll on the board.
    #[inline]
    pub(crate) fn publish(&self, level: u8) {
        if let Some(post) = &self.post {
            self.publish_on(post, level);
        }
    }

    #[inline(never)]
    fn publish_on(&self, post: &Post, level: u8) {
        post.publish_poll(self.executor.bitmap(), level, self.executor.clock());
    }

    /// Gives way if another process has something more urgent than the next poll. Returns whether
    /// it gave way.
    #[inline]
    pub(crate) fn yields_to_others(&self, back: Option<&Yielded<'_, Linux>>) -> bool {
        self.post.as_ref().is_some_and(|post| {
            post.is_outranked(self.next_level(back)) && self.give_way(post, back)
        })
    }

    /// Leaves the CPU to a more urgent process for a moment, unless this process has given way for
    /// long enough. Reaps arrivals afterwards.
    #[cold]
    fn give_way(&self, post: &Post, back: Option<&Yielded<'_, Linux>>) -> bool {
        let now = clock::now();
        if !post.gives_way(self.executor.bitmap(), self.next_level(back), now) {
            return false;
        }
        let moment = self.timers.next_deadline().map_or(YIELD_SLEEP, |next| {
            YIELD_SLEEP.min(Duration::from_nanos(next.saturating_sub(now)))
        });
        self.outbox.clear();
        // A due timer shortens the moment to zero, but another process may be ready on this CPU.
        if moment.is_zero() {
            std::thread::yield_now();
        }
        if let Err(error) = self.ring.wait(Some(moment)) {
            self.shared.report(&error);
        }
        self.run_pass();
        true
    }
}
