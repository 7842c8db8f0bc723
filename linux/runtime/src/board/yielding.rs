//! Limits the time for which a vCPU gives way to other processes by itself. This module makes no
//! system calls and reads no clock.
//!
//! With strict priority a process that claims to be urgent, rightly or not, would keep all other
//! processes waiting for ever. So a process that has given way for [`LONGEST_YIELD`] in a row works
//! for [`WORK_AFTER_YIELD`], 4 % of the time, regardless of the claims of other processes.

/// The longest time for which a process gives way without a pause, ns.
const LONGEST_YIELD: u64 = 48_000_000;
/// The time for which the process then works, ns.
const WORK_AFTER_YIELD: u64 = 2_000_000;

/// Time without a call of [`Yielding::gives_way`], ns, after which the process counts as not
/// outranked, and the measurement begins again.
const RESET_AFTER: u64 = 2_000_000;

#[derive(Debug, Default)]
pub(super) struct Yielding {
    /// Time since which the process gives way without a pause, ns.
    yields_since: u64,
    /// Time of the last call of [`Yielding::gives_way`], ns.
    last_call: u64,
    /// Time until which the process works, ns.
    works_until: u64,
}

impl Yielding {
    /// Returns whether a process that is outranked gives way now. If so, the caller must give way
    /// for much less than [`RESET_AFTER`], and then call this again. All times are in ns.
    pub(super) fn gives_way(&mut self, now: u64) -> bool {
        if now < self.works_until {
            self.last_call = now;
            return false;
        }
        if now.saturating_sub(self.last_call) > RESET_AFTER {
            self.yields_since = now;
        }
        self.last_call = now;
        if now.saturating_sub(self.yields_since) < LONGEST_YIELD {
            return true;
        }
        self.works_until = now + WORK_AFTER_YIELD;
        self.yields_since = self.works_until;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_outranked_for_ever_works_for_four_per_cent_of_the_time() {
        let mut yielding = Yielding::default();
        // One second, in steps of 100 µs.
        let (step_ns, steps) = (100_000, 10_000);
        let work_steps = (1..steps).filter(|step| !yielding.gives_way(step * step_ns));
        let share = work_steps.count() as f64 / steps as f64;
        assert!(
            (0.035..0.045).contains(&share),
            "share of the time: {share}"
        );
    }

    #[test]
    fn a_process_outranked_now_and_then_always_gives_way() {
        let mut yielding = Yielding::default();
        // The 9.5 ms between two rounds exceed `RESET_AFTER`.
        for round in 1..1000u64 {
            assert!(yielding.gives_way(round * 10_000_000));
            assert!(yielding.gives_way(round * 10_000_000 + 500_000));
        }
    }
}
