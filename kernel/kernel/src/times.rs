//! Accounts for each hart's time: the time of threads by level, and the idle time. The remaining
//! time belongs to kernel coroutines.
//!
//! A hart records its own activity, and reads the clock only if the activity changes. So a switch
//! between threads of one level reads no clock. The choice of the next thread is charged to the
//! previous thread.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU8, AtomicU64};

use os_abi::HartStatus;

use crate::clock;

/// Activity of a hart that waits for an interrupt.
pub(crate) const IDLE: u8 = HartStatus::IDLE as u8;
/// Activity of a hart that runs kernel coroutines.
pub(crate) const KERNEL: u8 = IDLE + 1;

/// Number of activities: levels of threads, [`IDLE`], [`KERNEL`].
const ACTIVITIES: usize = KERNEL as usize + 1;

/// Time of a hart by activity. Only the hart itself writes; other harts may see a part of a change.
pub(crate) struct Times {
    activity: AtomicU8,
    /// Time at which the activity began, in ticks.
    since: AtomicU64,
    /// Ticks of each activity before that time.
    ticks: [AtomicU64; ACTIVITIES],
}

impl Times {
    pub(crate) const fn new() -> Times {
        Times {
            activity: AtomicU8::new(KERNEL),
            since: AtomicU64::new(0),
            ticks: [const { AtomicU64::new(0) }; ACTIVITIES],
        }
    }

    /// Sets the activity of the calling hart, to which `self` belongs.
    #[inline]
    pub(crate) fn set(&self, activity: u8) {
        let before = self.activity.load(Relaxed);
        if before == activity {
            return;
        }
        let now = clock::now();
        if let Some(ticks) = self.ticks.get(usize::from(before)) {
            let elapsed = now.wrapping_sub(self.since.load(Relaxed));
            ticks.store(ticks.load(Relaxed).wrapping_add(elapsed), Relaxed);
        }
        self.since.store(now, Relaxed);
        self.activity.store(activity, Relaxed);
    }

    /// Returns the status of the hart, including the time of the current activity. `process` is the
    /// number of the process whose thread the hart runs, or 0.
    pub(crate) fn status(&self, process: usize) -> HartStatus {
        let mut ticks = core::array::from_fn(|level| self.ticks[level].load(Relaxed));
        let (activity, since) = (self.activity.load(Relaxed), self.since.load(Relaxed));
        let now = clock::now();
        if let Some(ticks) = ticks.get_mut(usize::from(activity)) {
            *ticks += now.saturating_sub(since);
        }
        HartStatus {
            process: process as u64,
            now,
            ticks,
        }
    }
}
