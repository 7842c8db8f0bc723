//! One assigned process: its threads, its bound.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use upshift_elevate::sys::CpuSet;
use upshift_elevate::{Class, Priority, Tid};

use crate::assign::domain::{Domains, LATELY, TURN};
use crate::assign::rule::{Bound, Reservation};
use crate::assign::{Assign, PERIOD};
use crate::quota::Bill;
use crate::roster::{EVERYWHERE, Hold, Owner};
use crate::shared::{Reserve, Shared};

/// See the module. Dropping it gives all its threads back.
#[derive(Debug)]
pub(super) struct Process {
    pid: i32,
    user: u32,
    rule: Assign,
    /// Since when it is assigned.
    since: Instant,
    threads: HashMap<Tid, Thread>,
    /// Those of which the record of CPU time has not been asked for.
    clockless: Vec<Tid>,
    /// Where it may run, and how many CPUs of one domain that are.
    cpus: CpuSet,
    width: u32,
    /// Where its threads are to be, and [`Shared::epoch`] when they were put there.
    place: Place,
    epoch: u64,
    /// When this period began, what it had used by then, and what it has taken over from its parent.
    began: Instant,
    before: Duration,
    carried: Duration,
    due: Instant,
    /// It has used its budget, and is ordinary until then.
    rests_until: Instant,
    /// It leaves its domain to others until then.
    aside_until: Option<Instant>,
    /// What it had used when that was read last, and when its domain was told of it.
    seen: Duration,
    told: Instant,
    /// What its domain has not been told of, and how much of that it has used while it was urgent.
    untold: (Duration, Duration),
    /// What it has used in the last [`LATELY`] periods of its domain, earlier ones for less.
    lately: Duration,
    /// Its main thread is in SCHED_DEADLINE, so that the kernel bounds it.
    reserved: bool,
    reserve: Option<Reserve>,
    /// The quotas of its cgroups, and what it had used when they were charged last.
    bill: Bill,
    charged: Duration,
}

/// Where the threads of a process are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In SCHED_FIFO, or SCHED_DEADLINE.
    Urgent,
    /// In SCHED_OTHER.
    Fair,
    /// In SCHED_IDLE: its domain takes a breath.
    Aside,
}

/// A thread in the roster; leaving it gives the thread back.
#[derive(Debug)]
struct Thread {
    hold: Arc<Hold>,
    /// Since when it is held.
    since: Instant,
    seen: Duration,
    lately: Duration,
    shared: Arc<Shared>,
}

impl Thread {
    /// As [`Process::lately`], of this thread.
    fn lately(&mut self, shared: &Shared) -> Duration {
        let total = self.hold.cpu_time(shared.machine.as_ref());
        let total = total.map_or(self.seen, Duration::from_nanos);
        let used = total.saturating_sub(std::mem::replace(&mut self.seen, total));
        self.lately = self.lately * (LATELY - 1) / LATELY + used;
        self.lately
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.shared.roster.remove(&self.hold);
    }
}

/// The last look before a budget is used up is no nearer: a fortieth of a full budget.
const LEAST: Duration = Duration::from_millis(1);

/// Threads of one process that are looked at for where it computes.
const LOOKED_AT: usize = 128;

/// Below the bands of registered processes (12 and above), above the canary: eight steps.
fn priority(level: u8) -> Priority {
    Priority::new(2 + (63 - level.min(63)) / 8).unwrap_or(Priority::MIN)
}

/// What a process that is forked takes over from its parent, under the same rule: the period and what was used in it, so that a program
/// does not evade its budget by forking.
#[derive(Debug, Clone)]
pub(super) struct Heritage {
    rule: Assign,
    began: Instant,
    carried: Duration,
    rests_until: Instant,
    aside_until: Option<Instant>,
    place: Place,
}

impl Process {
    /// `heritage` is of what it was forked from, if that is assigned, too.
    pub(super) fn attach(
        pid: i32,
        user: u32,
        rule: Assign,
        heritage: Option<Heritage>,
        shared: &Arc<Shared>,
        now: Instant,
    ) -> Process {
        let heritage = heritage.filter(|it| it.rule == rule);
        let mut process = Process {
            pid,
            user,
            rule,
            since: now,
            threads: HashMap::new(),
            clockless: Vec::new(),
            cpus: CpuSet::empty(),
            width: 1,
            place: Place::Urgent,
            epoch: shared.epoch(),
            began: now,
            before: Duration::ZERO,
            carried: Duration::ZERO,
            due: now,
            rests_until: now,
            aside_until: None,
            seen: Duration::ZERO,
            told: now,
            untold: (Duration::ZERO, Duration::ZERO),
            lately: Duration::ZERO,
            reserved: false,
            reserve: None,
            bill: shared.quotas.bill(pid),
            charged: Duration::ZERO,
        };
        let used = process.total(shared);
        (process.before, process.charged, process.seen) = (used, used, used);
        if let Some(parent) = heritage {
            process.began = parent.began;
            process.carried = parent.carried;
            process.rests_until = parent.rests_until;
            process.aside_until = parent.aside_until;
            process.place = parent.place;
        }
        process
    }

    /// What a process that it forks now takes over.
    pub(super) fn heritage(&self, shared: &Shared) -> Heritage {
        Heritage {
            rule: self.rule.clone(),
            began: self.began,
            carried: self.spent(self.bounded(shared)),
            rests_until: self.rests_until,
            aside_until: self.aside_until,
            place: self.place,
        }
    }

    pub(super) fn since(&self) -> Instant {
        self.since
    }

    pub(super) fn is_under(&self, rule: &Assign, user: u32) -> bool {
        self.rule == *rule && self.user == user
    }

    /// When to look at it next.
    pub(super) fn due(&self) -> Instant {
        self.due
    }

    pub(super) fn user(&self) -> u32 {
        self.user
    }

    /// How many threads of it are held.
    pub(super) fn threads(&self) -> usize {
        self.threads.len()
    }

    /// Takes in threads it had at `then` and does not know, of which there is `room` for so many, and forgets those that had ended.
    pub(super) fn count_threads(
        &mut self,
        (tids, then): (&HashSet<Tid>, Instant),
        shared: &Arc<Shared>,
        domains: &Domains,
        room: usize,
    ) {
        // Its main thread's; threads that have others of their own are where they are all the same.
        self.cpus = shared
            .sys
            .sched_getaffinity(self.pid)
            .unwrap_or(CpuSet::all());
        self.width = domains.width(&self.cpus);
        self.threads
            .retain(|tid, thread| tids.contains(tid) || thread.since >= then);
        self.note_main_thread(shared);
        let most = self.threads.len() + room;
        let main = tids.get(&self.pid);
        for &tid in main.into_iter().chain(tids) {
            if self.threads.len() < most {
                self.adopt(tid, shared);
            }
        }
    }

    /// A thread of it was born. One that cannot be had (it has ended, or has chosen a policy of its own) is left as it is.
    pub(super) fn adopt(&mut self, tid: Tid, shared: &Arc<Shared>) {
        let Some(elevator) = shared.elevator.as_ref() else {
            return;
        };
        if self.threads.contains_key(&tid) {
            return;
        }
        // Recorded first, which fixes the thread, and then proved to be of this process.
        let Ok(guard) = elevator.hold(tid) else {
            return;
        };
        let former = guard.former().map(|former| former.class());
        if !matches!(former, Some(Class::Other { .. })) {
            return;
        }
        if shared.sys.leader(tid).ok() != Some(self.pid) {
            return;
        }
        let owner = Owner {
            pid: self.pid,
            user: self.user,
            cpu: EVERYWHERE,
        };
        let thread = Thread {
            hold: shared.roster.add(guard, owner, None),
            since: Instant::now(),
            seen: Duration::ZERO,
            lately: Duration::ZERO,
            shared: Arc::clone(shared),
        };
        self.threads.insert(tid, thread);
        self.clockless.push(tid);
        if self.place != Place::Fair {
            self.put(tid);
        }
    }

    /// Threads of which the record of CPU time is to be opened, once.
    pub(super) fn take_clockless(&mut self) -> Vec<Tid> {
        std::mem::take(&mut self.clockless)
    }

    /// The record of CPU time of one of its threads.
    pub(super) fn give_clock(&mut self, tid: Tid, clock: OwnedFd) {
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.hold.give_clock(clock);
            let total = thread.hold.cpu_time(thread.shared.machine.as_ref());
            thread.seen = Duration::from_nanos(total.unwrap_or(0));
        }
    }

    /// A thread has ended; whether that was the last one.
    pub(super) fn lose(&mut self, tid: Tid, shared: &Shared) -> bool {
        self.threads.remove(&tid);
        self.note_main_thread(shared);
        self.threads.is_empty()
    }

    /// With the main thread the reservation ends, and the budget is for what is left.
    fn note_main_thread(&mut self, shared: &Shared) {
        if self.reserved && !self.threads.contains_key(&self.pid) {
            self.reserved = false;
            self.reserve = None;
            let now = Instant::now();
            (self.began, self.before, self.due) = (now, self.total(shared), now);
            self.carried = Duration::ZERO;
        }
    }

    /// What it has used so far, by threads that live and by those that have ended.
    fn total(&self, shared: &Shared) -> Duration {
        let total = shared.machine.process_time(self.pid);
        // It has ended: nothing more to come.
        total.map_or(self.seen, Duration::from_nanos)
    }

    /// What counts against its budget: not what the kernel bounds.
    fn bounded(&self, shared: &Shared) -> Duration {
        let main = self.threads.get(&self.pid).filter(|_| self.reserved);
        let of = |thread: &Thread| thread.hold.cpu_time(shared.machine.as_ref()).unwrap_or(0);
        let elsewhere = Duration::from_nanos(main.map_or(0, of));
        self.total(shared).saturating_sub(elsewhere)
    }

    /// What it has used in this period, having used `used` in all.
    fn spent(&self, used: Duration) -> Duration {
        used.saturating_sub(self.before) + self.carried
    }

    /// What it may use in how much time.
    fn budget(&self) -> (Duration, Duration) {
        match self.rule.bound {
            Bound::Budget(percent) => (PERIOD * percent / 100, PERIOD),
            Bound::Share(percent) => (PERIOD * percent * self.width / 100, PERIOD),
            Bound::Deadline(times) => (times.runtime, times.period),
        }
    }

    /// The times of its main thread, if that is to be reserved.
    fn reservation(&self, tid: Tid) -> Option<Reservation> {
        match self.rule.bound {
            Bound::Deadline(times) if tid == self.pid => Some(times),
            _ => None,
        }
    }

    /// Puts one of its threads where the process is.
    fn put(&mut self, tid: Tid) {
        let Some(Thread { hold, shared, .. }) = self.threads.get(&tid) else {
            return;
        };
        let reservation = self.reservation(tid);
        if let Some(it) = reservation
            && self.place == Place::Urgent
            && self.reserve.is_none()
        {
            let cpus = self.cpus.iter().count();
            self.reserve = shared.reserve(it.runtime, it.period, cpus);
        }
        // A thread that has ended is heard of, or found out; one that the kernel refuses stays as it is.
        match self.place {
            Place::Urgent => {
                let fits = reservation.filter(|_| self.reserve.is_some());
                let reserved = fits.is_some_and(|it| {
                    let how = |guard: &upshift_elevate::Elevated| {
                        guard.set_deadline(it.runtime, it.deadline, it.period)
                    };
                    hold.raise_by(how).is_ok_and(|raised| raised)
                });
                if !reserved {
                    // Pinned, or more than the kernel admits: the same budget in SCHED_FIFO.
                    let raised = hold.raise(priority(self.rule.level));
                    if raised.is_err_and(|error| error.raw_os_error() == Some(libc::EPERM)) {
                        let pid = self.pid;
                        shared.complain("refused", || {
                            format!("process {pid} stays ordinary, though a rule fits: the kernel refuses SCHED_FIFO. Its cgroup has no real-time time (see /proc/{pid}/cgroup; `cpu.rt_runtime_us` of the controller cpu, or RT_GROUP_SCHED with cgroup v2)")
                        });
                    }
                }
                if reservation.is_some() {
                    self.reserved = reserved;
                    self.reserve.take_if(|_| !reserved);
                }
            }
            Place::Aside if reservation.is_some() && self.reserved => {}
            Place::Aside => drop(hold.guard().set_idle()),
            Place::Fair => {
                drop(hold.guard().set_fair());
                if reservation.is_some() {
                    self.reserved = false;
                    self.reserve = None;
                }
            }
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

    /// Tells its domain what it has used, and where.
    pub(super) fn count(&mut self, shared: &Shared, domains: &mut Domains, now: Instant) {
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
        if self.lately * 50 < TURN * LATELY {
            return domains.charge(&self.cpus, urgent, 0);
        }
        let (mut cpus, mut threads) = (CpuSet::empty(), 0);
        for (&tid, thread) in self.threads.iter_mut().take(LOOKED_AT) {
            if thread.lately(shared) * 50 >= TURN * LATELY {
                threads += 1;
                let there = shared.sys.sched_getaffinity(tid);
                cpus = cpus.or(&there.unwrap_or(self.cpus));
            }
        }
        if threads == 0 {
            // Those that computed have ended.
            (cpus, threads) = (self.cpus, 1);
        }
        domains.charge(&cpus, urgent, threads);
    }

    /// It has ended, or is not under the rule any more: what it used since its domain was told is not known, so it counts as much as it
    /// can have been.
    pub(super) fn part(&self, domains: &mut Domains, now: Instant) {
        if self.place == Place::Urgent {
            domains.charge(&self.cpus, (now - self.told).min(TURN), 0);
        }
    }

    /// Steps aside while its domain takes a breath.
    pub(super) fn heed(&mut self, domains: &Domains, now: Instant) {
        if let Some(until) = domains.breath(&self.cpus, now) {
            self.aside_until = Some(until);
            self.due = now;
        }
    }

    /// Puts it where its bounds say, and decides when to look again.
    pub(super) fn settle(&mut self, shared: &Arc<Shared>, now: Instant) {
        let epoch = shared.epoch();
        let moved = std::mem::replace(&mut self.epoch, epoch) != epoch;
        if now < self.due && !moved {
            return;
        }
        self.note(shared);
        self.charge_quotas(shared, now);
        let (budget, period) = self.budget();
        let used = self.bounded(shared);
        let spent = self.spent(used);
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
        if place != self.place || moved {
            let reserved = self.reserved;
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
