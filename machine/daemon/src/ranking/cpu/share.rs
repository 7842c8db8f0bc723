//! [`Debt`]: the CPU time of one CPU that others than elevated threads are owed. Pure.
//!
//! ```text
//!   look: elevated threads left little ──▶ others are owed their share
//!      ▲                                      │ half a piece is owed
//!      │                                      ▼
//!      │                                   breath, as long as the debt
//!      ├── others had a part: the rest stays owed ──┤
//!      └── nobody wanted it: nothing is owed ───────┘
//! ```

use std::time::Duration;

use crate::cpu::watch::LOOK;

/// Number of shares: if elevated threads leave as much time unused, others had their share
/// anyway, although the host of a virtual machine or other real-time programs may have taken a
/// part.
const ENOUGH: u32 = 4;

/// Pieces of the longest breath: enough for an ordinary program beside three other groups.
const LONGEST: u32 = 4;

/// CPU time that others are owed.
#[derive(Debug)]
pub(super) struct Debt {
    /// Share of others, percent.
    share: u32,
    owed: Duration,
}

/// CPU time that was not for others in one breath.
#[derive(Debug, Default)]
pub(super) struct Taken {
    /// Time of threads that stayed elevated.
    pub(super) elevated: Duration,
    /// Time of threads in SCHED_IDLE.
    pub(super) idle: Duration,
    /// Time of the scheduler.
    pub(super) own: Duration,
}

impl Debt {
    /// Creates one for others that have `percent` of the CPU.
    pub(super) fn new(percent: u32) -> Debt {
        let (share, owed) = (0, Duration::ZERO);
        let mut debt = Debt { share, owed };
        debt.set_share(percent);
        debt
    }

    pub(super) fn set_share(&mut self, percent: u32) {
        // A little more than asked for, because waking up takes time.
        self.share = percent + 1;
    }

    /// Returns the length of a breath that begins now.
    pub(super) fn owed(&self) -> Duration {
        self.owed
    }

    /// Returns the share of others in the time between two looks.
    fn piece(&self) -> Duration {
        LOOK * self.share / (100 - self.share)
    }

    /// Notes the time that elevated threads and the scheduler have `used` of `elapsed`. Returns
    /// the length of the breath if one is due.
    pub(super) fn look(&mut self, elapsed: Duration, used: Duration) -> Option<Duration> {
        if elapsed.saturating_sub(used) > elapsed * self.share * ENOUGH / 100 {
            self.owed = Duration::ZERO;
            return None;
        }
        let piece = self.piece();
        self.owed = (self.owed + elapsed * self.share / 100).min(piece * LONGEST);
        (self.owed * 2 >= piece).then_some(self.owed)
    }

    /// Ends a breath of `length`. Returns whether threads that stayed elevated had a quarter of
    /// it, so that everything is to step back in the next one.
    pub(super) fn breathed(&mut self, length: Duration, taken: &Taken) -> bool {
        let others = length.saturating_sub(taken.elevated + taken.idle + taken.own);
        let is_unwanted = taken.idle * 4 >= length * 3;
        self.owed = if is_unwanted {
            Duration::ZERO
        } else {
            self.owed.saturating_sub(others)
        };
        taken.elevated * 4 >= length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Lets elevated threads compute for `looks` looks, and others have `percent` of each
    /// breath, of which threads in SCHED_IDLE have the rest. Returns the part of others, of a
    /// thousand.
    fn share_of_others(looks: u32, percent: u32) -> u128 {
        let (mut debt, mut others, mut all) = (Debt::new(5), Duration::ZERO, Duration::ZERO);
        for _ in 0..looks {
            all += LOOK;
            let Some(length) = debt.look(LOOK, LOOK) else {
                continue;
            };
            all += length;
            others += length * percent / 100;
            let taken = Taken {
                idle: length * (100 - percent) / 100,
                ..Taken::default()
            };
            assert!(!debt.breathed(length, &taken));
        }
        others.as_nanos() * 1000 / all.as_nanos()
    }

    #[test]
    fn others_have_their_share_although_groups_share_each_breath() {
        for percent in [100, 50, 34] {
            let share = share_of_others(1000, percent);
            assert!((50..=62).contains(&share), "{percent} %: {share}");
        }
    }

    #[test]
    fn a_breath_that_nobody_wants_makes_no_longer_one() {
        let mut debt = Debt::new(5);
        let mut lengths = Vec::new();
        for _ in 0..10 {
            let length = debt.look(LOOK, LOOK).unwrap();
            lengths.push(length);
            let taken = Taken {
                idle: length,
                ..Taken::default()
            };
            assert!(!debt.breathed(length, &taken));
        }
        assert!(lengths.iter().all(|it| *it == lengths[0]), "{lengths:?}");
    }

    #[test]
    fn everything_steps_back_after_a_breath_that_elevated_threads_have_taken() {
        let mut debt = Debt::new(5);
        let first = debt.look(LOOK, LOOK).unwrap();
        let taken = Taken {
            elevated: first / 2,
            ..Taken::default()
        };
        assert!(debt.breathed(first, &taken));
        assert!(debt.look(LOOK, LOOK).unwrap() > first);
    }

    #[test]
    fn no_breath_is_due_where_others_have_a_quarter() {
        let mut debt = Debt::new(5);
        for _ in 0..10 {
            assert_eq!(debt.look(LOOK, LOOK / 2), None);
        }
        // However late a look is, a breath has its longest length at most.
        let length = debt.look(LOOK * 1000, LOOK * 1000).unwrap();
        assert!(length < 10 * MS, "{length:?}");
    }
}
