//! Reads the monotonic time since the first call in this process.

use std::sync::OnceLock;
use std::time::Instant;

fn began() -> Instant {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    *BEGAN.get_or_init(Instant::now)
}

pub(crate) fn nanos() -> u64 {
    u64::try_from(began().elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Returns milliseconds plus one, so that 0 can mean "never".
pub(crate) fn millis() -> u64 {
    nanos() / 1_000_000 + 1
}
