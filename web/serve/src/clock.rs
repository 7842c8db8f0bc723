//! Time since the first call in this process, monotonic.

use std::sync::OnceLock;
use std::time::Instant;

fn began() -> Instant {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    *BEGAN.get_or_init(Instant::now)
}

/// Nanoseconds, from a reading of the clock.
pub(crate) fn nanos() -> u64 {
    u64::try_from(began().elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Milliseconds plus one, so that 0 can mean "never".
pub(crate) fn millis() -> u64 {
    nanos() / 1_000_000 + 1
}
