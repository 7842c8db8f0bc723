//! A process to which a rule assigns a level: its threads, and their scheduling class.
//!
//! ```text
//!            ┌── domain pauses ────────▶ Paused ──┐
//!  Urgent ───┤                                    ├──▶ Urgent, or Fair if the budget is used up
//!     ▲      └── budget or quota used ──▶ Fair ───┘
//!     └────────── period over ─────────────┘
//! ```
//!
//! `period.rs` implements the budget of a period, `usage.rs` the used CPU time, and `bounds.rs` the
//! decision between the three classes. A change of class costs one system call for each thread.

mod bounds;
mod period;
mod rotation;
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
pub(super) use rotation::SLICE;
use usage::{ThreadUsage, Usage};

/// Time after which a change of class that the kernel has refused is retried.
const RETRY: Duration = Duration::from_secs(1);

/// A process under a rule. Dropping it restores all its threads.
#[derive(Debug)]
pub(super) struct Process {
    pid: i32,
    user: u32,
    rule: Assign,
    assigned_at: Instant,
    pub(super) parent: i32,
    is_child: bool,
    threads: HashMap<Tid, Thread>,
    /// Threads whose CPU clock has not yet been requested.
    without_clock: Vec<Tid>,
    cpus: Cpus,
    class_state: ClassState,
    period: Period,
    usage: Usage,
    quota_usage: QuotaUsage,
    next_check: Instant,
}

#[derive(Debug)]
struct Cpus {
    allowed: CpuSet,
    /// The largest number of allowed CPUs in one scheduling domain.
    width: u32,
    /// Number of CPUs that the process's computing threads occupy.
    computing: u32,
}

#[derive(Debug)]
struct ClassState {
    class: ProcessClass,
    /// [`Shared::epoch`] at the last change of class.
    epoch: u64,
    retry: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProcessClass {
    /// SCHED_FIFO: within the budget.
    Urgent,
    /// SCHED_OTHER: the budget or a quota is used up.
    Fair,
    /// SCHED_IDLE until the domain's pause ends.
    Paused { until: Instant },
}

#[derive(Debug)]
struct Thread {
    entry: Arc<RosterEntry>,
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

/// Maps a level (0–63) to one of the SCHED_FIFO priorities 3 to 10. They are below the priorities
/// of registered processes (12 and above), and above the daemon's starvation detector, the canary.
/// A child gets one priority less, so that forked work never delays its parent.
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

    /// Sets whether the parent is under the same rule. A change sets the priority of all threads.
    pub(super) fn set_child(&mut self, is_child: bool) {
        if self.is_child != is_child {
            self.is_child = is_child;
            self.apply_class_to_all();
        }
    }

    fn priority(&self) -> Priority {
        priority(self.rule.level, self.is_child)
    }

    pub(super) fn next_check(&self) -> Instant {
        self.next_check
    }

    pub(super) fn user(&self) -> u32 {
        self.user
    }

    pub(super) fn threads(&self) -> usize {
        self.threads.len()
    }

    /// Updates the set of threads and the CPUs from `tids`, the process's threads at the time
    /// `listed_at`. Adopts at most `max_new` new threads, and drops threads that are not in `tids`.
    pub(super) fn update_threads(
        &mut self,
        (tids, listed_at): (&HashSet<Tid>, Instant),
        shared: &Arc<Shared>,
        domains: &Domains,
        max_new: usize,
    ) {
        // The mask of the main thread represents the process; no thread's own mask is changed.
        let allowed = shared.sys.sched_getaffinity(self.pid);
        self.cpus.allowed = allowed.unwrap_or(CpuSet::all());
        self.cpus.width = domains.width(&self.cpus.allowed);
        self.threads
            .retain(|tid, thread| tids.contains(tid) || thread.recorded_at >= listed_at);
        let max_threads = self.threads.len() + max_new;
        let main = tids.get(&self.pid);
        for &tid in main.into_iter().chain(tids) {
            if self.threads.len() < max_threads {
                self.adopt(tid, shared);
            }
        }
    }

    /// Adds a new thread. A thread that has ended, or has chosen a policy other than SCHED_OTHER,
    /// is not changed.
    pub(super) fn adopt(&mut self, tid: Tid, shared: &Arc<Shared>) {
        let Some(elevator) = shared.elevator.as_ref() else {
            return;
        };
        if self.threads.contains_key(&tid) {
            return;
        }
        // The elevator's record identifies the thread by its start time. The check that the thread
        // belongs to this process must come after it, or the TID might be reused in between.
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

    /// Takes the threads whose CPU clock has not yet been requested.
    pub(super) fn take_without_clock(&mut self) -> Vec<Tid> {
        std::mem::take(&mut self.without_clock)
    }

    pub(super) fn set_clock(&mut self, tid: Tid, clock: OwnedFd) {
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.entry.set_clock(clock);
            let total = thread.entry.cpu_time(thread.shared.machine.as_ref());
            thread.usage.last_total = Duration::from_nanos(total.unwrap_or(0));
        }
    }

    /// Removes a thread that has ended. Returns whether no thread remains.
    pub(super) fn remove_thread(&mut self, tid: Tid) -> bool {
        self.threads.remove(&tid);
        self.threads.is_empty()
    }

    fn apply_class_to_all(&mut self) {
        let tids: Vec<Tid> = self.threads.keys().copied().collect();
        tids.into_iter().for_each(|tid| self.apply_class(tid));
    }

    fn apply_class(&mut self, tid: Tid) {
        let Some(Thread { entry, shared, .. }) = self.threads.get(&tid) else {
            return;
        };
        let result = match self.class_state.class {
            ProcessClass::Urgent => entry.raise(self.priority()).map(drop),
            ProcessClass::Fair => entry.guard().set_fair(),
            ProcessClass::Paused { .. } => entry.guard().set_idle(),
        };
        // If the thread has ended, its exit event or the next sweep removes it.
        if let Err(error) = result {
            kernel::report_refusal(shared, self.pid, &error);
            let retry_at = Instant::now() + RETRY;
            self.class_state.retry.get_or_insert(retry_at);
        }
    }
}
