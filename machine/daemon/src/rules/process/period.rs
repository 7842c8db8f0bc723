//! [`Period`] accounts for the CPU time that a process has used in the current period.
//!
//! A process that exceeds its budget is *throttled*, that is, ordinary until its usage matches its
//! share of the time. The caller passes the time, so nothing here makes a system call.

use std::time::{Duration, Instant};

#[derive(Debug, Clone)]
pub(super) struct Period {
    began: Instant,
    total_at_start: Duration,
    /// CPU time that the parent had used in the period when it forked the process.
    parent_usage: Duration,
    throttled_until: Instant,
}

impl Period {
    /// Begins a period at `now`. Here and below, `total` is the CPU time of the process since its
    /// start.
    pub(super) fn new(total: Duration, now: Instant) -> Period {
        Period {
            began: now,
            total_at_start: total,
            parent_usage: Duration::ZERO,
            throttled_until: now,
        }
    }

    /// Returns the period of a child that is forked now, which takes over the usage of the parent.
    pub(super) fn for_child(&self, total: Duration) -> Period {
        Period {
            parent_usage: self.usage(total),
            ..self.clone()
        }
    }

    pub(super) fn with_total(self, total: Duration) -> Period {
        Period {
            total_at_start: total,
            ..self
        }
    }

    pub(super) fn usage(&self, total: Duration) -> Duration {
        total.saturating_sub(self.total_at_start) + self.parent_usage
    }

    pub(super) fn is_throttled(&self, now: Instant) -> bool {
        now < self.throttled_until
    }

    pub(super) fn throttled_until(&self) -> Instant {
        self.throttled_until
    }

    pub(super) fn end(&self, length: Duration) -> Instant {
        self.began + length
    }

    /// Throttles the process until its usage matches its share of the time, however late the
    /// excess was noticed.
    pub(super) fn throttle(
        &mut self,
        spent: Duration,
        budget: Duration,
        length: Duration,
        now: Instant,
    ) {
        let earning_time = length.mul_f64(spent.as_secs_f64() / budget.as_secs_f64());
        self.throttled_until = (self.began + earning_time).max(now);
    }

    pub(super) fn renew(&mut self, total: Duration, now: Instant) {
        let throttled_until = self.throttled_until;
        *self = Period {
            throttled_until,
            ..Period::new(total, now)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_process_is_throttled_until_its_usage_matches_its_share() {
        let began = Instant::now();
        let mut period = Period::new(MS * 5, began);
        let noticed_at = began + MS * 30;
        assert_eq!(period.usage(MS * 25), MS * 20);
        period.throttle(MS * 20, MS * 10, MS * 50, noticed_at);
        assert_eq!(period.throttled_until(), began + MS * 100);
        assert!(period.is_throttled(noticed_at) && !period.is_throttled(began + MS * 100));
        period.renew(MS * 25, began + MS * 100);
        assert_eq!(period.usage(MS * 26), MS);
    }

    #[test]
    fn a_child_inherits_the_usage_and_the_throttling() {
        let began = Instant::now();
        let mut parent = Period::new(Duration::ZERO, began);
        parent.throttle(MS * 20, MS * 10, MS * 50, began);
        let child = parent.for_child(MS * 20).with_total(MS);
        assert_eq!(child.usage(MS * 3), MS * 22);
        assert_eq!(child.throttled_until(), parent.throttled_until());
    }
}
