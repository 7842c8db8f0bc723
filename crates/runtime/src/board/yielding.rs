//! How long a vCPU gives way to other processes by itself. Pure.
//!
//! Strict priority would let a process that says it is urgent, truly or not, keep all others waiting for ever. So a process that has
//! given way for [`PATIENCE`] in a row works for [`SHARE`], 4 % of the time, whatever the others say.

/// Gives way for so long in a row, ns.
const PATIENCE: u64 = 48_000_000;
/// Then works for so long, ns.
const SHARE: u64 = 2_000_000;

/// A process that has not been asked for so long, ns, was not outranked meanwhile.
const PAUSE: u64 = 2_000_000;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Courtesy {
    /// When it began to give way, ns.
    since: u64,
    /// When it was asked last, ns.
    asked: u64,
    /// Works until then, ns, though it is outranked.
    works_until: u64,
}

impl Courtesy {
    /// Whether a process that is outranked gives way now, for much less than [`PAUSE`].
    pub(super) fn gives_way(&mut self, now: u64) -> bool {
        if now < self.works_until {
            self.asked = now;
            return false;
        }
        if now.saturating_sub(self.asked) > PAUSE {
            self.since = now;
        }
        self.asked = now;
        if now.saturating_sub(self.since) < PATIENCE {
            return true;
        }
        self.works_until = now + SHARE;
        self.since = self.works_until;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_outranked_for_ever_works_for_four_per_cent_of_the_time() {
        let mut courtesy = Courtesy::default();
        let steps = 1_000_000_000 / 100_000;
        let worked = (1..steps).filter(|step| !courtesy.gives_way(step * 100_000));
        let share = worked.count() as f64 / steps as f64;
        assert!((0.035..0.045).contains(&share), "{share}");
    }

    #[test]
    fn a_process_outranked_now_and_then_always_gives_way() {
        let mut courtesy = Courtesy::default();
        for turn in 1..1000u64 {
            assert!(courtesy.gives_way(turn * 10_000_000));
            assert!(courtesy.gives_way(turn * 10_000_000 + 500_000));
        }
    }
}
