//! [`Roster`]: every thread of a client that is recorded with the elevator, on all CPUs, so that all of them can be demoted at
//! once, whatever their schedulers do meanwhile.
//!
//! ```text
//!   scheduler of a CPU:  set SCHED_FIFO ─▶ look whether it is suspended ─▶ if so, take that back
//!   canary's watch:      suspend ─▶ set SCHED_OTHER
//! ```
//!
//! Both orders are sequentially consistent, so a suspended thread ends in SCHED_OTHER whichever comes first. A thread leaves the
//! roster before it is given back, under the lock under which it is demoted, so nothing is done to what is no longer held.
//!
//! What demotes threads without the schedulers counts an *epoch*: they place their threads again when it changes.

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

/// In place of a CPU: a thread that may run on several.
pub(crate) const EVERYWHERE: usize = usize::MAX;

/// Process and user of a thread, and where it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) pid: i32,
    pub(crate) user: u32,
    pub(crate) cpu: usize,
}

/// One recorded thread.
#[derive(Debug)]
pub(crate) struct Hold {
    number: u64,
    pub(crate) owner: Owner,
    guard: Elevated,
    /// Its record of CPU time, as soon as that is open.
    clock: OnceLock<Arc<OwnedFd>>,
    /// Whether its scheduler wants it in SCHED_FIFO.
    raised: AtomicBool,
    suspended: AtomicBool,
}

impl Hold {
    /// The guard, for everything but SCHED_FIFO.
    pub(crate) fn guard(&self) -> &Elevated {
        self.raised.store(false, Relaxed);
        &self.guard
    }

    /// Moves it to SCHED_FIFO at `priority`; `false`: it is suspended, and in SCHED_OTHER.
    pub(crate) fn raise(&self, priority: Priority) -> io::Result<bool> {
        self.raise_by(|guard| guard.set(priority))
    }

    /// As [`Hold::raise`], by what `how` does.
    pub(crate) fn raise_by(
        &self,
        how: impl FnOnce(&Elevated) -> io::Result<()>,
    ) -> io::Result<bool> {
        if self.suspended.load(SeqCst) {
            return Ok(false);
        }
        how(&self.guard)?;
        self.raised.store(true, SeqCst);
        if self.suspended.load(SeqCst) {
            self.guard.set_fair()?;
            return Ok(false);
        }
        Ok(true)
    }

    /// Puts it behind the other threads of `priority`, at which it is: a thread that is raised is
    /// the last of its priority. The rest is as with [`Hold::raise`].
    pub(crate) fn rotate(&self, priority: Priority) -> io::Result<bool> {
        let Ok(below) = Priority::new(priority.get() - 1) else {
            return Ok(true);
        };
        self.raise_by(|guard| guard.set(below).and_then(|()| guard.set(priority)))
    }

    /// Whether it may run on one of these CPUs.
    fn may_run_on(&self, cpus: &HashSet<usize>) -> bool {
        self.owner.cpu == EVERYWHERE || cpus.contains(&self.owner.cpu)
    }

    /// Whether its scheduler has raised it, and it is not suspended.
    pub(crate) fn is_up(&self) -> bool {
        self.raised.load(Acquire) && !self.suspended.load(SeqCst)
    }

    /// Returns whether it is to be up, and the kernel has it in SCHED_FIFO: other programs may
    /// have changed its policy. One system call.
    pub(crate) fn is_elevated(&self, sys: &dyn Sys) -> bool {
        let policy = || Policy::of(sys, self.guard.tid()).map(|policy| policy.class());
        self.is_up() && matches!(policy(), Ok(Class::Fifo(_)))
    }

    /// ns of CPU so far; `None` if it has ended, or that is not known yet.
    pub(crate) fn cpu_time(&self, machine: &dyn Machine) -> Option<u64> {
        machine.cpu_time(self.clock.get()?.as_fd()).ok()
    }

    /// Its record of CPU time, which was not there when it was taken in.
    pub(crate) fn give_clock(&self, clock: OwnedFd) {
        let _ = self.clock.set(Arc::new(clock));
    }
}

#[derive(Debug, Default)]
struct Held {
    holds: HashMap<u64, Arc<Hold>>,
    resting: Resting,
}

/// CPUs on which threads are suspended, those that come meanwhile included.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Resting {
    pub(crate) cpus: HashSet<usize>,
    pub(crate) everywhere: bool,
}

impl Resting {
    fn covers(&self, hold: &Hold) -> bool {
        self.everywhere || (!self.cpus.is_empty() && hold.may_run_on(&self.cpus))
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Roster {
    held: Mutex<Held>,
    next: AtomicU64,
    count: AtomicUsize,
    epoch: AtomicU64,
    /// Woken when the first thread comes.
    watch: OnceLock<Thread>,
}

impl Roster {
    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a thread in.
    pub(crate) fn add(
        &self,
        guard: Elevated,
        owner: Owner,
        clock: Option<Arc<OwnedFd>>,
    ) -> Arc<Hold> {
        let hold = Arc::new(Hold {
            number: self.next.fetch_add(1, Relaxed),
            owner,
            guard,
            clock: clock.map(OnceLock::from).unwrap_or_default(),
            raised: AtomicBool::new(false),
            suspended: AtomicBool::new(false),
        });
        let mut held = self.lock();
        if held.resting.covers(&hold) {
            hold.suspended.store(true, SeqCst);
        }
        held.holds.insert(hold.number, Arc::clone(&hold));
        let first = held.holds.len() == 1;
        self.count.store(held.holds.len(), SeqCst);
        drop(held);
        if first && let Some(watch) = self.watch.get() {
            watch.unpark();
        }
        hold
    }

    /// Gives a thread back. Whether it has ended its record of CPU time says, not a call that fails.
    pub(crate) fn remove(&self, hold: &Hold, machine: &dyn Machine) {
        let mut held = self.lock();
        held.holds.remove(&hold.number);
        self.count.store(held.holds.len(), SeqCst);
        drop(held);
        // If that fails the elevator goes on trying, and the guardian does it in the end.
        let _ = match hold.cpu_time(machine) {
            Some(_) => hold.guard.restore_living(),
            None => hold.guard.restore(),
        };
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(SeqCst) == 0
    }

    /// The calling thread is woken when the roster is no longer empty.
    pub(crate) fn is_watched_by_this_thread(&self) {
        let _ = self.watch.set(std::thread::current());
    }

    /// Changes when threads were moved by something else than the schedulers.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Acquire)
    }

    /// Those for which `which` holds.
    pub(crate) fn holds(&self, which: impl Fn(&Hold) -> bool) -> Vec<Arc<Hold>> {
        let held = self.lock();
        let chosen = held.holds.values().filter(|hold| which(hold));
        chosen.map(Arc::clone).collect()
    }

    /// Whether `which` holds for any of them.
    pub(crate) fn any(&self, which: impl Fn(&Hold) -> bool) -> bool {
        self.lock().holds.values().any(|hold| which(hold))
    }

    /// Demotes the threads that `resting` covers, and those that come there, until this is
    /// called again; the others may rise.
    pub(crate) fn rest(&self, resting: Resting) {
        let mut held = self.lock();
        held.resting = resting;
        for hold in held.holds.values() {
            let rests = held.resting.covers(hold);
            if hold.suspended.swap(rests, SeqCst) != rests && rests {
                // It has ended, or there is nothing to demote.
                let _ = hold.guard.set_fair();
            }
        }
        drop(held);
        self.stir();
    }

    /// Has the schedulers place all threads again; those that are suspended stay so.
    pub(crate) fn stir(&self) {
        self.epoch.fetch_add(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use upshift_elevate::sys::Kernel;
    use upshift_elevate::{Elevator, current_tid};

    use super::*;

    #[test]
    fn a_thread_that_the_kernel_has_as_ordinary_is_not_elevated() {
        let guard = Elevator::new().unwrap().hold(current_tid()).unwrap();
        let owner = Owner {
            pid: 1,
            user: 0,
            cpu: EVERYWHERE,
        };
        let hold = Roster::default().add(guard, owner, None);
        // Raised, and given SCHED_OTHER by another program at once.
        assert!(hold.raise_by(|_| Ok(())).unwrap());
        assert!(hold.is_up());
        assert!(!hold.is_elevated(&Kernel));
    }
}
