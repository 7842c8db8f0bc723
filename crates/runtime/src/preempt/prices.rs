//! What the watcher's looks cost: the least was measured when the runtime was built, the rest is the watcher's own CPU time.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use upshift_core::preempt::Looks;

use super::thread::own_cpu_time;

/// Of one watcher, whose thread makes it and asks it.
pub(super) struct Prices {
    /// What a look takes of others on a vCPU that does nothing else.
    least: Looks,
    /// The watcher's own CPU time at the end of the last look.
    used: u64,
    /// Moving averages of looks because of an event, and by the clock.
    by_event: Mean,
    by_timer: Mean,
}

impl Prices {
    pub(super) fn new(least: Looks) -> Prices {
        Prices {
            least,
            used: own_cpu_time(),
            by_event: Mean::new(least.event),
            by_timer: Mean::new(least.timer),
        }
    }

    /// The price of the look that ends now: at least what it takes of others, and at least what the watcher has used.
    pub(super) fn of_look(&mut self, by_timer: bool) -> u64 {
        let before = std::mem::replace(&mut self.used, own_cpu_time());
        let used = self.used.saturating_sub(before);
        let (least, mean) = match by_timer {
            true => (self.least.timer, &self.by_timer),
            false => (self.least.event, &self.by_event),
        };
        let cost = least.max(used);
        mean.add(cost);
        cost
    }

    /// What looks have cost lately.
    pub(super) fn lately(&self) -> Looks {
        Looks {
            event: self.by_event.get(),
            timer: self.by_timer.get(),
        }
    }
}

/// A running mean of times, ns. What is far off (the machine stood still) counts as twice the mean.
pub(super) struct Mean(AtomicU64);

impl Mean {
    pub(super) fn new(start: u64) -> Mean {
        Mean(AtomicU64::new(start.max(8)))
    }

    /// One thread at a time.
    pub(super) fn add(&self, time: u64) {
        let mean = self.0.load(Relaxed);
        self.0.store((7 * mean + time.min(2 * mean)) / 8, Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}
