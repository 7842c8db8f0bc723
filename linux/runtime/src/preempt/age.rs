//! Estimates how long a poll has run, by the CPU time of its thread, so that time in which other
//! programs have the CPU does not count.
//!
//! **The estimate never exceeds the CPU time that the poll has used.** From the first look at the
//! poll on, further CPU time is counted exactly. Reading a thread's CPU time takes a system call,
//! so the clock is read only at looks and when a thread begins to serve. If a poll has begun since
//! the last reading, its thread may have lost the CPU before the poll or during it. All lost time,
//! except sleeps between polls, is then attributed to the poll. A short poll is therefore not
//! stopped for the time that another program took, but a long poll beside a busy program may be
//! stopped one look later.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::time::clock;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clocks {
    pub(super) now: u64,
    pub(super) used: u64,
    /// Total time for which the vCPU has slept, ticks.
    pub(super) parked: u64,
}

impl Clocks {
    /// `used` is in ns, the others are in ticks.
    pub(super) fn new(now: u64, used: u64, parked: u64) -> Clocks {
        Clocks {
            now,
            used: clock::to_ticks(Duration::from_nanos(used)),
            parked,
        }
    }
}

/// The last reading of a thread's clocks, and the age of the thread's poll at that time. Both the
/// thread and its vCPU's watcher write it. If both write at the same time, one look may mix the two
/// readings.
#[derive(Debug, Default)]
pub(super) struct Age {
    now: AtomicU64,
    used: AtomicU64,
    parked: AtomicU64,
    /// The tick at which the poll that was under way began; 0 for no poll.
    began: AtomicU64,
    ran: AtomicU64,
}

impl Age {
    /// Records that the poll that began at the tick `began` (0 for no poll) has run for `ran`
    /// ticks.
    pub(super) fn record(&self, clocks: Clocks, began: u64, ran: u64) {
        self.now.store(clocks.now, Relaxed);
        self.used.store(clocks.used, Relaxed);
        self.parked.store(clocks.parked, Relaxed);
        self.ran.store(ran, Relaxed);
        self.began.store(began, Relaxed);
    }

    /// Returns the ticks for which the poll that began at the tick `began` has run, and whether its
    /// thread may be asleep. The poll began or was resumed at the tick `since`, and had run for
    /// `before` ticks by then. The thread may be asleep if it has lost more than `least` ticks, or
    /// more than half of the time since `since` or the last reading, whichever is later.
    pub(super) fn estimate(
        &self,
        clocks: Clocks,
        (began, before, since): (u64, u64, u64),
        least: u64,
    ) -> (u64, bool) {
        let most = before + clocks.now.saturating_sub(since);
        let used = clocks.used.saturating_sub(self.used.load(Relaxed));
        let read = self.now.load(Relaxed);
        if self.began.load(Relaxed) == began {
            let ran = (self.ran.load(Relaxed) + used).clamp(before, most);
            let passed = clocks.now.saturating_sub(read.max(since));
            return (ran, passed.saturating_sub(used) > least.min(passed / 2));
        }
        let passed = clocks.now.saturating_sub(read);
        let slept = clocks.parked.saturating_sub(self.parked.load(Relaxed));
        let lost = passed.saturating_sub(slept).saturating_sub(used);
        let may_sleep = lost > least.min((most - before) / 2);
        (most.saturating_sub(lost).max(before), may_sleep)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(now: u64, used: u64, parked: u64) -> Clocks {
        Clocks { now, used, parked }
    }

    #[test]
    fn a_poll_that_is_not_disturbed_has_run_since_it_began() {
        let age = Age::default();
        age.record(at(1_000, 300, 50), 0, 0);
        // The thread slept for 200 ticks, and used the CPU for 800 ticks in polls and between them.
        assert_eq!(
            age.estimate(at(2_000, 1_100, 250), (1_900, 0, 1_900), 200)
                .0,
            100
        );
    }

    #[test]
    fn time_that_the_thread_has_lost_does_not_count() {
        let age = Age::default();
        age.record(at(1_000, 300, 50), 0, 0);
        assert_eq!(
            age.estimate(at(9_000, 330, 50), (1_020, 0, 1_020), 200).0,
            10
        );
        // The time may have been lost before the poll, which has then run for longer than
        // estimated.
        assert_eq!(
            age.estimate(at(9_000, 330, 50), (8_900, 0, 8_900), 200).0,
            0
        );
    }

    #[test]
    fn the_age_is_known_since_the_last_look() {
        let age = Age::default();
        age.record(at(1_000, 300, 50), 900, 80);
        assert_eq!(age.estimate(at(9_000, 500, 50), (900, 0, 900), 200).0, 280);
        // Another poll.
        assert_eq!(
            age.estimate(at(1_300, 600, 50), (1_250, 0, 1_250), 200).0,
            50
        );
    }

    /// A thread that has lost more than half of the time may be asleep, even if the readings are
    /// close to each other.
    #[test]
    fn a_poll_that_loses_half_of_its_time_may_sleep() {
        let age = Age::default();
        age.record(at(1_000, 300, 50), 900, 80);
        let may_sleep = |now, used| age.estimate(at(now, used, 50), (900, 0, 900), 200).1;
        assert!(may_sleep(1_080, 310));
        assert!(!may_sleep(1_080, 350));
        assert!(may_sleep(9_000, 8_000));
    }

    #[test]
    fn a_resumed_poll_keeps_the_time_that_it_has_run() {
        let age = Age::default();
        age.record(at(5_000, 300, 50), 900, 80);
        assert_eq!(
            age.estimate(at(5_500, 420, 50), (900, 80, 5_000), 200).0,
            200
        );
        // Without a reading, the poll has run for at least as long as when it was suspended.
        let none = Age::default();
        assert_eq!(none.estimate(at(5_500, 0, 0), (900, 80, 5_000), 200).0, 80);
    }
}
