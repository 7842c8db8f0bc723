//! How long a vCPU gives way to other processes by itself. Pure.
//!
//! Strict priority would let a process that says it is urgent, truly or not, keep all others waiting for ever. So a process that has
//! given way for [`LONGEST_YIELD`] in a row works for [`WORK_AFTER_YIELD`], 4 % of the time, whatever the others say.

/// The longest time that it gives way without a pause, ns.
const LONGEST_YIELD: u64 = 48_000_000;
/// How long it works then, ns.
const WORK_AFTER_YIELD: u64 = 2_000_000;

/// A process that has not been asked for this time, ns, was not outranked: the count begins again.
const RESET_AFTER: u64 = 2_000_000;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Yielding {
    /// When it began to give way, ns.
    since: u64,
    /// When it was asked last, ns.
    asked: u64,
    /// Works until then, ns, though it is outranked.
    works_until: u64,
}

impl Yielding {
    /// Whether a process that is outranked gives way now, for much less than [`RESET_AFTER`].
    pub(super) fn gives_way(&mut self, now: u64) -> bool {
        if now < self.works_until {
            self.asked = now;
            return false;
        }
        if now.saturating_sub(self.asked) > RESET_AFTER {
            self.since = now;
        }
        self.asked = now;
        if now.saturating_sub(self.since) < LONGEST_YIELD {
            return true;
        }
        self.works_until = now + WORK_AFTER_YIELD;
        self.since = self.works_until;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_outranked_for_ever_works_for_four_per_cent_of_the_time() {
        let mut yielding = Yielding::default();
        let steps = 1_000_000_000 / 100_000;
        let worked = (1..steps).filter(|step| !yielding.gives_way(step * 100_000));
        let share = worked.count() as f64 / steps as f64;
        assert!((0.035..0.045).contains(&share), "{share}");
    }

    #[test]
    fn a_process_outranked_now_and_then_always_gives_way() {
        let mut yielding = Yielding::default();
        for turn in 1..1000u64 {
            assert!(yielding.gives_way(turn * 10_000_000));
            assert!(yielding.gives_way(turn * 10_000_000 + 500_000));
        }
    }
}
