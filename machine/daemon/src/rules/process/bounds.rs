//! The place of an assigned process: from its budget, its domain, quotas and the canary.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Place, Process};
use crate::rules::PERIOD;
use crate::rules::domain::Domains;
use crate::rules::rule::Bound;
use crate::shared::Shared;

/// Shortest time to the next look: a fortieth of a full budget.
const LEAST: Duration = Duration::from_millis(1);

impl Process {
    /// Returns its budget, and the period of that.
    fn budget(&self) -> (Duration, Duration) {
        match self.rule.bound {
            Bound::Each(percent) => (PERIOD * percent * self.cpus.computing / 100, PERIOD),
            Bound::Budget(percent) => (PERIOD * percent / 100, PERIOD),
            Bound::Share(percent) => (PERIOD * percent * self.cpus.width / 100, PERIOD),
            Bound::Periodic { runtime, period } => (runtime, period),
        }
    }

    /// Steps aside while its domain takes a breath.
    pub(in crate::rules) fn heed(&mut self, shared: &Shared, domains: &Domains, now: Instant) {
        if let Some(until) = domains.breath(&self.cpus.allowed, now) {
            self.note(shared);
            self.move_to(Place::Aside { until });
            self.due = until;
        }
    }

    /// Puts it where its bounds say, and decides when to look again.
    pub(in crate::rules) fn settle(&mut self, shared: &Arc<Shared>, now: Instant) {
        let epoch = shared.epoch();
        let moved = std::mem::replace(&mut self.placement.epoch, epoch) != epoch;
        if now < self.due && !moved {
            return;
        }
        let total = self.note(shared);
        self.charge_quotas(total, now);
        let spent = self.period.spent(total);
        if spent >= self.budget().0 && matches!(self.rule.bound, Bound::Each(_)) {
            // More threads may compute than when they were counted.
            self.count_cpus(shared);
        }
        let (budget, length) = self.budget();
        let rested = self.placement.place == Place::Fair;
        if !rested && spent >= budget {
            self.period.rest(spent, budget, length, now);
        }
        let rests = self.period.rests(now);
        if !rests && (rested || now >= self.period.end(length)) {
            self.period.renew(total, now);
        }
        let overdrawn = self.bill.is_overdrawn();
        let place = match self.placement.place {
            // A process that rests would take most of the breath.
            aside @ Place::Aside { until } if now < until => aside,
            _ if rests || overdrawn => Place::Fair,
            _ => Place::Urgent,
        };
        let again = self.placement.retry.is_some_and(|when| now >= when);
        if place != self.placement.place || moved || again {
            self.move_to(place);
        }
        // All its threads may run at once, each on a CPU.
        let at_once = self.threads.len().clamp(1, shared.cpus) as u32;
        let left = budget.saturating_sub(self.period.spent(total));
        self.due = match place {
            Place::Fair if rests => self.period.rests_until(),
            Place::Fair if self.bill.is_awaited() => now + LEAST,
            Place::Fair => now + PERIOD,
            Place::Aside { until } => until,
            Place::Urgent => (self.period.end(length)).min(now + (left / at_once).max(LEAST)),
        };
    }

    fn move_to(&mut self, place: Place) {
        self.placement.retry = None;
        self.placement.place = place;
        self.put_all();
    }
}
