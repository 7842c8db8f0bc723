//! What an assigned process has used, of what it may, and where that puts it.
//!
//! Reading what it has used is one system call, of a time that grows with its threads.

use std::sync::Arc;
use std::time::{Duration, Instant};

use upshift_elevate::Tid;
use upshift_elevate::sys::{CpuSet, sleeps};

use super::{Place, Process, Thread};
use crate::rules::PERIOD;
use crate::rules::domain::{Domains, LATELY, TURN};
use crate::rules::rule::Bound;
use crate::shared::Shared;

/// The last look before a budget is used up is no nearer: a fortieth of a full budget.
const LEAST: Duration = Duration::from_millis(1);

/// For so many of its periods a thread with a reservation that does not sleep has not run if the kernel keeps it from the CPU.
const KEPT_OFF: u32 = 10;

/// CPU time in the last [`LATELY`] turns of its domain from which on a thread computes: one in 50.
pub(super) const COMPUTES: Duration = Duration::from_millis(2);
const _: () = assert!(COMPUTES.as_millis() * 50 == TURN.as_millis() * LATELY as u128);

/// Threads of one process that are looked at for where it computes.
const LOOKED_AT: usize = 128;

impl Process {
    /// What it has used so far, by threads that live and by those that have ended.
    pub(super) fn total(&self, shared: &Shared) -> Duration {
        let total = shared.machine.process_time(self.pid);
        // It has ended: nothing more to come.
        total.map_or(self.seen, Duration::from_nanos)
    }

    /// What counts against its budget: not what the kernel bounds.
    pub(super) fn bounded(&self, shared: &Shared) -> Duration {
        let main = self.threads.get(&self.pid).filter(|_| self.reserved);
        let of = |thread: &Thread| thread.hold.cpu_time(shared.machine.as_ref()).unwrap_or(0);
        let elsewhere = Duration::from_nanos(main.map_or(0, of));
        self.total(shared).saturating_sub(elsewhere)
    }

    /// What it has used in this period, having used `used` in all.
    pub(super) fn spent(&self, used: Duration) -> Duration {
        used.saturating_sub(self.before) + self.carried
    }

    /// What it may use in how much time.
    fn budget(&self) -> (Duration, Duration) {
        match self.rule.bound {
            Bound::Each(percent) => (PERIOD * percent * self.runs_on / 100, PERIOD),
            Bound::Budget(percent) => (PERIOD * percent / 100, PERIOD),
            Bound::Share(percent) => (PERIOD * percent * self.width / 100, PERIOD),
            Bound::Deadline(times) => (times.runtime, times.period),
        }
    }

    /// Notes what it has used since this was called last, where it has been since then.
    fn note(&mut self, shared: &Shared) {
        let total = self.total(shared);
        let used = total.saturating_sub(std::mem::replace(&mut self.seen, total));
        self.untold.0 += used;
        if self.place == Place::Urgent {
            self.untold.1 += used;
            shared.accounts.add(None, used);
        }
    }

    /// Counts the CPUs that it runs on: as many as it has threads that compute now, and no more
    /// than it may use. One system call for each thread.
    fn count_cpus(&mut self, shared: &Shared) {
        let machine = shared.machine.as_ref();
        let computes = |thread: &&Thread| {
            let total = thread.hold.cpu_time(machine).map(Duration::from_nanos);
            // A thread that has ended runs on no CPU.
            total.is_some_and(|total| thread.lately + total.saturating_sub(thread.seen) >= COMPUTES)
        };
        let threads = self.threads.values().take(LOOKED_AT).filter(computes);
        self.runs_on = (threads.count() as u32).clamp(1, self.width);
    }

    /// Tells its domain what it has used, and where.
    pub(in crate::rules) fn count(&mut self, shared: &Shared, domains: &mut Domains, now: Instant) {
        if shared.machine.process_time(self.pid).is_err() {
            // Its end has not been heard of yet.
            self.part(domains, now);
            self.told = now;
            return;
        }
        self.note(shared);
        let (used, urgent) = std::mem::take(&mut self.untold);
        self.told = now;
        self.lately = self.lately * (LATELY - 1) / LATELY + used;
        self.runs_on = 1;
        if self.lately < COMPUTES {
            return domains.charge(&self.cpus, urgent, 0);
        }
        let (mut cpus, mut threads, mut living) = (CpuSet::empty(), 0, 0);
        for (&tid, thread) in self.threads.iter_mut().take(LOOKED_AT) {
            if thread.lately(shared) >= COMPUTES {
                threads += 1;
                living += u32::from(thread.lives);
                let there = shared.sys.sched_getaffinity(tid);
                cpus = cpus.or(&there.unwrap_or(self.cpus));
            }
        }
        self.runs_on = living.clamp(1, self.width);
        if threads == 0 {
            // Those that computed have ended.
            (cpus, threads) = (self.cpus, 1);
        }
        domains.charge(&cpus, urgent, threads);
    }

    /// It has ended, or is not under the rule any more: what it used since its domain was told is not known, so it counts as much as it
    /// can have been.
    pub(in crate::rules) fn part(&self, domains: &mut Domains, now: Instant) {
        if self.place == Place::Urgent {
            domains.charge(&self.cpus, (now - self.told).min(TURN), 0);
        }
    }

    /// Steps aside while its domain takes a breath.
    pub(in crate::rules) fn heed(&mut self, domains: &Domains, now: Instant) {
        if let Some(until) = domains.breath(&self.cpus, now) {
            self.aside_until = Some(until);
            self.due = now;
        }
    }

    /// Puts it where its bounds say, and decides when to look again.
    pub(in crate::rules) fn settle(&mut self, shared: &Arc<Shared>, now: Instant) {
        let epoch = shared.epoch();
        let moved = std::mem::replace(&mut self.epoch, epoch) != epoch;
        if now < self.due && !moved {
            return;
        }
        let outside = match moved {
            true => self.is_put_outside(shared, now),
            false => self.watch_reservation(now) | self.is_kept_off(shared, now),
        };
        let moved = moved | outside;
        self.note(shared);
        if outside {
            // From now on all threads count, and what the reservation bounded does not.
            (self.began, self.before) = (now, self.bounded(shared));
            self.carried = Duration::ZERO;
        }
        self.charge_quotas(shared, now);
        let used = self.bounded(shared);
        let spent = self.spent(used);
        if spent >= self.budget().0 && matches!(self.rule.bound, Bound::Each(_)) {
            // More threads may compute than when they were counted.
            self.count_cpus(shared);
        }
        let (budget, period) = self.budget();
        if self.place != Place::Fair && spent >= budget && !self.is_wholly_reserved() {
            // Ordinary until it has had its share of the time, however late this was noticed.
            let whole = period.mul_f64(spent.as_secs_f64() / budget.as_secs_f64());
            self.rests_until = (self.began + whole).max(now);
        }
        let rests = now < self.rests_until;
        let rested = self.place == Place::Fair;
        if !rests && (rested || now - self.began >= period) {
            (self.began, self.before, self.carried) = (now, used, Duration::ZERO);
        }
        let barred = shared.bars.is_barred(self.user, now) || self.bill.is_overdrawn();
        self.aside_until = self.aside_until.filter(|&until| now < until);
        let place = match (rests || barred, self.aside_until) {
            // What rests would take most of what its domain leaves to others.
            (_, Some(_)) => Place::Aside,
            (true, None) => Place::Fair,
            (false, None) => Place::Urgent,
        };
        let again = self.refused.is_some_and(|when| now >= when);
        if place != self.place || moved || again {
            let reserved = self.reserved;
            self.refused = None;
            self.place = place;
            let tids: Vec<Tid> = self.threads.keys().copied().collect();
            tids.into_iter().for_each(|tid| self.put(tid));
            if reserved != self.reserved {
                // From now on other threads count.
                (self.began, self.before) = (now, self.bounded(shared));
                self.carried = Duration::ZERO;
            }
        }
        // All its threads may run at once, each on a CPU.
        let at_once = self.threads.len().clamp(1, shared.cpus) as u32;
        let spent = self.spent(self.bounded(shared));
        let left = budget.saturating_sub(spent);
        self.due = match self.place {
            Place::Fair if rests => self.rests_until,
            Place::Fair if self.bill.is_awaited() => now + LEAST,
            Place::Fair => now + PERIOD,
            Place::Aside => self.aside_until.unwrap_or(now),
            Place::Urgent if self.is_wholly_reserved() => now + PERIOD,
            Place::Urgent => (self.began + period).min(now + (left / at_once).max(LEAST)),
        };
    }

    /// Whether the kernel has kept its main thread from the CPU, though it has a reservation and does not sleep: Linux 6.18 does so now and then to one
    /// that was throttled when it left SCHED_DEADLINE, and came back; for ever, also if it is killed. From now on it has its budget in SCHED_FIFO.
    fn is_kept_off(&mut self, shared: &Shared, now: Instant) -> bool {
        let Bound::Deadline(times) = self.rule.bound else {
            return false;
        };
        let used = |it: &Thread| it.hold.cpu_time(shared.machine.as_ref());
        let Some(used) = self.threads.get(&self.pid).and_then(used) else {
            return false;
        };
        let (before, since) = self.ran;
        // Its reservation is due in each period; longer than the canaries wait, since a CPU may stand still.
        let long = (KEPT_OFF * times.period).max(KEPT_OFF * PERIOD);
        if !self.reserved || used != before || (now - since >= long && sleeps(self.pid)) {
            self.ran = (used, now);
            return false;
        }
        if now - since < long {
            return false;
        }
        self.was_kept_off = true;
        self.reserved = false;
        self.reserve = None;
        let pid = self.pid;
        shared.complain("kept off", || {
            format!("process {pid} has a budget in place of its deadline: the kernel did not run it for {KEPT_OFF} periods")
        });
        true
    }

    /// Whether the kernel bounds all there is of it.
    fn is_wholly_reserved(&self) -> bool {
        self.reserved && self.threads.len() == 1
    }

    /// Charges what it has used to the quotas of its cgroups.
    fn charge_quotas(&mut self, shared: &Shared, now: Instant) {
        let total = self.total(shared);
        let charged = &mut self.charged;
        let used = || total.saturating_sub(std::mem::replace(charged, total));
        self.bill.charge(used, now);
    }
}
