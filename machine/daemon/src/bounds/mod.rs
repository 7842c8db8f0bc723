//! Limits on the CPU time of users, programs and cgroups.

pub(crate) mod quota;

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use upshift_core::TokenBucket;

/// Creates a full bucket that gains `rate` tokens per second and holds `burst`. The owner defines a
/// token: a request, a ring, a nanosecond of CPU time.
pub(crate) fn bucket_per_second(rate: u64, burst: u64, now: Instant) -> TokenBucket {
    TokenBucket::with_rate((rate, SECOND), burst, timestamp_ns(now))
}

/// Nanoseconds of a second.
pub(crate) const SECOND: u64 = 1_000_000_000;

/// Returns `now` as a timestamp of token buckets, ns.
pub(crate) fn timestamp_ns(now: Instant) -> u64 {
    static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    nanos(now.saturating_duration_since(*ORIGIN))
}

pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
