//! An assigned process: its threads, and their scheduling class.
//!
//! ```text
//!            ┌── domain pauses ─────────▶ Paused ──┐
//!  Urgent ───┤                                    ├──▶ Urgent, or Fair if the budget is used up
//!     ▲      └── budget or quota used ─▶ Fair ───┘
//!     └────────── period over ─────────────┘
//! ```
//!
//! The budget of a period is in `period.rs`, used CPU time in `usage.rs`, and the decision between
//! the three classes in `bounds.rs`. A change of class costs one system call for each thread.

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

use crate::bounds::quota::QuotaUsage;
use crate::ranking::roster::{EVERYWHERE, Owner, RosterEntry};
use crate::rules::Assign;
use crate::rules::domain::Domains;
use crate::rules::kernel;
use crate::shared::Shared;
use period::Period;
pub(super) use turns::SLICE;
use usage::{ThreadUsage, Usage};

/// Time after which a move that the kernel has refused is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// A process under a rule. Dropping it restores all its threads.
#[derive(Debug)]
pub(super) struct Process {
    pid: i32,
    user: u32,
    rule: Assign,
    /// Start of the assignment.
    assigned_at: Instant,
    /// Parent process.
    pub(super) parent: i32,
    /// Set when the parent is under the same rule.
    is_child: bool,
    threads: HashMap<Tid, Thread>,
    /// Threads whose record of CPU time has not been requested.
    without_clock: Vec<Tid>,
    cpus: Cpus,
    class_state: ClassState,
    period: Period,
    usage: Usage,
    /// Quotas of its cgroups.
    quota_usage: QuotaUsage,
    /// Time of the next check.
    next_check: Instant,
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

/// The class of a process's threads.
#[derive(Debug)]
struct ClassState {
    class: ProcessClass,
    /// [`Shared::epoch`] at the last move.
    epoch: u64,
    /// Time of the next try, if the kernel has refused a thread.
    retry: Option<Instant>,
}

/// Scheduling class of all threads of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProcessClass {
    /// SCHED_FIFO.
    Urgent,
    /// SCHED_OTHER.
    Fair,
    /// SCHED_IDLE while its domain pauses.
    Paused { until: Instant },
}

/// A thread in the roster; dropping this restores it.
#[derive(Debug)]
struct Thread {
    entry: Arc<RosterEntry>,
    /// Time at which the thread was recorded.
    recorded_at: Instant,
    usage: ThreadUsage,
    shared: Arc<Shared>,
}

impl Drop for Thread {
    fn drop(&mut self) {
        let machine = self.shared.machine.as_ref();
        self.shared.roster.remove(&self.entry, machine);
    }
}

/// Returns the priority of a level: eight steps, below the bands of registered processes (12 and
/// above) and above the canary. Children are a step below their parent.
fn priority(level: u8, is_child: bool) -> Priority {
    let step = 3 + (63 - level.min(63)) / 8;
    Priority::new(step - u8::from(is_child)).unwrap_or(Priority::MIN)
}

/// State that a forked process inherits from its parent under the same rule, so that forking does
/// not evade a budget.
#[derive(Debug, Clone)]
pub(super) struct Inheritance {
    rule: Assign,
    period: Period,
    class: ProcessClass,
}

impl Process {
    /// Attaches a process; `inheritance` is that of its parent, if that is assigned, too.
    pub(super) fn attach(
        pid: i32,
        user: u32,
        rule: Assign,
        inheritance: Option<Inheritance>,
        shared: &Arc<Shared>,
        now: Instant,
    ) -> Process {
        let inheritance = inheritance.filter(|parent| parent.rule == rule);
        let usage = Usage::new(pid, shared, now);
        let (class, period) = match inheritance {
            Some(parent) => (parent.class, parent.period.with_total(usage.last_total)),
            None => (ProcessClass::Urgent, Period::new(usage.last_total, now)),
        };
        Process {
            pid,
            user,
            rule,
            assigned_at: now,
            parent: 0,
            is_child: false,
            threads: HashMap::new(),
            without_clock: Vec::new(),
            cpus: Cpus {
                allowed: CpuSet::empty(),
                width: 1,
                computing: 1,
            },
            class_state: ClassState {
                class,
                epoch: shared.epoch(),
                retry: None,
            },
            period,
            usage,
            quota_usage: shared.quotas.usage(pid),
            next_check: now,
        }
    }

    /// Returns the state that a process forked now inherits.
    pub(super) fn inheritance(&self, shared: &Shared) -> Inheritance {
        Inheritance {
            rule: self.rule.clone(),
            period: self.period.for_child(self.total(shared)),
            class: self.class_state.class,
        }
    }

    pub(super) fn assigned_at(&self) -> Instant {
        self.assigned_at
    }

    pub(super) fn is_under(&self, rule: &Assign, user: u32) -> bool {
        self.rule == *rule && self.user == user
    }

    pub(super) fn rule(&self) -> &Assign {
        &self.rule
    }

    /// Sets whether its parent is under the same rule, and moves its threads if that has changed.
    pub(super) fn set_child(&mut self, is_child: bool) {
        if self.is_child != is_child {
            self.is_child = is_child;
            self.apply_class_to_all();
        }
    }

    /// Returns the priority of its threads while it is urgent.
    fn priority(&self) -> Priority {
        priority(self.rule.level, self.is_child)
    }

    /// Returns the time of the next check.
    pub(super) fn next_check(&self) -> Instant {
        self.next_check
    }

    pub(super) fn user(&self) -> u32 {
        self.user
    }

    /// Returns the number of threads that are held.
    pub(super) fn threads(&self) -> usize {
        self.threads.len()
    }

    /// Adopts unknown threads that it had at `then`, at most `room`, and forgets threads that had
    /// ended.
    pub(super) fn count_threads(
        &mut self,
        (tids, then): (&HashSet<Tid>, Instant),
        shared: &Arc<Shared>,
        domains: &Domains,
        room: usize,
    ) {
        // The CPUs of the main thread; threads with a mask of their own keep it all the same.
        let allowed = shared.sys.sched_getaffinity(self.pid);
        self.cpus.allowed = allowed.unwrap_or(CpuSet::all());
        self.cpus.width = domains.width(&self.cpus.allowed);
        self.threads
            .retain(|tid, thread| tids.contains(tid) || thread.recorded_at >= then);
        let most = self.threads.len() + room;
        let main = tids.get(&self.pid);
        for &tid in main.into_iter().chain(tids) {
            if self.threads.len() < most {
                self.adopt(tid, shared);
            }
        }
    }

    /// Adopts a thread that was born. A thread that has ended or has chosen a policy of its own is
    /// left alone.
    pub(super) fn adopt(&mut self, tid: Tid, shared: &Arc<Shared>) {
        let Some(elevator) = shared.elevator.as_ref() else {
            return;
        };
        if self.threads.contains_key(&tid) {
            return;
        }
        // Recorded first, which fixes the thread, and then proved to be of this process.
        let Ok(guard) = elevator.record(tid) else {
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
            entry: shared.roster.add(guard, owner, None),
            recorded_at: Instant::now(),
            usage: ThreadUsage::default(),
            shared: Arc::clone(shared),
        };
        self.threads.insert(tid, thread);
        self.without_clock.push(tid);
        if self.class_state.class != ProcessClass::Fair {
            self.apply_class(tid);
        }
    }

    /// Takes the threads whose record of CPU time is to be opened, once.
    pub(super) fn take_without_clock(&mut self) -> Vec<Tid> {
        std::mem::take(&mut self.without_clock)
    }

    /// Sets the record of CPU time of one of its threads.
    pub(super) fn set_clock(&mut self, tid: Tid, clock: OwnedFd) {
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.entry.set_clock(clock);
            let total = thread.entry.cpu_time(thread.shared.machine.as_ref());
            thread.usage.last_total = Duration::from_nanos(total.unwrap_or(0));
        }
    }

    /// Forgets a thread that has ended. Returns whether it was the last one.
    pub(super) fn remove_thread(&mut self, tid: Tid) -> bool {
        self.threads.remove(&tid);
        self.threads.is_empty()
    }

    /// Moves all threads to the class of the process.
    fn apply_class_to_all(&mut self) {
        let tids: Vec<Tid> = self.threads.keys().copied().collect();
        tids.into_iter().for_each(|tid| self.apply_class(tid));
    }

    /// Moves one thread to the class of the process. A refusal of the kernel is tried again.
    fn apply_class(&mut self, tid: Tid) {
        let Some(Thread { entry, shared, .. }) = self.threads.get(&tid) else {
            return;
        };
        let apply_class = match self.class_state.class {
            ProcessClass::Urgent => entry.raise(self.priority()).map(drop),
            ProcessClass::Fair => entry.guard().set_fair(),
            ProcessClass::Paused { .. } => entry.guard().set_idle(),
        };
        // The end of a thread is reported, or noticed by a sweep.
        if let Err(error) = apply_class {
            kernel::report_refusal(shared, self.pid, &error);
            let again = Instant::now() + RETRY;
            self.class_state.retry.get_or_insert(again);
        }
    }
}
