//! Where the time of each hart goes: threads by level, and idleness. The rest is that of the
//! kernel's coroutines.
//!
//! Kept under the lock of the queue. A hart that turns to something else reads the clock once.

use os_abi::HartStatus;

use super::{NOTHING, USERS};
use crate::clock;

/// A hart that waits for an interrupt.
pub(super) const IDLE: u8 = HartStatus::IDLE as u8;

/// Time of a hart.
#[derive(Clone, Copy)]
pub(super) struct Times {
    /// Level of the thread that runs, [`IDLE`] or [`NOTHING`].
    doing: u8,
    /// Start of that.
    since: u64,
    ticks: [u64; HartStatus::LEVELS],
}

impl Times {
    pub(super) const fn new() -> Times {
        Times {
            doing: NOTHING,
            since: 0,
            ticks: [0; HartStatus::LEVELS],
        }
    }

    /// Notes that the hart does something else from now on.
    pub(super) fn set(&mut self, doing: u8) {
        if self.doing != doing {
            self.settle(clock::now());
            self.doing = doing;
        }
    }

    /// Adds the time up to `now` to the level of the hart.
    fn settle(&mut self, now: u64) {
        if let Some(ticks) = self.ticks.get_mut(usize::from(self.doing)) {
            *ticks += now.saturating_sub(self.since);
        }
        self.since = now;
    }
}

/// Tells of a hart.
pub(crate) fn status(index: usize) -> HartStatus {
    let mut users = USERS.lock();
    let now = clock::now();
    let process = users.harts[index].process as u64;
    let times = &mut users.times[index];
    times.settle(now);
    HartStatus {
        process,
        now,
        ticks: times.ticks,
    }
}
