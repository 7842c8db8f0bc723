//! What a poll may do before it gives way: leaf futures that complete, pieces of a transfer, tests between two looks at the clock.
//! `coop.rs` spends it.

use std::cell::Cell;
use std::time::Duration;

/// Leaf futures that may complete in one poll.
pub(crate) const LEAVES: u32 = 128;
/// What a poll may spend on pieces of a transfer.
pub(crate) const SHARE: Duration = Duration::from_micros(100);

/// What a poll may do before it gives way or looks at the clock.
pub(crate) struct Budget {
    /// Leaf futures that may complete.
    leaves: Cell<u32>,
    /// Tests until the next look at the clock.
    pub(crate) tests: Cell<u32>,
    /// So many there were to be from the last look to this one.
    pub(crate) step: Cell<u32>,
    /// Ticks of the last look.
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

/// A poll begins: its first test looks at the clock.
#[inline]
pub(crate) fn refill() {
    BUDGET.with(|budget| {
        budget.leaves.set(LEAVES);
        budget.tests.set(1);
        budget.step.set(1);
    });
}

/// How many more leaf futures may complete in this poll; and another number from now on.
#[inline]
pub(crate) fn replace(left: u32) -> u32 {
    BUDGET.with(|budget| budget.leaves.replace(left))
}

/// How many more leaf futures may complete in this poll.
#[inline]
pub(crate) fn left() -> u32 {
    BUDGET.with(|budget| budget.leaves.get())
}
