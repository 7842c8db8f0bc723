//! One assigned process: its threads, and where they are put.
//!
//! ```text
//!            ┌── domain takes a breath ──▶ Aside ──┐
//!  Urgent ───┤                                     ├──▶ Urgent, or Fair if the budget is used up
//!     ▲      └── budget used, barred ────▶ Fair ───┘
//!     └────────── period over ──────────────┘
//! ```
//!
//! The budget of a period is in `period.rs`, used CPU time in `usage.rs`, and the decision
//! between the three places in `bounds.rs`. A change of place costs one system call for each
//! thread.

mod bounds;
mod period;
mod turns;
mod usage;

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use upshift_elevate::sys::CpuSet;
use upshift_elevate::{Class, Priority, Tid};

use crate::bounds::quota::Bill;
use crate::ranking::roster::{EVERYWHERE, Hold, Owner};
use crate::rules::Assign;
use crate::rules::domain::Domains;
use crate::rules::kernel;
use crate::shared::Shared;
use period::Period;
pub(super) use turns::SLICE;
use usage::{ThreadUsage, Usage};

/// A placement that the kernel has refused is tried again after this time.
const RETRY: Duration = Duration::from_secs(1);

/// Process under a rule. Dropping it gives all its threads back.
#[derive(Debug)]
pub(super) struct Process {
    pid: i32,
    user: u32,
    rule: Assign,
    /// Start of the assignment.
    since: Instant,
    /// Parent process.
    pub(super) parent: i32,
    /// Set when the parent is under the same rule.
    is_child: bool,
    threads: HashMap<Tid, Thread>,
    /// Threads whose record of CPU time has not been asked for.
    clockless: Vec<Tid>,
    cpus: Cpus,
    placement: Placement,
    period: Period,
    usage: Usage,
    /// Quotas of its cgroups.
    bill: Bill,
    /// Time of the next look.
    due: Instant,
}

/// CPUs that a process may use.
#[derive(Debug)]
struct Cpus {
    allowed: CpuSet,
    /// Number of allowed CPUs in one domain.
    width: u32,
    /// Number of CPUs on which its threads compute.
    computing: u32,
}

/// Where the threads of a process are to be.
#[derive(Debug)]
struct Placement {
    place: Place,
    /// [`Shared::epoch`] when they were put there.
    epoch: u64,
    /// Time of the next try, if the kernel has refused some thread.
    retry: Option<Instant>,
}

/// Class of all threads of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// SCHED_FIFO.
    Urgent,
    /// SCHED_OTHER.
    Fair,
    /// SCHED_IDLE while its domain takes a breath.
    Aside { until: Instant },
}

/// A thread in the roster; leaving it gives the thread back.
#[derive(Debug)]
struct Thread {
    hold: Arc<Hold>,
    /// Start of the hold.
    since: Instant,
    usage: ThreadUsage,
    shared: Arc<Shared>,
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

/// State that a forked process takes over from its parent under the same rule, so that a program
/// does not evade its budget by forking.
#[derive(Debug, Clone)]
pub(super) struct Heritage {
    rule: Assign,
    period: Period,
    place: Place,
}

impl Process {
    /// Attaches a process; `heritage` is of its parent, if that is assigned, too.
    pub(super) fn attach(
        pid: i32,
        user: u32,
        rule: Assign,
        heritage: Option<Heritage>,
        shared: &Arc<Shared>,
        now: Instant,
    ) -> Process {
        let heritage = heritage.filter(|it| it.rule == rule);
        let usage = Usage::new(pid, shared, now);
        let (place, period) = match heritage {
            Some(parent) => (parent.place, parent.period.inherited(usage.seen)),
            None => (Place::Urgent, Period::new(usage.seen, now)),
        };
        Process {
            pid,
            user,
            rule,
            since: now,
            parent: 0,
            is_child: false,
            threads: HashMap::new(),
            clockless: Vec::new(),
            cpus: Cpus {
                allowed: CpuSet::empty(),
                width: 1,
                computing: 1,
            },
            placement: Placement {
                place,
                epoch: shared.epoch(),
                retry: None,
            },
            period,
            usage,
            bill: shared.quotas.bill(pid),
            due: now,
        }
    }

    /// Returns the state that a process takes over which it forks now.
    pub(super) fn heritage(&self, shared: &Shared) -> Heritage {
        Heritage {
            rule: self.rule.clone(),
            period: self.period.spent_so_far(self.total(shared)),
            place: self.placement.place,
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
            self.put_all();
        }
    }

    /// Returns the priority of its threads while it is urgent.
    fn priority(&self) -> Priority {
        priority(self.rule.level, self.is_child)
    }

    /// Returns the time of the next look.
    pub(super) fn due(&self) -> Instant {
        self.due
    }

    pub(super) fn user(&self) -> u32 {
        self.user
    }

    /// Returns the number of threads that are held.
    pub(super) fn threads(&self) -> usize {
        self.threads.len()
    }

    /// Adopts unknown threads that it had at `then`, at most `room`, and forgets those that had
    /// ended.
    pub(super) fn count_threads(
        &mut self,
        (tids, then): (&HashSet<Tid>, Instant),
        shared: &Arc<Shared>,
        domains: &Domains,
        room: usize,
    ) {
        // CPUs of the main thread; threads with a mask of their own keep it all the same.
        let allowed = shared.sys.sched_getaffinity(self.pid);
        self.cpus.allowed = allowed.unwrap_or(CpuSet::all());
        self.cpus.width = domains.width(&self.cpus.allowed);
        self.threads
            .retain(|tid, thread| tids.contains(tid) || thread.since >= then);
        let most = self.threads.len() + room;
        let main = tids.get(&self.pid);
        for &tid in main.into_iter().chain(tids) {
            if self.threads.len() < most {
                self.adopt(tid, shared);
            }
        }
    }

    /// Adopts a thread that was born. One that has ended or has chosen a policy of its own is left
    /// alone.
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
            usage: ThreadUsage::default(),
            shared: Arc::clone(shared),
        };
        self.threads.insert(tid, thread);
        self.clockless.push(tid);
        if self.placement.place != Place::Fair {
            self.put(tid);
        }
    }

    /// Takes the threads whose record of CPU time is to be opened, once.
    pub(super) fn take_clockless(&mut self) -> Vec<Tid> {
        std::mem::take(&mut self.clockless)
    }

    /// Hands over the record of CPU time of one of its threads.
    pub(super) fn give_clock(&mut self, tid: Tid, clock: OwnedFd) {
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.hold.give_clock(clock);
            let total = thread.hold.cpu_time(thread.shared.machine.as_ref());
            thread.usage.seen = Duration::from_nanos(total.unwrap_or(0));
        }
    }

    /// Forgets a thread that has ended, and returns whether it was the last one.
    pub(super) fn lose(&mut self, tid: Tid) -> bool {
        self.threads.remove(&tid);
        self.threads.is_empty()
    }

    /// Puts all threads where the process is.
    fn put_all(&mut self) {
        let tids: Vec<Tid> = self.threads.keys().copied().collect();
        tids.into_iter().for_each(|tid| self.put(tid));
    }

    /// Puts one thread where the process is. A refusal of the kernel is tried again.
    fn put(&mut self, tid: Tid) {
        let Some(Thread { hold, shared, .. }) = self.threads.get(&tid) else {
            return;
        };
        let put = match self.placement.place {
            Place::Urgent => hold.raise(self.priority()).map(drop),
            Place::Fair => hold.guard().set_fair(),
            Place::Aside { .. } => hold.guard().set_idle(),
        };
        // A thread that has ended is heard of, or found out.
        if let Err(error) = put {
            kernel::tell_refusal(shared, self.pid, &error);
            let again = Instant::now() + RETRY;
            self.placement.retry.get_or_insert(again);
        }
    }
}
