//! [`Period`]: the budget of a process in the present period. Pure, with time passed in.

use std::time::{Duration, Instant};

/// CPU time used in the present period, and the rest after an overdraft.
#[derive(Debug, Clone)]
pub(super) struct Period {
    began: Instant,
    /// Total CPU time at the beginning.
    total_at_start: Duration,
    /// CPU time that its parent had used of the period.
    parent_usage: Duration,
    /// Time until which the process is ordinary.
    rests_until: Instant,
}

impl Period {
    /// Begins a period of a process that has used `total` in all.
    pub(super) fn new(total: Duration, now: Instant) -> Period {
        Period {
            began: now,
            total_at_start: total,
            parent_usage: Duration::ZERO,
            rests_until: now,
        }
    }

    /// Returns this period for a child, which inherits the usage of its parent.
    pub(super) fn for_child(&self, total: Duration) -> Period {
        Period {
            parent_usage: self.spent(total),
            ..self.clone()
        }
    }

    /// Returns this period for a child that has used `total` in all.
    pub(super) fn with_total(self, total: Duration) -> Period {
        Period {
            total_at_start: total,
            ..self
        }
    }

    /// Returns the CPU time used in this period.
    pub(super) fn spent(&self, total: Duration) -> Duration {
        total.saturating_sub(self.total_at_start) + self.parent_usage
    }

    pub(super) fn rests(&self, now: Instant) -> bool {
        now < self.rests_until
    }

    pub(super) fn rests_until(&self) -> Instant {
        self.rests_until
    }

    /// Returns the end of a period of this `length`.
    pub(super) fn end(&self, length: Duration) -> Instant {
        self.began + length
    }

    /// Sends the process to rest until its usage matches its share of the time, however late the
    /// overdraft was noticed.
    pub(super) fn rest(
        &mut self,
        spent: Duration,
        budget: Duration,
        length: Duration,
        now: Instant,
    ) {
        let full_length = length.mul_f64(spent.as_secs_f64() / budget.as_secs_f64());
        self.rests_until = (self.began + full_length).max(now);
    }

    /// Begins the next period.
    pub(super) fn renew(&mut self, total: Duration, now: Instant) {
        let rests_until = self.rests_until;
        *self = Period {
            rests_until,
            ..Period::new(total, now)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_process_rests_until_its_usage_matches_its_share() {
        let began = Instant::now();
        let mut period = Period::new(MS * 5, began);
        let late = began + MS * 30;
        assert_eq!(period.spent(MS * 25), MS * 20);
        period.rest(MS * 20, MS * 10, MS * 50, late);
        assert_eq!(period.rests_until(), began + MS * 100);
        assert!(period.rests(late) && !period.rests(began + MS * 100));
        period.renew(MS * 25, began + MS * 100);
        assert_eq!(period.spent(MS * 26), MS);
    }

    #[test]
    fn a_child_inherits_the_usage_and_the_rest() {
        let began = Instant::now();
        let mut parent = Period::new(Duration::ZERO, began);
        parent.rest(MS * 20, MS * 10, MS * 50, began);
        let child = parent.for_child(MS * 20).with_total(MS);
        assert_eq!(child.spent(MS * 3), MS * 22);
        assert_eq!(child.rests_until(), parent.rests_until());
    }
}
