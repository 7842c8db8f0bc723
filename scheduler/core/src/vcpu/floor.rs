//! The *floor* of a vCPU is a share of its time that is guaranteed to less urgent levels.
//!
//! The time is kept in a [`TokenBucket`], which is refilled at the rate of the share and holds at
//! most two quanta. While it holds a quantum, the next pick takes the most urgent ready level of
//! the floor. If the bucket is not empty when a poll of the floor begins, the bucket is charged the
//! time from this pick to the next. Other polls of the floor run in time that no more urgent level
//! wanted, and are not charged.
//!
//! [`Config::floor`](crate::Config::floor) states the two bounds that follow, and `upshift-sim`
//! checks them. The lock of the vCPU guards the budget. Cost: O(1), a division or two per pick; in
//! a domain without a floor, one test per poll that reads the clock.

use crate::base::config::Floor;
use crate::base::token_bucket::TokenBucket;

/// Largest charge for a poll, in quanta. Without it, a process that was stopped for long in the
/// middle of a poll would take hours to pay off the time.
const MAX_CHARGE: u64 = 100;

/// The time that the levels of the floor may use before more urgent levels.
pub(super) struct FloorBudget {
    /// Bits of the levels of the floor.
    levels: u64,
    quantum: u64,
    tokens: TokenBucket,
    /// True if the poll under way is to be charged.
    is_charged: bool,
}

impl FloorBudget {
    pub(super) fn new(floor: Floor) -> FloorBudget {
        // Clamped so that sums of prices do not overflow.
        let quantum = floor.quantum.clamp(1, u64::MAX / (8 * MAX_CHARGE));
        let rate = (u64::from(floor.percent.clamp(1, 99)), 100);
        FloorBudget {
            levels: !floor.from.more_urgent_bits(),
            quantum,
            tokens: TokenBucket::with_rate(rate, 2 * quantum, 0),
            is_charged: false,
        }
    }

    /// Returns the level to pick at tick `now`. At least one level is ready.
    pub(super) fn next_level(&mut self, ready: u64, now: u64) -> u8 {
        let low = ready & self.levels;
        let is_due = low != 0 && low != ready && self.tokens.holds(self.quantum, now);
        let level = if is_due { low } else { ready }.trailing_zeros() as u8;
        self.begin(level, now);
        level
    }

    /// Decides whether the poll of `level` that begins at tick `now` is to be charged.
    pub(super) fn begin(&mut self, level: u8, now: u64) {
        self.is_charged = self.levels & (1 << level) != 0 && self.tokens.holds(1, now);
    }

    /// Charges the poll that has just ended, if it is to be charged, with its length in ticks.
    pub(super) fn charge(&mut self, ticks: u64, now: u64) {
        if core::mem::take(&mut self.is_charged) {
            let price = ticks.min(MAX_CHARGE * self.quantum);
            self.tokens.charge(price, now);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::base::level::Level;

    const URGENT: u64 = 1;
    const LOW: u64 = 1 << 40;

    fn budget(percent: u8) -> FloorBudget {
        FloorBudget::new(Floor {
            from: Level::at::<32>(),
            percent,
            quantum: 100,
        })
    }

    /// Runs polls of 10 ticks until tick `until`, with both levels always ready. Returns the number
    /// of polls of the floor.
    fn polls(budget: &mut FloorBudget, until: u64) -> u64 {
        let mut of_floor = 0;
        for now in (0..until).step_by(10) {
            let level = budget.next_level(URGENT | LOW, now);
            of_floor += u64::from(level == 40);
            budget.charge(10, now + 10);
        }
        of_floor
    }

    #[test]
    fn the_floor_gets_its_share_and_a_quantum_at_the_beginning() {
        for percent in [1, 10, 50, 99] {
            // A full bucket of two quanta is served until it holds less than one. So the floor gets
            // a quantum more than its share, with a margin of two polls of 10 ticks.
            let floor_ticks = 10 * polls(&mut budget(percent), 1_000_000);
            let share = 10_000 * u64::from(percent);
            assert!(
                (share..=share + 120).contains(&floor_ticks),
                "{percent} %: {floor_ticks} ticks"
            );
        }
    }

    #[test]
    fn the_most_urgent_level_of_the_floor_goes_first() {
        let mut budget = budget(10);
        assert_eq!(budget.next_level(URGENT | LOW | 1 << 33, 0), 33);
        assert_eq!(budget.next_level(URGENT | 1 << 31, 0), 0);
        assert_eq!(budget.next_level(LOW, 0), 40);
    }

    #[test]
    fn time_without_urgent_work_is_not_owed() {
        let mut budget = budget(10);
        for now in (0..1_000_000).step_by(1_000) {
            assert_eq!(budget.next_level(LOW, now), 40);
            budget.charge(1_000, now + 1_000);
        }
        // The floor lacks at most the time of a poll and a quantum, which it earns in 11 000 ticks.
        let due = (0..)
            .map(|n| 1_000_000 + 10 * n)
            .find(|now| budget.next_level(URGENT | LOW, *now) == 40);
        assert!(due.is_some_and(|due| due <= 1_000_000 + 11_000), "{due:?}");
    }

    #[test]
    fn a_stopped_process_owes_at_most_a_hundred_quanta() {
        let mut budget = budget(10);
        assert_eq!(budget.next_level(URGENT | LOW, 0), 40);
        budget.charge(u64::MAX / 2, u64::MAX / 2);
        let now = u64::MAX / 2 + 10 * MAX_CHARGE * 100;
        assert_eq!(budget.next_level(URGENT | LOW, now), 40);
    }

    #[test]
    fn the_budget_accepts_numbers_of_any_size() {
        for (percent, quantum) in [(0, 0), (u8::MAX, u64::MAX)] {
            let from = Level::MOST_URGENT;
            let mut budget = FloorBudget::new(Floor {
                from,
                percent,
                quantum,
            });
            assert_eq!(budget.next_level(LOW | URGENT, u64::MAX), 0);
            budget.charge(u64::MAX, u64::MAX);
            assert_eq!(budget.next_level(LOW, 0), 40);
        }
    }
}
