//! Reads the clock, and lets the calling thread sleep.

use crate::info::ticks_per_second;
use crate::{calls, sys};

/// Returns the number of ticks since the machine started.
#[must_use]
pub fn now() -> u64 {
    sys::clock().map_or(0, |ticks| ticks as u64)
}

/// Blocks the calling thread for `micros` microseconds.
pub fn sleep_micros(micros: u64) {
    let ticks = micros * ticks_per_second() / 1_000_000;
    // The call fails only for lack of memory.
    let _ = calls::sleep_until(now() + ticks);
}
