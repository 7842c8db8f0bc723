//! [`Debt`]: the CPU time of one CPU that ordinary programs are owed. Pure.
//!
//! ```text
//!   check: elevated threads left little ──▶ others are owed their share
//!      ▲                                      │ half a piece is owed
//!      │                                      ▼
//!      │                                   pause, as long as the debt
//!      ├── others ran: the rest stays owed ───────┤
//!      └── no other program ran: debt cleared ────┘
//! ```

use std::time::Duration;

use crate::cpu::monitor::CHECK_INTERVAL;

/// Multiple of the share from which on nothing is owed: if elevated threads leave that much unused,
/// others had their share, even if the host of a virtual machine or other real-time programs took a
/// part.
const UNUSED_SHARES: u32 = 4;

/// Pieces of the longest pause: enough for an ordinary program beside three other groups.
const MAX_PIECES: u32 = 4;

/// CPU time that ordinary programs are owed.
#[derive(Debug)]
pub(super) struct Debt {
    /// Share of ordinary programs, percent.
    share: u32,
    owed: Duration,
}

/// CPU time in one pause that ordinary programs did not have.
#[derive(Debug, Default)]
pub(super) struct PauseUsage {
    /// Time of threads that stayed elevated.
    pub(super) elevated: Duration,
    /// Time of threads in SCHED_IDLE.
    pub(super) idle: Duration,
    /// Time of the scheduler.
    pub(super) scheduler_time: Duration,
}

impl Debt {
    /// Creates an empty debt to programs that have `percent` of the CPU.
    pub(super) fn new(percent: u32) -> Debt {
        let (share, owed) = (0, Duration::ZERO);
        let mut debt = Debt { share, owed };
        debt.set_share(percent);
        debt
    }

    pub(super) fn set_share(&mut self, percent: u32) {
        // A little more than configured, because waking up takes time.
        self.share = percent + 1;
    }

    /// Returns the length of a pause that begins now.
    pub(super) fn owed(&self) -> Duration {
        self.owed
    }

    /// Returns the share of ordinary programs in the time between two checks.
    fn piece(&self) -> Duration {
        CHECK_INTERVAL * self.share / (100 - self.share)
    }

    /// Adds the share of `elapsed` to the debt, of which elevated threads and the scheduler have
    /// `used` a part. Returns the length of the pause if one is due.
    pub(super) fn check(&mut self, elapsed: Duration, used: Duration) -> Option<Duration> {
        if elapsed.saturating_sub(used) > elapsed * self.share * UNUSED_SHARES / 100 {
            self.owed = Duration::ZERO;
            return None;
        }
        let piece = self.piece();
        self.owed = (self.owed + elapsed * self.share / 100).min(piece * MAX_PIECES);
        (self.owed * 2 >= piece).then_some(self.owed)
    }

    /// Ends a pause of `length`. Returns whether threads that stayed elevated had a quarter of it,
    /// so that all threads are to pause the next time.
    pub(super) fn end_pause(&mut self, length: Duration, used_in_pause: &PauseUsage) -> bool {
        let others = length.saturating_sub(
            used_in_pause.elevated + used_in_pause.idle + used_in_pause.scheduler_time,
        );
        let is_unwanted = used_in_pause.idle * 4 >= length * 3;
        self.owed = if is_unwanted {
            Duration::ZERO
        } else {
            self.owed.saturating_sub(others)
        };
        used_in_pause.elevated * 4 >= length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Simulates elevated threads that compute between `checks` checks, while others have `percent`
    /// of each pause and threads in SCHED_IDLE the rest. Returns the part of the others, of a
    /// thousand.
    fn share_of_others(checks: u32, percent: u32) -> u128 {
        let (mut debt, mut others, mut all) = (Debt::new(5), Duration::ZERO, Duration::ZERO);
        for _ in 0..checks {
            all += CHECK_INTERVAL;
            let Some(length) = debt.check(CHECK_INTERVAL, CHECK_INTERVAL) else {
                continue;
            };
            all += length;
            others += length * percent / 100;
            let used_in_pause = PauseUsage {
                idle: length * (100 - percent) / 100,
                ..PauseUsage::default()
            };
            assert!(!debt.end_pause(length, &used_in_pause));
        }
        others.as_nanos() * 1000 / all.as_nanos()
    }

    #[test]
    fn others_have_their_share_although_groups_share_each_pause() {
        for percent in [100, 50, 34] {
            let share = share_of_others(1000, percent);
            assert!((50..=62).contains(&share), "{percent} %: {share}");
        }
    }

    #[test]
    fn a_pause_without_demand_makes_no_longer_one() {
        let mut debt = Debt::new(5);
        let mut lengths = Vec::new();
        for _ in 0..10 {
            let length = debt.check(CHECK_INTERVAL, CHECK_INTERVAL).unwrap();
            lengths.push(length);
            let used_in_pause = PauseUsage {
                idle: length,
                ..PauseUsage::default()
            };
            assert!(!debt.end_pause(length, &used_in_pause));
        }
        assert!(
            lengths.iter().all(|length| *length == lengths[0]),
            "{lengths:?}"
        );
    }

    #[test]
    fn all_threads_pause_after_a_pause_that_elevated_threads_have_used() {
        let mut debt = Debt::new(5);
        let first = debt.check(CHECK_INTERVAL, CHECK_INTERVAL).unwrap();
        let used_in_pause = PauseUsage {
            elevated: first / 2,
            ..PauseUsage::default()
        };
        assert!(debt.end_pause(first, &used_in_pause));
        assert!(debt.check(CHECK_INTERVAL, CHECK_INTERVAL).unwrap() > first);
    }

    #[test]
    fn no_pause_is_due_while_others_have_a_quarter() {
        let mut debt = Debt::new(5);
        for _ in 0..10 {
            assert_eq!(debt.check(CHECK_INTERVAL, CHECK_INTERVAL / 2), None);
        }
        // However late a check is, a pause is bounded.
        let length = debt
            .check(CHECK_INTERVAL * 1000, CHECK_INTERVAL * 1000)
            .unwrap();
        assert!(length < 10 * MS, "{length:?}");
    }
}
