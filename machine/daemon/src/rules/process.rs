//! One assigned process: its threads, and where they are put. What it may use is in `process/bounds.rs`.

mod bounds;
mod turns;

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use upshift_elevate::sys::CpuSet;
use upshift_elevate::{Class, Policy, Priority, Tid};

use crate::bounds::quota::Bill;
use crate::ranking::roster::{EVERYWHERE, Hold, Owner};
use crate::rules::Assign;
use crate::rules::domain::{Domains, LATELY};
use crate::rules::reserves::Reserve;
use crate::rules::rule::{Bound, Reservation};
use crate::shared::{HEARTBEAT, Shared};
pub(super) use turns::SLICE;

/// What the kernel has refused is tried again after so long.
const RETRY: Duration = Duration::from_secs(1);

/// A thread enters SCHED_DEADLINE when it has been outside for so many periods. One that had used its reservation up when it left has a timer in the kernel until that would
/// have been filled again, and if it comes back before that goes off, Linux 6.18 does not run it at all: 28 of 144 that came back within 18 ms (period: 20), 10 of 240 after 21 or 22, 0 of 360 after 25 to 40.
const OUTSIDE: u32 = 2;

/// See the module. Dropping it gives all its threads back.
#[derive(Debug)]
pub(super) struct Process {
    pid: i32,
    user: u32,
    rule: Assign,
    /// Its parent process, and whether that is under the same rule.
    pub(super) parent: i32,
    is_child: bool,
    /// Since when it is assigned.
    since: Instant,
    threads: HashMap<Tid, Thread>,
    /// Those of which the record of CPU time has not been asked for.
    clockless: Vec<Tid>,
    /// Where it may run, and how many CPUs of one domain that are.
    cpus: CpuSet,
    width: u32,
    /// Number of these CPUs on which its threads compute.
    runs_on: u32,
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
    /// ns of CPU of its main thread when that was last looked at with its reservation, and since when these are as many, or it slept.
    ran: (u64, Instant),
    /// Its main thread enters SCHED_DEADLINE no sooner: see [`OUTSIDE`].
    enters_from: Instant,
    /// Since when its main thread is not in SCHED_DEADLINE, where it was put, and [`Shared::epoch`] then.
    left: Option<(Instant, u64)>,
    /// The kernel kept it from the CPU in SCHED_DEADLINE, or it has left that by itself: it does not go back there.
    was_kept_off: bool,
    /// Some thread is not where it is to be, for the kernel refuses, or admits no more: when all are put there again.
    refused: Option<Instant>,
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
    /// Whether it had not ended then.
    lives: bool,
    lately: Duration,
    /// CPU time of the thread when it was last put behind the others of its priority.
    turned: Duration,
    shared: Arc<Shared>,
}

impl Thread {
    /// As [`Process::lately`], of this thread.
    fn lately(&mut self, shared: &Shared) -> Duration {
        let total = self.hold.cpu_time(shared.machine.as_ref());
        self.lives = total.is_some();
        let total = total.map_or(self.seen, Duration::from_nanos);
        let used = total.saturating_sub(std::mem::replace(&mut self.seen, total));
        self.lately = self.lately * (LATELY - 1) / LATELY + used;
        self.lately
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // What nothing has looked at a second time, too.
        if self.left.is_some() || (self.watch_reservation(Instant::now()) && self.left.is_some()) {
            self.lose_reserve();
        }
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        let machine = self.shared.machine.as_ref();
        self.shared.roster.remove(&self.hold, machine);
    }
}

/// Returns the priority of a level: eight steps, below the bands of registered processes (12 and
/// above) and above the canary. Children are a step below their parent.
fn priority(level: u8, is_child: bool) -> Priority {
    let step = 3 + (63 - level.min(63)) / 8;
    Priority::new(step - u8::from(is_child)).unwrap_or(Priority::MIN)
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
            parent: 0,
            is_child: false,
            since: now,
            threads: HashMap::new(),
            clockless: Vec::new(),
            cpus: CpuSet::empty(),
            width: 1,
            runs_on: 1,
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
            ran: (0, now),
            enters_from: now,
            left: None,
            was_kept_off: false,
            refused: None,
            bill: shared.quotas.bill(pid),
            charged: Duration::ZERO,
        };
        // It may have left SCHED_DEADLINE just now: the daemon was started again, or has read its rules again.
        process.stays_outside(now);
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

    pub(super) fn rule(&self) -> &Assign {
        &self.rule
    }

    /// Notes whether its parent is under the same rule, and moves its threads if that has changed.
    pub(super) fn set_child(&mut self, is_child: bool) {
        if self.is_child != is_child {
            self.is_child = is_child;
            let tids: Vec<Tid> = self.threads.keys().copied().collect();
            tids.into_iter().for_each(|tid| self.put(tid));
        }
    }

    /// Returns the priority of its threads while it is urgent.
    fn priority(&self) -> Priority {
        priority(self.rule.level, self.is_child)
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
            lives: true,
            lately: Duration::ZERO,
            turned: Duration::ZERO,
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

    /// Looks whether its main thread has left SCHED_DEADLINE though nothing of the daemon's has taken it out, and whether that is still so after the time in
    /// which the watch or the guardian would have said that it was they. Then what it had reserved stays charged to its user. One system call. Whether its threads
    /// are to be placed again.
    fn watch_reservation(&mut self, now: Instant) -> bool {
        let Some(Thread { hold, shared, .. }) = self.threads.get(&self.pid) else {
            return false;
        };
        if let Some((since, epoch)) = self.left {
            if shared.epoch() != epoch {
                self.left = None;
                self.stays_outside(now);
                return true;
            }
            if now - since >= HEARTBEAT {
                let (pid, user) = (self.pid, self.user);
                shared.complain("left", || {
                    format!("process {pid} of user {user} has left SCHED_DEADLINE by itself: it has a budget, and its user has that much less to reserve, for the kernel may have lost it")
                });
                self.left = None;
                self.was_kept_off = true;
                self.lose_reserve();
            }
            return false;
        }
        let is_elsewhere = || {
            Policy::of(shared.sys.as_ref(), self.pid).is_ok_and(|it| it.class() != Class::Deadline)
        };
        if !self.reserved || !is_elsewhere() || !hold.is_up() || shared.epoch() != self.epoch {
            return false;
        }
        self.left = Some((now, self.epoch));
        self.reserved = false;
        true
    }

    /// Others than this process's scheduler have moved threads: whether its main thread is not in SCHED_DEADLINE any more. One system call.
    fn is_put_outside(&mut self, shared: &Shared, now: Instant) -> bool {
        let policy = || Policy::of(shared.sys.as_ref(), self.pid);
        if !self.reserved || policy().is_ok_and(|it| it.class() == Class::Deadline) {
            return false;
        }
        self.reserved = false;
        self.stays_outside(now);
        true
    }

    /// Its main thread is outside of SCHED_DEADLINE, since now at the latest.
    fn stays_outside(&mut self, now: Instant) {
        if let Bound::Deadline(times) = self.rule.bound {
            self.enters_from = now + OUTSIDE * times.period;
        }
    }

    fn lose_reserve(&mut self) {
        if let Some(reserve) = self.reserve.take() {
            reserve.lose();
        }
    }

    /// The times of its main thread, if that is to be reserved.
    fn reservation(&self, tid: Tid) -> Option<Reservation> {
        match self.rule.bound {
            Bound::Deadline(times)
                if tid == self.pid && !self.was_kept_off && self.left.is_none() =>
            {
                Some(times)
            }
            _ => None,
        }
    }

    /// Whether this is its main thread, and in SCHED_DEADLINE.
    fn is_reserved(&self, tid: Tid) -> bool {
        self.reserved && tid == self.pid
    }

    /// Puts one of its threads where the process is. What the kernel refuses is tried again.
    fn put(&mut self, tid: Tid) {
        let now = Instant::now();
        if !self.try_put(tid, now) {
            let again = match self.enters_from > now {
                true => self.enters_from,
                false => now + RETRY,
            };
            self.refused.get_or_insert(again);
        }
    }

    /// Whether the thread is there.
    fn try_put(&mut self, tid: Tid, now: Instant) -> bool {
        let Some(Thread { hold, shared, .. }) = self.threads.get(&tid) else {
            return true;
        };
        let reservation = self.reservation(tid);
        if reservation.is_some() && self.place == Place::Urgent && self.reserve.is_none() {
            let cpus = self.cpus.iter().count();
            self.reserve = shared.reserve(&self.rule, self.user, cpus);
        }
        // A thread that has ended is heard of, or found out.
        match self.place {
            Place::Urgent => {
                let may_enter = self.is_reserved(tid) || now >= self.enters_from;
                let fits = reservation.filter(|_| self.reserve.is_some() && may_enter);
                let reserved = fits.is_some_and(|it| {
                    let how = |guard: &upshift_elevate::Elevated| {
                        guard.set_deadline(it.runtime, it.deadline, it.period)
                    };
                    hold.raise_by(how).is_ok_and(|raised| raised)
                });
                let mut there = reserved;
                if !reserved {
                    // Pinned, more than the kernel admits, or not yet: the same budget in SCHED_FIFO.
                    let raised = hold.raise(self.priority());
                    there = raised.is_ok() && reservation.is_none();
                    if raised.is_err_and(|error| error.raw_os_error() == Some(libc::EPERM)) {
                        let pid = self.pid;
                        shared.complain("refused", || {
                            format!("process {pid} stays ordinary, though a rule fits: the kernel refuses SCHED_FIFO. Its cgroup has no real-time time (see /proc/{pid}/cgroup; `cpu.rt_runtime_us` of the controller cpu, or RT_GROUP_SCHED with cgroup v2)")
                        });
                    }
                }
                if reservation.is_some() {
                    self.reserved = reserved;
                    self.reserve.take_if(|_| !reserved && may_enter);
                }
                there
            }
            Place::Aside if self.is_reserved(tid) => true,
            Place::Aside => hold.guard().set_idle().is_ok(),
            Place::Fair => {
                let there = hold.guard().set_fair().is_ok();
                if self.is_reserved(tid) {
                    self.reserved = false;
                    self.stays_outside(now);
                }
                if reservation.is_some() {
                    self.reserve = None;
                }
                there
            }
        }
    }
}
