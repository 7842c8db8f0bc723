//! The monotonic time since the first reading in this process.

use std::sync::OnceLock;
use std::time::Instant;

fn start() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now)
}

/// Returns the nanoseconds since the first reading.
pub(crate) fn nanos() -> u64 {
    u64::try_from(start().elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the milliseconds since the first reading plus one, so that 0 can mean "never".
pub(crate) fn millis() -> u64 {
    nanos() / 1_000_000 + 1
}
