//! Publishes the vCPU's levels on the *board*, the shared memory through which processes learn each
//! other's levels, and gives way to processes with more urgent work.

use std::time::Duration;

use upshift_core::Yielded;

use super::Worker;
use crate::board::Post;
use crate::host::Linux;
use crate::time::clock;

/// Longest sleep of a vCPU that gives way to another process.
const YIELD_SLEEP: Duration = Duration::from_micros(500);

impl Worker {
    /// Returns whether another process has something more urgent than the poll under way.
    pub(crate) fn is_outranked(&self) -> bool {
        let level = self.executor.running_level().unwrap_or_default().get();
        self.post
            .as_ref()
            .is_some_and(|post| post.is_outranked(level))
    }

    /// Publishes the poll that begins now, at this level.
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

    /// Gives way if another process has something more urgent than the next poll. `yielded` is the
    /// coroutine that has just yielded and is not queued yet, if any. Returns whether the vCPU gave
    /// way.
    #[inline]
    pub(crate) fn yields_to_others(&self, yielded: Option<&Yielded<'_, Linux>>) -> bool {
        self.post.as_ref().is_some_and(|post| {
            post.is_outranked(self.next_level(yielded)) && self.give_way(post, yielded)
        })
    }

    /// Sleeps so that a more urgent process can run, unless this process has given way for long
    /// enough. Then processes what arrived meanwhile.
    #[cold]
    fn give_way(&self, post: &Post, yielded: Option<&Yielded<'_, Linux>>) -> bool {
        let now = clock::now();
        if !post.gives_way(self.executor.bitmap(), self.next_level(yielded), now) {
            return false;
        }
        let sleep_time = self.timers.next_deadline().map_or(YIELD_SLEEP, |next| {
            YIELD_SLEEP.min(Duration::from_nanos(next.saturating_sub(now)))
        });
        self.outbox.clear();
        // A due timer shortens the sleep to zero, but another process may be ready on this CPU.
        if sleep_time.is_zero() {
            std::thread::yield_now();
        }
        if let Err(error) = self.ring.wait(Some(sleep_time)) {
            self.shared.report(&error);
        }
        self.run_pass();
        true
    }
}
