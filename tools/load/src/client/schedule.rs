//! Send times of an open loop, by arithmetic: nothing is queued, so a server that stalls for hours costs no memory.
//!
//! Request `seq` of a group is due at `base + seq * step` and belongs to connection `seq % connections`, of which it is
//! request `seq / connections`. Replies keep the order of requests, so the k-th reply of a connection also finds its
//! intended send time here. All times are ns since the start of the run. O(1), no allocation.

use super::plan::Pace;

/// The send times of one group.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    base: u64,
    step: f64,
    connections: u64,
    /// The next request that is not yet due.
    pub(crate) next: u64,
}

impl Schedule {
    /// The schedule of `pace`, or none in a closed loop. `share` in 0..1 spreads groups over the first step.
    pub(crate) fn new(pace: Pace, connections: usize, base: u64, share: f64) -> Option<Schedule> {
        let step = match pace {
            Pace::Closed => return None,
            Pace::Open { period } => period.as_nanos() as f64 / connections as f64,
            Pace::OpenRate { per_second } => 1e9 / per_second,
        };
        Some(Schedule {
            base: base + (step * share) as u64,
            step,
            connections: connections as u64,
            next: 0,
        })
    }

    fn due(&self, seq: u64) -> u64 {
        self.base + (seq as f64 * self.step) as u64
    }

    /// When the next request is due.
    pub(crate) fn next_due(&self) -> u64 {
        self.due(self.next)
    }

    /// The connection (its index in the group) of the next request.
    pub(crate) fn next_connection(&self) -> usize {
        (self.next % self.connections) as usize
    }

    /// How many requests of connection `index` were due at `now` or before.
    pub(crate) fn due_until(&self, index: usize, now: u64) -> u64 {
        let Some(since) = now.checked_sub(self.intended(index, 0)) else {
            return 0;
        };
        (since as f64 / (self.step * self.connections as f64)) as u64 + 1
    }

    /// When request `k` of connection `index` was meant to leave.
    pub(crate) fn intended(&self, index: usize, k: u64) -> u64 {
        self.due(k * self.connections + index as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn connections_are_spread_over_the_period() {
        let period = Duration::from_micros(100);
        let mut schedule = Schedule::new(Pace::Open { period }, 4, 1000, 0.0).unwrap();
        for k in 0..3 {
            for index in 0..4 {
                assert_eq!(schedule.next_connection(), index);
                let due = 1000 + k * 100_000 + index as u64 * 25_000;
                assert_eq!(schedule.next_due(), due);
                assert_eq!(schedule.intended(index, k), due);
                assert_eq!(schedule.due_until(index, due - 1), k);
                assert_eq!(schedule.due_until(index, due + 1), k + 1);
                schedule.next += 1;
            }
        }
    }

    #[test]
    fn a_rate_is_that_of_the_group() {
        let pace = Pace::OpenRate { per_second: 1000.0 };
        let mut schedule = Schedule::new(pace, 7, 0, 0.5).unwrap();
        schedule.next = 1000;
        assert_eq!(schedule.next_due(), 1_000_500_000);
        assert!(Schedule::new(Pace::Closed, 7, 0, 0.0).is_none());
    }
}
