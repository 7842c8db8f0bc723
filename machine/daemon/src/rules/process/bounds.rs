//! Decides the scheduling class of an assigned process from its budget, the quotas of its cgroups
//! and the pauses of its domain.
//!
//! | class | condition, the first that applies |
//! |---|---|
//! | `Paused` | the domain pauses |
//! | `Fair` | the budget of the period is exhausted, or a quota is overdrawn |
//! | `Urgent` | otherwise |
//!
//! A check costs one system call for the CPU time of the process, and one for each thread if the
//! class changes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Process, ProcessClass};
use crate::rules::PERIOD;
use crate::rules::domain::Domains;
use crate::rules::rule::Bound;
use crate::shared::Shared;

/// Minimum time between two checks: a fortieth of the default budget on one CPU, which is 80 % of
/// [`PERIOD`].
const MIN_WAIT: Duration = Duration::from_millis(1);

impl Process {
    /// Returns the budget, and the length of its period.
    fn budget(&self) -> (Duration, Duration) {
        match self.rule.bound {
            Bound::Each(percent) => (PERIOD * percent * self.cpus.computing / 100, PERIOD),
            Bound::Budget(percent) => (PERIOD * percent / 100, PERIOD),
            Bound::Share(percent) => (PERIOD * percent * self.cpus.width / 100, PERIOD),
            Bound::Periodic { runtime, period } => (runtime, period),
        }
    }

    /// Moves the process to SCHED_IDLE until the pause of its domain ends, if the domain pauses.
    pub(in crate::rules) fn pause(&mut self, shared: &Shared, domains: &Domains, now: Instant) {
        if let Some(until) = domains.pause_end(&self.cpus.allowed, now) {
            self.add_usage(shared);
            self.set_class(ProcessClass::Paused { until });
            self.next_check = until;
        }
    }

    /// Moves the process to the class that its bounds allow, and sets the time of the next check.
    pub(in crate::rules) fn update_class(&mut self, shared: &Arc<Shared>, now: Instant) {
        let epoch = shared.epoch();
        let moved_by_others = std::mem::replace(&mut self.class_state.epoch, epoch) != epoch;
        if now < self.next_check && !moved_by_others {
            return;
        }
        let total = self.add_usage(shared);
        self.charge_quotas(total, now);
        let spent = self.period.usage(total);
        if spent >= self.budget().0 && matches!(self.rule.bound, Bound::Each(_)) {
            // More threads may compute than at the last count.
            self.count_cpus(shared);
        }
        let (budget, period_length) = self.budget();
        let was_fair = self.class_state.class == ProcessClass::Fair;
        if !was_fair && spent >= budget {
            self.period.throttle(spent, budget, period_length, now);
        }
        let throttled = self.period.is_throttled(now);
        if !throttled && (was_fair || now >= self.period.end(period_length)) {
            self.period.renew(total, now);
        }
        let overdrawn = self.quota_usage.is_overdrawn();
        let class = match self.class_state.class {
            // A paused process stays paused even if its budget is exhausted, because in SCHED_OTHER
            // it would use most of the time that the pause leaves to other programs.
            paused @ ProcessClass::Paused { until } if now < until => paused,
            _ if throttled || overdrawn => ProcessClass::Fair,
            _ => ProcessClass::Urgent,
        };
        let retry_due = self.class_state.retry.is_some_and(|when| now >= when);
        if class != self.class_state.class || moved_by_others || retry_due {
            self.set_class(class);
        }
        // All threads may run in parallel, so the budget may be exhausted this many times faster.
        let parallel = self.threads.len().clamp(1, shared.cpus) as u32;
        let remaining = budget.saturating_sub(self.period.usage(total));
        self.next_check = match class {
            ProcessClass::Fair if throttled => self.period.throttled_until(),
            ProcessClass::Fair if self.quota_usage.is_pending() => now + MIN_WAIT,
            ProcessClass::Fair => now + PERIOD,
            ProcessClass::Paused { until } => until,
            ProcessClass::Urgent => {
                (self.period.end(period_length)).min(now + (remaining / parallel).max(MIN_WAIT))
            }
        };
    }

    fn set_class(&mut self, class: ProcessClass) {
        self.class_state.retry = None;
        self.class_state.class = class;
        self.apply_class_to_all();
    }
}
