//! [`Debt`] accounts for the CPU time that elevated threads owe to ordinary programs on one CPU.
//!
//! ```text
//!   check: elevated threads left little ──▶ the share of ordinary programs is added to the debt
//!      ▲                                      │ the debt reaches half a piece
//!      │                                      ▼
//!      │                                   pause, as long as the debt
//!      ├── ordinary programs ran: their time is deducted ──┤
//!      └── none ran: the debt is cleared ──────────────────┘
//! ```
//!
//! A *piece* is the length of a pause after which ordinary programs have had their share of the
//! time since the last check, the pause included.

use std::time::Duration;

use crate::cpu::monitor::CHECK_INTERVAL;

/// Multiple of the share at which nothing is owed. If elevated threads leave this much time unused,
/// ordinary programs have had their share, even if the host of a virtual machine or other real-time
/// programs took a part of it.
const UNUSED_SHARES: u32 = 4;

/// Maximum length of a pause, in pieces. It is enough for an ordinary program that shares the pause
/// with three other scheduling groups.
const MAX_PIECES: u32 = 4;

#[derive(Debug)]
pub(super) struct Debt {
    /// Share of ordinary programs, in percent.
    share: u32,
    owed: Duration,
}

/// CPU time in one pause that ordinary programs did not get.
#[derive(Debug, Default)]
pub(super) struct PauseUsage {
    /// CPU time of threads that stayed elevated.
    pub(super) elevated: Duration,
    /// CPU time of threads in SCHED_IDLE.
    pub(super) idle: Duration,
    pub(super) scheduler_time: Duration,
}

impl Debt {
    pub(super) fn new(percent: u32) -> Debt {
        let (share, owed) = (0, Duration::ZERO);
        let mut debt = Debt { share, owed };
        debt.set_share(percent);
        debt
    }

    pub(super) fn set_share(&mut self, percent: u32) {
        // One percent more than configured, because ordinary programs need time to wake up.
        self.share = percent + 1;
    }

    pub(super) fn owed(&self) -> Duration {
        self.owed
    }

    /// Returns the length of a piece; see the module documentation.
    fn piece(&self) -> Duration {
        CHECK_INTERVAL * self.share / (100 - self.share)
    }

    /// Records that elevated threads and the scheduler have used `used` of `elapsed`. Returns the
    /// length of the pause if a pause is due.
    pub(super) fn check(&mut self, elapsed: Duration, used: Duration) -> Option<Duration> {
        if elapsed.saturating_sub(used) > elapsed * self.share * UNUSED_SHARES / 100 {
            self.owed = Duration::ZERO;
            return None;
        }
        let piece = self.piece();
        self.owed = (self.owed + elapsed * self.share / 100).min(piece * MAX_PIECES);
        (self.owed * 2 >= piece).then_some(self.owed)
    }

    /// Ends a pause of `length`. Returns whether threads that stayed elevated used at least a
    /// quarter of the pause. If so, the next pause must apply to all threads.
    pub(super) fn end_pause(&mut self, length: Duration, used_in_pause: &PauseUsage) -> bool {
        let ordinary = length.saturating_sub(
            used_in_pause.elevated + used_in_pause.idle + used_in_pause.scheduler_time,
        );
        let no_demand = used_in_pause.idle * 4 >= length * 3;
        self.owed = if no_demand {
            Duration::ZERO
        } else {
            self.owed.saturating_sub(ordinary)
        };
        used_in_pause.elevated * 4 >= length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Simulates `checks` checks of elevated threads that always compute. In each pause, ordinary
    /// programs get `percent` of the time, and threads in SCHED_IDLE all other time. Returns the
    /// share of ordinary programs in the whole time, per mille.
    fn ordinary_share(checks: u32, percent: u32) -> u128 {
        let (mut debt, mut ordinary, mut all) = (Debt::new(5), Duration::ZERO, Duration::ZERO);
        for _ in 0..checks {
            all += CHECK_INTERVAL;
            let Some(length) = debt.check(CHECK_INTERVAL, CHECK_INTERVAL) else {
                continue;
            };
            all += length;
            ordinary += length * percent / 100;
            let used_in_pause = PauseUsage {
                idle: length * (100 - percent) / 100,
                ..PauseUsage::default()
            };
            assert!(!debt.end_pause(length, &used_in_pause));
        }
        ordinary.as_nanos() * 1000 / all.as_nanos()
    }

    #[test]
    fn ordinary_programs_get_their_share_although_groups_divide_each_pause() {
        for percent in [100, 50, 34] {
            let share = ordinary_share(1000, percent);
            // At least the configured 5 %, and at most the 6 % of `set_share` with a margin.
            assert!(
                (50..=62).contains(&share),
                "ordinary programs get {percent} % of each pause, and {share} per mille in all"
            );
        }
    }

    #[test]
    fn a_pause_without_demand_is_not_followed_by_a_longer_one() {
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
    fn all_threads_pause_after_elevated_threads_have_used_a_pause() {
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
    fn no_pause_is_due_while_elevated_threads_leave_half_of_the_cpu() {
        let mut debt = Debt::new(5);
        for _ in 0..10 {
            assert_eq!(debt.check(CHECK_INTERVAL, CHECK_INTERVAL / 2), None);
        }
        // However late the check is, a pause is no longer than four pieces of 2.3 ms.
        let length = debt
            .check(CHECK_INTERVAL * 1000, CHECK_INTERVAL * 1000)
            .unwrap();
        assert!(length < 10 * MS, "{length:?}");
    }
}
