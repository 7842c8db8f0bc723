//! Records all threads that the daemon may elevate. The canaries are threads that detect an
//! occupied CPU. With the roster, their monitor can demote threads on all CPUs, independently of
//! the schedulers of these CPUs.
//!
//! ```text
//!   scheduler of a CPU:  set SCHED_FIFO ─▶ read whether it is suspended ─▶ if so, demote it
//!   canaries' monitor:   suspend ─▶ set SCHED_OTHER
//! ```
//!
//! The steps of both sides are sequentially consistent, so a suspended thread ends in SCHED_OTHER
//! whichever side comes first. The monitor demotes threads under the lock of the roster, and a
//! thread leaves the roster, under the same lock, before it is restored. So a restored thread is
//! never demoted.
//!
//! A demotion that was not made by a scheduler increments the *epoch*. The schedulers then set the
//! policies of their threads again.
//!
//! In this module, *suspended* describes a thread that must stay demoted, not a coroutine that was
//! interrupted in a poll.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;

use upshift_elevate::sys::Sys;
use upshift_elevate::{Class, Elevated, Policy, Priority};

use crate::machine::Machine;

/// CPU of a thread that may run on several CPUs.
pub(crate) const EVERYWHERE: usize = usize::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) pid: i32,
    pub(crate) user: u32,
    pub(crate) cpu: usize,
}

#[derive(Debug)]
pub(crate) struct RosterEntry {
    id: u64,
    pub(crate) owner: Owner,
    guard: Elevated,
    /// Descriptor from which the thread's CPU time is read; unset until it has been opened.
    clock: OnceLock<Arc<OwnedFd>>,
    /// Set while the thread's scheduler keeps it in SCHED_FIFO.
    raised: AtomicBool,
    suspended: AtomicBool,
}

impl RosterEntry {
    /// Returns the guard so that the caller can move the thread out of SCHED_FIFO, and marks the
    /// thread as not raised.
    pub(crate) fn guard(&self) -> &Elevated {
        self.raised.store(false, Relaxed);
        &self.guard
    }

    /// Moves the thread to SCHED_FIFO at `priority`. Returns `false` if the thread is suspended,
    /// and therefore stays in SCHED_OTHER.
    pub(crate) fn raise(&self, priority: Priority) -> io::Result<bool> {
        self.raise_with(|guard| guard.set(priority))
    }

    /// Like [`RosterEntry::raise`], but `set` changes the policy.
    pub(crate) fn raise_with(
        &self,
        set: impl FnOnce(&Elevated) -> io::Result<()>,
    ) -> io::Result<bool> {
        if self.suspended.load(SeqCst) {
            return Ok(false);
        }
        set(&self.guard)?;
        self.raised.store(true, SeqCst);
        if self.suspended.load(SeqCst) {
            self.guard.set_fair()?;
            return Ok(false);
        }
        Ok(true)
    }

    /// Moves the thread behind the other threads of its `priority` by lowering and raising it,
    /// because the kernel queues a raised thread last in its new priority. Otherwise like
    /// [`RosterEntry::raise`].
    pub(crate) fn rotate(&self, priority: Priority) -> io::Result<bool> {
        let Ok(lower) = Priority::new(priority.get() - 1) else {
            return Ok(true);
        };
        self.raise_with(|guard| guard.set(lower).and_then(|()| guard.set(priority)))
    }

    fn may_run_on(&self, cpus: &HashSet<usize>) -> bool {
        self.owner.cpu == EVERYWHERE || cpus.contains(&self.owner.cpu)
    }

    pub(crate) fn is_raised(&self) -> bool {
        self.raised.load(Acquire) && !self.suspended.load(SeqCst)
    }

    /// Returns whether the thread is raised and still in SCHED_FIFO, since another program may have
    /// changed its policy. This costs at most one system call.
    pub(crate) fn is_elevated(&self, sys: &dyn Sys) -> bool {
        let policy = || Policy::of(sys, self.guard.tid()).map(|policy| policy.class());
        self.is_raised() && matches!(policy(), Ok(Class::Fifo(_)))
    }

    /// Returns the CPU time of the thread, ns; `None` if the thread has ended or its CPU time is
    /// still unknown.
    pub(crate) fn cpu_time(&self, machine: &dyn Machine) -> Option<u64> {
        machine.cpu_time(self.clock.get()?.as_fd()).ok()
    }

    pub(crate) fn set_clock(&self, clock: OwnedFd) {
        let _ = self.clock.set(Arc::new(clock));
    }
}

#[derive(Debug, Default)]
struct State {
    entries: HashMap<u64, Arc<RosterEntry>>,
    suspension: Suspension,
}

/// CPUs on which all threads are suspended, including threads that are added later.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Suspension {
    pub(crate) cpus: HashSet<usize>,
    pub(crate) everywhere: bool,
}

impl Suspension {
    fn covers(&self, entry: &RosterEntry) -> bool {
        self.everywhere || (!self.cpus.is_empty() && entry.may_run_on(&self.cpus))
    }
}

#[derive(Debug, Default)]
pub(crate) struct Roster {
    state: Mutex<State>,
    next_id: AtomicU64,
    count: AtomicUsize,
    epoch: AtomicU64,
    /// Thread of the canaries' monitor, which is woken when the first thread is added.
    monitor: OnceLock<Thread>,
}

impl Roster {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a thread, which is suspended at once if its CPU is. Wakes the monitor if the roster was
    /// empty.
    pub(crate) fn add(
        &self,
        guard: Elevated,
        owner: Owner,
        clock: Option<Arc<OwnedFd>>,
    ) -> Arc<RosterEntry> {
        let entry = Arc::new(RosterEntry {
            id: self.next_id.fetch_add(1, Relaxed),
            owner,
            guard,
            clock: clock.map(OnceLock::from).unwrap_or_default(),
            raised: AtomicBool::new(false),
            suspended: AtomicBool::new(false),
        });
        let mut state = self.lock();
        if state.suspension.covers(&entry) {
            entry.suspended.store(true, SeqCst);
        }
        state.entries.insert(entry.id, Arc::clone(&entry));
        let is_first = state.entries.len() == 1;
        self.count.store(state.entries.len(), SeqCst);
        drop(state);
        if is_first && let Some(monitor) = self.monitor.get() {
            monitor.unpark();
        }
        entry
    }

    /// Removes a thread and restores it. Its CPU clock decides whether the thread has ended,
    /// because a failing system call may have other causes.
    pub(crate) fn remove(&self, entry: &RosterEntry, machine: &dyn Machine) {
        let mut state = self.lock();
        state.entries.remove(&entry.id);
        self.count.store(state.entries.len(), SeqCst);
        drop(state);
        // If the restoration fails, the elevator retries it, and finally the guardian does.
        let _ = match entry.cpu_time(machine) {
            Some(_) => entry.guard.restore_living(),
            None => entry.guard.restore(),
        };
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(SeqCst) == 0
    }

    pub(crate) fn set_monitor_to_this_thread(&self) {
        let _ = self.monitor.set(std::thread::current());
    }

    /// Returns the epoch, which increases when a thread is demoted, but not by its own scheduler.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Acquire)
    }

    pub(crate) fn select(&self, predicate: impl Fn(&RosterEntry) -> bool) -> Vec<Arc<RosterEntry>> {
        let state = self.lock();
        let chosen = state.entries.values().filter(|entry| predicate(entry));
        chosen.map(Arc::clone).collect()
    }

    pub(crate) fn any(&self, predicate: impl Fn(&RosterEntry) -> bool) -> bool {
        self.lock().entries.values().any(|entry| predicate(entry))
    }

    /// Suspends all threads on the CPUs of `suspension`, including threads that are added later,
    /// until the next call. All other threads may be raised.
    pub(crate) fn suspend(&self, suspension: Suspension) {
        let mut state = self.lock();
        state.suspension = suspension;
        for entry in state.entries.values() {
            let suspended = state.suspension.covers(entry);
            if entry.suspended.swap(suspended, SeqCst) != suspended && suspended {
                // An error means that the thread has ended.
                let _ = entry.guard.set_fair();
            }
        }
        drop(state);
        self.bump_epoch();
    }

    pub(crate) fn bump_epoch(&self) {
        self.epoch.fetch_add(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use upshift_elevate::sys::Kernel;
    use upshift_elevate::{Elevator, current_tid};

    use super::*;

    #[test]
    fn a_raised_thread_that_another_program_demotes_is_not_elevated() {
        let guard = Elevator::new().unwrap().record(current_tid()).unwrap();
        let owner = Owner {
            pid: 1,
            user: 0,
            cpu: EVERYWHERE,
        };
        let entry = Roster::default().add(guard, owner, None);
        // The thread is raised, and another program gives it SCHED_OTHER at once.
        assert!(entry.raise_with(|_| Ok(())).unwrap());
        assert!(entry.is_raised());
        assert!(!entry.is_elevated(&Kernel));
    }
}
