//! A token bucket: so many per second, after a burst.

use std::time::Instant;

/// See the module. Time is passed in, so tests need no clock.
#[derive(Debug, Clone)]
pub struct Bucket {
    per_second: f64,
    burst: f64,
    tokens: f64,
    filled: Instant,
}

impl Bucket {
    pub fn new(per_second: u32, burst: u32, now: Instant) -> Bucket {
        Bucket {
            per_second: f64::from(per_second),
            burst: f64::from(burst.max(1)),
            tokens: f64::from(burst.max(1)),
            filled: now,
        }
    }

    /// Takes a token; `false` if there is none.
    pub fn take(&mut self, now: Instant) -> bool {
        let elapsed = now.saturating_duration_since(self.filled).as_secs_f64();
        self.filled = now;
        self.tokens = (self.tokens + elapsed * self.per_second).min(self.burst);
        let enough = self.tokens >= 1.0;
        if enough {
            self.tokens -= 1.0;
        }
        enough
    }

    /// Whether it is as full as it gets at `now`: nothing was taken for long.
    pub fn is_full(&self, now: Instant) -> bool {
        let elapsed = now.saturating_duration_since(self.filled).as_secs_f64();
        self.tokens + elapsed * self.per_second >= self.burst
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_burst_then_the_rate() {
        let start = Instant::now();
        let mut bucket = Bucket::new(100, 5, start);
        let taken = |bucket: &mut Bucket, at| (0..100).filter(|_| bucket.take(at)).count();
        assert_eq!(taken(&mut bucket, start), 5);
        assert_eq!(taken(&mut bucket, start + Duration::from_millis(21)), 2);
        assert!(!bucket.is_full(start + Duration::from_millis(30)));
        assert!(bucket.is_full(start + Duration::from_secs(1)));
        assert_eq!(taken(&mut bucket, start + Duration::from_secs(9)), 5);
    }
}
