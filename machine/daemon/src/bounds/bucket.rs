//! [`TokenBucket`]: an allowance that refills with time.
//!
//! Integer arithmetic without loss; the caller passes the time, so tests need no clock. O(1), no
//! allocation, no system call.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// Parts of a token: with a rate in tokens per second, one nanosecond makes `rate` of them.
const PARTS: i128 = 1_000_000_000;

/// Holds up to `burst` tokens and gains `rate` of them per second.
///
/// A token is one unit of the owner's: a request, a ring, a nanosecond of CPU time.
/// [`TokenBucket::charge`] may leave a debt, which is paid off at the same rate.
#[derive(Debug, Clone)]
pub struct TokenBucket {
    rate: u64,
    burst: u64,
    /// Parts of tokens; negative: a debt.
    level: i128,
    /// Time of the last refill, ns.
    filled: u64,
}

impl TokenBucket {
    /// Creates a full bucket at `now`, ns of a monotonic clock.
    pub fn new(rate: u64, burst: u64, now: u64) -> TokenBucket {
        TokenBucket {
            rate,
            burst,
            level: i128::from(burst) * PARTS,
            filled: now,
        }
    }

    /// Changes rate and burst; tokens beyond the new burst are lost.
    pub fn set_rate(&mut self, rate: u64, burst: u64, now: u64) {
        self.refill(now);
        (self.rate, self.burst) = (rate, burst);
        self.refill(now);
    }

    fn refill(&mut self, now: u64) {
        let elapsed = now.saturating_sub(self.filled);
        self.filled = self.filled.max(now);
        let gained = i128::from(elapsed) * i128::from(self.rate);
        self.level = (self.level + gained).min(i128::from(self.burst) * PARTS);
    }

    /// Takes `tokens` if the bucket holds as many; returns whether it did.
    pub fn take(&mut self, tokens: u64, now: u64) -> bool {
        self.refill(now);
        let taken = i128::from(tokens) * PARTS;
        let enough = self.level >= taken;
        if enough {
            self.level -= taken;
        }
        enough
    }

    /// Takes `tokens`, on credit if need be; returns whether any are left.
    pub fn charge(&mut self, tokens: u64, now: u64) -> bool {
        self.refill(now);
        self.level -= i128::from(tokens) * PARTS;
        self.level > 0
    }

    /// Returns the time in ns until any debt is paid off; zero without a debt.
    pub fn wait(&mut self, now: u64) -> u64 {
        self.refill(now);
        let debt = (-self.level).max(0);
        let wait = (debt + i128::from(self.rate) - 1) / i128::from(self.rate.max(1));
        u64::try_from(wait).unwrap_or(u64::MAX)
    }

    /// Returns whether nothing was taken for long enough that the bucket is full.
    pub fn is_full(&mut self, now: u64) -> bool {
        self.refill(now);
        self.level == i128::from(self.burst) * PARTS
    }
}

/// Returns `now` in ns, for a bucket.
pub(crate) fn ns(now: Instant) -> u64 {
    static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    whole(now.saturating_duration_since(*ORIGIN))
}

/// Returns `time` in ns.
pub(crate) fn whole(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_burst_then_the_rate() {
        let mut bucket = TokenBucket::new(100, 5, 7);
        let taken = |bucket: &mut TokenBucket, at| (0..100).filter(|_| bucket.take(1, at)).count();
        assert_eq!(taken(&mut bucket, 7), 5);
        assert_eq!(taken(&mut bucket, 7 + 21 * MS), 2);
        assert!(!bucket.is_full(7 + 30 * MS));
        assert!(bucket.is_full(7 + 1000 * MS));
        assert_eq!(taken(&mut bucket, 7 + 9000 * MS), 5);
    }

    #[test]
    fn a_debt_is_paid_off_at_the_rate() {
        // A fifth of the time, in ns.
        let mut bucket = TokenBucket::new(200 * MS, 4 * MS, 0);
        assert!(bucket.charge(3 * MS, 0));
        assert!(!bucket.charge(3 * MS, 0));
        assert_eq!(bucket.wait(0), 10 * MS);
        assert_eq!(bucket.wait(10 * MS), 0);
        assert!(!bucket.take(1, 10 * MS) && bucket.take(1, 11 * MS));
        bucket.set_rate(0, 0, 11 * MS);
        assert!(!bucket.charge(0, 20 * MS));
    }

    proptest! {
        #[test]
        fn no_more_is_taken_than_burst_and_rate_give(
            (rate, burst) in (1..1_000_000_000u64, 1..1_000_000u64),
            steps in prop::collection::vec((0..100 * MS, 1..1_000_000u64), 1..100),
        ) {
            let (mut bucket, mut now, mut taken) = (TokenBucket::new(rate, burst, 0), 0, 0u128);
            for (time, tokens) in steps {
                now += time;
                taken += u128::from(if bucket.take(tokens, now) { tokens } else { 0 });
            }
            let gained = u128::from(rate) * u128::from(now) / 1_000_000_000;
            prop_assert!(taken <= u128::from(burst) + gained);
        }
    }
}
