//! Helpers that the tests of several crates share: bounded waits, and a CPU that is unplugged.

#![forbid(unsafe_code)]

mod unplug;

pub use unplug::{UnpluggedCpu, can_unplug};

use std::time::{Duration, Instant};

/// Longest wait of a test for an expected event: much longer than the event takes, because a loaded
/// or stalled machine is slow.
pub const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// Pause between two checks.
const POLL_INTERVAL: Duration = Duration::from_micros(500);

/// Waits until the condition holds.
///
/// # Panics
/// If the condition does not hold within [`WAIT_LIMIT`].
#[track_caller]
pub fn wait_until(event: &str, condition: impl FnMut() -> bool) {
    wait_within(WAIT_LIMIT, event, condition);
}

/// Waits until the condition holds.
///
/// # Panics
/// If the condition does not hold within `limit`.
#[track_caller]
pub fn wait_within(limit: Duration, event: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + limit;
    while !condition() {
        assert!(Instant::now() < end, "did not happen in {limit:?}: {event}");
        std::thread::sleep(POLL_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_the_condition() {
        let mut checks = 0;
        wait_until("three checks", || {
            checks += 1;
            checks == 3
        });
        assert_eq!(checks, 3);
    }

    #[test]
    #[should_panic(expected = "never")]
    fn a_wait_is_bounded() {
        wait_within(Duration::ZERO, "never", || false);
    }
}
