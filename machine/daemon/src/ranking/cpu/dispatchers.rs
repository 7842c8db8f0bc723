//! Limits the CPU time of the dispatchers on one CPU. A dispatcher is a thread that sleeps on the
//! I/O ring of a vCPU that is not elevated, and reports its completions.
//!
//! Dispatchers run above all workers, so together they may use only `dispatcher_percent` of the
//! CPU. All users share one token bucket. While it is overdrawn, the dispatchers of users that have
//! used more than an equal part of it are ordinary.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use upshift_core::TokenBucket;

use crate::bounds::{bucket_per_second, nanos, timestamp_ns};
use crate::cpu::monitor::CHECK_INTERVAL;

/// CPU time of dispatchers since the last check, by user.
pub(super) type UsageByUser = HashMap<u32, Duration>;

#[derive(Debug)]
pub(super) struct Dispatchers {
    percent: u32,
    /// CPU time in ns; holds at most the time between two checks.
    bucket: TokenBucket,
    /// Users whose dispatchers are ordinary until the bucket is refilled.
    overspent: HashSet<u32>,
}

impl Dispatchers {
    pub(super) fn new(percent: u32, now: Instant) -> Dispatchers {
        let rate = nanos(Duration::from_secs(1) * percent / 100);
        Dispatchers {
            percent,
            bucket: bucket_per_second(rate, nanos(CHECK_INTERVAL), now),
            overspent: HashSet::new(),
        }
    }

    pub(super) fn has_overspent(&self, user: u32) -> bool {
        self.overspent.contains(&user)
    }

    /// Charges the CPU time `used` within `elapsed`. Returns the users whose dispatchers become
    /// ordinary.
    pub(super) fn charge(
        &mut self,
        used: &UsageByUser,
        elapsed: Duration,
        now: Instant,
    ) -> Vec<u32> {
        let total: Duration = used.values().sum();
        if self.bucket.charge(nanos(total), timestamp_ns(now)) {
            self.overspent.clear();
            return Vec::new();
        }
        let busy = used.values().filter(|time| !time.is_zero()).count() as u32;
        let budget = elapsed * self.percent / 100;
        let above_part = used.iter().filter(|&(_, &time)| time * busy > budget);
        let demoted = above_part.filter(|&(&user, _)| self.overspent.insert(user));
        demoted.map(|(&user, _)| user).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_users_above_an_equal_part_are_demoted() {
        let mut now = Instant::now();
        let mut dispatchers = Dispatchers::new(20, now);
        let (mut used_by_7, checks) = (Duration::ZERO, 1000);
        for _ in 0..checks {
            now += CHECK_INTERVAL;
            let time = if dispatchers.has_overspent(7) {
                Duration::ZERO
            } else {
                CHECK_INTERVAL
            };
            used_by_7 += time;
            let used = HashMap::from([(7, time), (8, CHECK_INTERVAL / 36)]);
            let _ = dispatchers.charge(&used, CHECK_INTERVAL, now);
            assert!(
                !dispatchers.has_overspent(8),
                "user 8 is ordinary, but has used less than an equal part"
            );
        }
        // Both users together may use 20 %, of which user 8 uses 2.8 %. The bounds leave a margin.
        let percent = used_by_7.as_nanos() * 100 / (CHECK_INTERVAL * checks).as_nanos();
        assert!((10..=21).contains(&percent), "user 7 used {percent} %");
    }
}
