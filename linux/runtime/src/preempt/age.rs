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

/// A reading of the clocks of a thread, in ticks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clocks {
    pub(super) now: u64,
    /// CPU time of the thread.
    pub(super) cpu_time: u64,
    /// Total time for which the vCPU has slept.
    pub(super) parked: u64,
}

impl Clocks {
    /// Converts a reading. `cpu_time_ns` is in ns, `now` and `parked` are in ticks.
    pub(super) fn new(now: u64, cpu_time_ns: u64, parked: u64) -> Clocks {
        Clocks {
            now,
            cpu_time: clock::to_ticks(Duration::from_nanos(cpu_time_ns)),
            parked,
        }
    }
}

/// The last reading of a thread's clocks, and the age of the thread's poll at that time, in ticks.
/// Both the thread and its vCPU's watcher write it. If both write at the same time, one look may
/// mix the two readings.
#[derive(Debug, Default)]
pub(super) struct Age {
    now: AtomicU64,
    cpu_time: AtomicU64,
    parked: AtomicU64,
    /// The tick at which the poll that was under way began; 0 for no poll.
    began: AtomicU64,
    /// Time for which that poll had run.
    age: AtomicU64,
}

impl Age {
    /// Records that the poll that began at the tick `began` (0 for no poll) has run for `age`
    /// ticks.
    pub(super) fn record(&self, clocks: Clocks, began: u64, age: u64) {
        self.now.store(clocks.now, Relaxed);
        self.cpu_time.store(clocks.cpu_time, Relaxed);
        self.parked.store(clocks.parked, Relaxed);
        self.age.store(age, Relaxed);
        self.began.store(began, Relaxed);
    }

    /// Returns the ticks for which the poll that began at the tick `began` has run, and whether its
    /// thread may be asleep. The poll began or was resumed at the tick `since`, and had run for
    /// `min_age` ticks by then. The thread may be asleep if it has lost more than `min_loss` ticks,
    /// or more than half of the time since `since` or the last reading, whichever is later.
    pub(super) fn estimate(
        &self,
        clocks: Clocks,
        (began, min_age, since): (u64, u64, u64),
        min_loss: u64,
    ) -> (u64, bool) {
        let max_age = min_age + clocks.now.saturating_sub(since);
        let cpu_time = clocks.cpu_time.saturating_sub(self.cpu_time.load(Relaxed));
        let last_reading = self.now.load(Relaxed);
        if self.began.load(Relaxed) == began {
            let age = (self.age.load(Relaxed) + cpu_time).clamp(min_age, max_age);
            let elapsed = clocks.now.saturating_sub(last_reading.max(since));
            return (
                age,
                elapsed.saturating_sub(cpu_time) > min_loss.min(elapsed / 2),
            );
        }
        let elapsed = clocks.now.saturating_sub(last_reading);
        let sleep_time = clocks.parked.saturating_sub(self.parked.load(Relaxed));
        let lost_time = elapsed.saturating_sub(sleep_time).saturating_sub(cpu_time);
        let may_sleep = lost_time > min_loss.min((max_age - min_age) / 2);
        (max_age.saturating_sub(lost_time).max(min_age), may_sleep)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clocks(now: u64, cpu_time: u64, parked: u64) -> Clocks {
        Clocks {
            now,
            cpu_time,
            parked,
        }
    }

    #[test]
    fn a_poll_that_is_not_disturbed_has_run_since_it_began() {
        let age = Age::default();
        age.record(clocks(1_000, 300, 50), 0, 0);
        // The thread slept for 200 ticks, and used the CPU for 800 ticks in polls and between them.
        let (age_in_ticks, _) = age.estimate(clocks(2_000, 1_100, 250), (1_900, 0, 1_900), 200);
        assert_eq!(age_in_ticks, 100);
    }

    #[test]
    fn time_that_the_thread_has_lost_does_not_count() {
        let age = Age::default();
        age.record(clocks(1_000, 300, 50), 0, 0);
        // Of 8,000 ticks, the thread has lost all but 30. The poll has existed for 7,980 ticks.
        let (age_in_ticks, _) = age.estimate(clocks(9_000, 330, 50), (1_020, 0, 1_020), 200);
        assert_eq!(age_in_ticks, 10);
        // The time may have been lost before the poll, which has then run for longer than
        // estimated.
        let (age_in_ticks, _) = age.estimate(clocks(9_000, 330, 50), (8_900, 0, 8_900), 200);
        assert_eq!(age_in_ticks, 0);
    }

    #[test]
    fn the_age_is_known_since_the_last_look() {
        let age = Age::default();
        age.record(clocks(1_000, 300, 50), 900, 80);
        // The 80 ticks at the last look, and 200 ticks of CPU time since.
        let (age_in_ticks, _) = age.estimate(clocks(9_000, 500, 50), (900, 0, 900), 200);
        assert_eq!(age_in_ticks, 280);
        // Another poll.
        let (age_in_ticks, _) = age.estimate(clocks(1_300, 600, 50), (1_250, 0, 1_250), 200);
        assert_eq!(age_in_ticks, 50);
    }

    /// A thread that has lost more than half of the time may be asleep, even if the readings are
    /// close to each other.
    #[test]
    fn a_poll_that_loses_half_of_its_time_may_sleep() {
        let age = Age::default();
        age.record(clocks(1_000, 300, 50), 900, 80);
        let may_sleep = |now, cpu_time| {
            age.estimate(clocks(now, cpu_time, 50), (900, 0, 900), 200)
                .1
        };
        // The thread has lost 70 of 80 ticks, then 30 of 80, then 300 of 8,000.
        assert!(may_sleep(1_080, 310));
        assert!(!may_sleep(1_080, 350));
        assert!(may_sleep(9_000, 8_000));
    }

    #[test]
    fn a_resumed_poll_keeps_the_time_that_it_has_run() {
        let age = Age::default();
        age.record(clocks(5_000, 300, 50), 900, 80);
        // The 80 ticks before the suspension, and 120 ticks of CPU time since.
        let (age_in_ticks, _) = age.estimate(clocks(5_500, 420, 50), (900, 80, 5_000), 200);
        assert_eq!(age_in_ticks, 200);
        // Without a reading, the poll has run for at least as long as when it was suspended.
        let unread = Age::default();
        let (age_in_ticks, _) = unread.estimate(clocks(5_500, 0, 0), (900, 80, 5_000), 200);
        assert_eq!(age_in_ticks, 80);
    }
}
