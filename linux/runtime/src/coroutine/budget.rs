//! Limits what a coroutine may do in one poll, so that others get a turn: how many leaf futures
//! (futures that wait for I/O, timers or other coroutines) may complete, how long the poll may
//! spend on pieces of a transfer (its *share*), and how many preemption tests it may make until it
//! reads the clock again. `coop.rs` spends this budget.

use std::cell::Cell;
use std::time::Duration;

pub(crate) const LEAVES: u32 = 128;
pub(crate) const SHARE: Duration = Duration::from_micros(100);

pub(crate) struct Budget {
    leaves: Cell<u32>,
    /// Preemption tests until the next reading of the clock.
    pub(crate) tests: Cell<u32>,
    /// Number of tests planned between the last reading and the next one.
    pub(crate) step: Cell<u32>,
    pub(crate) looked: Cell<u64>,
}

thread_local! {
    pub(crate) static BUDGET: Budget = const {
        Budget {
            leaves: Cell::new(LEAVES),
            tests: Cell::new(1),
            step: Cell::new(1),
            looked: Cell::new(0),
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

/// Returns the former number.
#[inline]
pub(crate) fn replace(left: u32) -> u32 {
    BUDGET.with(|budget| budget.leaves.replace(left))
}

#[inline]
pub(crate) fn remaining() -> u32 {
    BUDGET.with(|budget| budget.leaves.get())
}
