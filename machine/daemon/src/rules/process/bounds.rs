//! The class of an assigned process: from its budget, its domain, quotas and the canary.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Process, ProcessClass};
use crate::rules::PERIOD;
use crate::rules::domain::Domains;
use crate::rules::rule::Bound;
use crate::shared::Shared;

/// Shortest time to the next check: a fortieth of a full budget.
const MIN_WAIT: Duration = Duration::from_millis(1);

impl Process {
    /// Returns the budget and its period.
    fn budget(&self) -> (Duration, Duration) {
        match self.rule.bound {
            Bound::Each(percent) => (PERIOD * percent * self.cpus.computing / 100, PERIOD),
            Bound::Budget(percent) => (PERIOD * percent / 100, PERIOD),
            Bound::Share(percent) => (PERIOD * percent * self.cpus.width / 100, PERIOD),
            Bound::Periodic { runtime, period } => (runtime, period),
        }
    }

    /// Pauses while its domain does.
    pub(in crate::rules) fn pause(&mut self, shared: &Shared, domains: &Domains, now: Instant) {
        if let Some(until) = domains.pause_end(&self.cpus.allowed, now) {
            self.add_usage(shared);
            self.move_to(ProcessClass::Paused { until });
            self.next_check = until;
        }
    }

    /// Moves the process to the class that its bounds allow, and sets the time of the next check.
    pub(in crate::rules) fn update_class(&mut self, shared: &Arc<Shared>, now: Instant) {
        let epoch = shared.epoch();
        let moved = std::mem::replace(&mut self.class_state.epoch, epoch) != epoch;
        if now < self.next_check && !moved {
            return;
        }
        let total = self.add_usage(shared);
        self.charge_quotas(total, now);
        let spent = self.period.spent(total);
        if spent >= self.budget().0 && matches!(self.rule.bound, Bound::Each(_)) {
            // More threads may compute than at the last count.
            self.count_cpus(shared);
        }
        let (budget, length) = self.budget();
        let rested = self.class_state.class == ProcessClass::Fair;
        if !rested && spent >= budget {
            self.period.rest(spent, budget, length, now);
        }
        let rests = self.period.rests(now);
        if !rests && (rested || now >= self.period.end(length)) {
            self.period.renew(total, now);
        }
        let overdrawn = self.quota_usage.is_overdrawn();
        let class = match self.class_state.class {
            // A process that rests would take most of the pause.
            paused @ ProcessClass::Paused { until } if now < until => paused,
            _ if rests || overdrawn => ProcessClass::Fair,
            _ => ProcessClass::Urgent,
        };
        let again = self.class_state.retry.is_some_and(|when| now >= when);
        if class != self.class_state.class || moved || again {
            self.move_to(class);
        }
        // All its threads may run at once, each on a CPU.
        let at_once = self.threads.len().clamp(1, shared.cpus) as u32;
        let left = budget.saturating_sub(self.period.spent(total));
        self.next_check = match class {
            ProcessClass::Fair if rests => self.period.rests_until(),
            ProcessClass::Fair if self.quota_usage.is_pending() => now + MIN_WAIT,
            ProcessClass::Fair => now + PERIOD,
            ProcessClass::Paused { until } => until,
            ProcessClass::Urgent => {
                (self.period.end(length)).min(now + (left / at_once).max(MIN_WAIT))
            }
        };
    }

    fn move_to(&mut self, class: ProcessClass) {
        self.class_state.retry = None;
        self.class_state.class = class;
        self.apply_class_to_all();
    }
}
