//! What the watcher's looks cost: the least was measured when the runtime was built, the rest is the watcher's own CPU time.

use std::cmp::Ordering;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use upshift_core::preempt::Looks;

use super::thread::own_cpu_time;

/// A running median moves towards each time by one part in so many.
const STEPS: u64 = 16;

/// Of one watcher, whose thread makes it and asks it.
pub(super) struct Prices {
    /// What a look takes of others on a vCPU that does nothing else.
    least: Looks,
    /// The watcher's own CPU time at the end of the last look.
    used: u64,
    /// Running medians of looks because of an event, and by the clock.
    by_event: Median,
    by_timer: Median,
}

impl Prices {
    pub(super) fn new(least: Looks) -> Prices {
        Prices {
            least,
            used: own_cpu_time(),
            by_event: Median::new(least.event),
            by_timer: Median::new(least.timer),
        }
    }

    /// The price of the look that ends now, and has brought nothing: at least what it takes of others, and at least what the watcher has used.
    pub(super) fn of_vain_look(&mut self, by_timer: bool) -> u64 {
        let before = self.used;
        self.begin();
        let used = self.used.saturating_sub(before);
        let (least, median) = match by_timer {
            true => (self.least.timer, &self.by_timer),
            false => (self.least.event, &self.by_event),
        };
        let cost = least.max(used);
        median.add(cost);
        cost
    }

    /// What the watcher has used before is for something else.
    pub(super) fn begin(&mut self) {
        self.used = own_cpu_time();
    }

    /// What looks in vain have cost lately.
    pub(super) fn lately(&self) -> Looks {
        Looks {
            event: self.by_event.get(),
            timer: self.by_timer.get(),
        }
    }
}

/// A running median of times, ns: what takes as long as the machine stands still, or others have the CPU, counts no more than what is just above it.
pub(super) struct Median(AtomicU64);

impl Median {
    pub(super) fn new(start: u64) -> Median {
        Median(AtomicU64::new(start.max(STEPS)))
    }

    /// One thread at a time.
    pub(super) fn add(&self, time: u64) {
        let median = self.0.load(Relaxed);
        let step = median / STEPS;
        let median = match time.cmp(&median) {
            Ordering::Less => (median - step).max(STEPS),
            Ordering::Equal => median,
            Ordering::Greater => median + step,
        };
        self.0.store(median, Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_times_are_below_the_median() {
        let median = Median::new(1_000);
        // One in eight takes a thousand times as long.
        for n in 0..4_000 {
            median.add(if n % 8 == 0 {
                20_000_000
            } else {
                15_000 + n % 8 * 1_000
            });
        }
        assert!((17_000..22_000).contains(&median.get()), "{}", median.get());
    }
}
