//! Limits what a coroutine may do in one poll, so that other coroutines run, too. The limits are
//! the number of leaf futures (futures that wait for I/O, timers or other coroutines) that may
//! complete, the time that the poll may spend on pieces of a transfer (its *share*), and the number
//! of preemption tests that it may make until it reads the clock again. `coop.rs` spends this
//! budget.

use std::cell::Cell;
use std::time::Duration;

/// Number of leaf futures that may complete in a poll.
pub(crate) const LEAVES: u32 = 128;
/// Time that a poll may spend on pieces of a transfer.
pub(crate) const SHARE: Duration = Duration::from_micros(100);

pub(crate) struct Budget {
    leaves: Cell<u32>,
    /// Number of preemption tests until the next reading of the clock.
    pub(crate) tests: Cell<u32>,
    /// Number of tests planned between the last reading and the next one.
    pub(crate) step: Cell<u32>,
    /// Tick of the last reading of the clock.
    pub(crate) last_reading: Cell<u64>,
}

thread_local! {
    pub(crate) static BUDGET: Budget = const {
        Budget {
            leaves: Cell::new(LEAVES),
            tests: Cell::new(1),
            step: Cell::new(1),
            last_reading: Cell::new(0),
        }
    };
}

/// Resets the budget at the beginning of a poll. The first test in the poll reads the clock.
#[inline]
pub(crate) fn refill() {
    BUDGET.with(|budget| {
        budget.leaves.set(LEAVES);
        budget.tests.set(1);
        budget.step.set(1);
    });
}

/// Sets the number of leaf futures that may still complete in the poll. Returns the former number.
#[inline]
pub(crate) fn replace(left: u32) -> u32 {
    BUDGET.with(|budget| budget.leaves.replace(left))
}

#[inline]
pub(crate) fn remaining() -> u32 {
    BUDGET.with(|budget| budget.leaves.get())
}
