//! A thread of a registered process, and the scheduling policy that follows from its vCPU's band.
//!
//! ```text
//!   Own ─record─▶ Fair ◀──▶ Fifo(p)        Own: not recorded, policy unchanged.
//!    ▲             ▲▼        ▲▼            Fair, Fifo, Idle: recorded by the elevator,
//!    └──release── Idle ◀─────┘             so the guardian restores the thread in any case.
//! ```
//!
//! A thread is *recorded* when it is first moved, that is, the elevator (`upshift-elevate`) stores
//! its policy. Before that, and for threads that had another policy than SCHED_OTHER (SCHED_BATCH,
//! SCHED_RR), `Fair` means `Own`, so a demoted thread returns to its own policy.
//!
//! A thread may end without a report, and its TID may be reused. So the elevator first records the
//! thread by its start time, and the thread's clock is checked *afterwards*. The clock proves that
//! the TID still means the registered thread. Recorded threads are checked more often than the TIDs
//! of a machine can wrap around (`monitor.rs`).
//!
//! A change of class is one system call, which takes 0.3–1 µs. Recording and releasing a thread
//! take about 15 µs each.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use upshift_board::wire::Role;
use upshift_elevate::{Class, Elevator, Priority, Tid};

use crate::machine::Machine;
use crate::ranking::roster::{Owner, RosterEntry};
use crate::shared::Shared;

/// Time for which a thread is not moved after the kernel has refused a move.
const RETRY: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ThreadClass {
    Own,
    Fair,
    Fifo(Priority),
    /// SCHED_IDLE, for a pause.
    Idle,
}

#[must_use]
#[derive(Debug)]
pub(crate) enum MoveOutcome {
    Unchanged,
    Moved,
    Gone,
    /// The kernel refused. The thread is restored, and is not moved for [`RETRY`].
    Refused(io::Error),
}

/// A thread in the roster, the list of recorded threads. Dropping the guard restores the thread.
#[derive(Debug)]
struct RosterGuard {
    entry: Arc<RosterEntry>,
    shared: Arc<Shared>,
}

impl Drop for RosterGuard {
    fn drop(&mut self) {
        let machine = self.shared.machine.as_ref();
        self.shared.roster.remove(&self.entry, machine);
    }
}

#[derive(Debug)]
pub(crate) struct ClientThread {
    pub(crate) tid: Tid,
    pub(crate) role: Role,
    owner: Owner,
    clock: Arc<OwnedFd>,
    entry: Option<RosterGuard>,
    /// Set if the thread had SCHED_OTHER when it was recorded.
    was_fair: bool,
    class: ThreadClass,
    epoch: u64,
    /// Total CPU time at the last call of [`ClientThread::take_cpu_time`], ns.
    taken_total: u64,
    /// Total CPU time at the last call of [`ClientThread::uncharged_time`], ns.
    charged_total: Option<u64>,
    /// CPU time that the last check has charged, ns; 0 if the thread was not elevated.
    pub(crate) used: u64,
    pub(crate) pauses_now: bool,
    /// Set if the thread was elevated at any moment since the last check.
    was_raised: bool,
    gone: bool,
    ejected_until: Option<Instant>,
}

impl ClientThread {
    pub(crate) fn new(tid: Tid, role: Role, clock: Arc<OwnedFd>, owner: Owner) -> ClientThread {
        ClientThread {
            tid,
            role,
            owner,
            clock,
            entry: None,
            was_fair: false,
            class: ThreadClass::Own,
            epoch: 0,
            taken_total: 0,
            charged_total: None,
            used: 0,
            pauses_now: false,
            was_raised: false,
            gone: false,
            ejected_until: None,
        }
    }

    pub(crate) fn class(&self) -> ThreadClass {
        self.class
    }

    pub(crate) fn is_elevated(&self) -> bool {
        matches!(self.class, ThreadClass::Fifo(_))
    }

    pub(crate) fn exists(&self) -> bool {
        !self.gone
    }

    pub(crate) fn is_recorded(&self) -> bool {
        self.entry.is_some()
    }

    /// Returns whether the thread has ended, even if its TID is in use again. Takes about 2 µs.
    pub(crate) fn has_ended(&self, machine: &dyn Machine) -> bool {
        let time = machine.cpu_time(self.clock.as_fd());
        time.is_err_and(|error| is_gone(&error))
    }

    pub(crate) fn end(&mut self) {
        self.release();
        self.gone = true;
    }

    /// Returns the CPU time since the last call, or since the thread was last elevated or moved to
    /// SCHED_IDLE if that was later, ns.
    pub(crate) fn take_cpu_time(&mut self, machine: &dyn Machine) -> io::Result<u64> {
        let total = machine.cpu_time(self.clock.as_fd())?;
        let before = std::mem::replace(&mut self.taken_total, total);
        Ok(total.saturating_sub(before))
    }

    /// Returns the CPU time since the last call of this function, elevated or not, ns.
    pub(crate) fn uncharged_time(&mut self, machine: &dyn Machine) -> u64 {
        let Ok(total) = machine.cpu_time(self.clock.as_fd()) else {
            return 0;
        };
        let before = self.charged_total.replace(total).unwrap_or(total);
        total.saturating_sub(before)
    }

    pub(crate) fn was_elevated(&mut self) -> bool {
        let elevated = self.is_elevated();
        std::mem::replace(&mut self.was_raised, elevated)
    }

    pub(crate) fn eject(&mut self, until: Instant) {
        self.ejected_until = Some(until);
        self.release();
    }

    /// Moves the thread to `target`, unless it is ejected. This costs one system call if the class
    /// changes and the thread is recorded.
    pub(crate) fn move_to(
        &mut self,
        target: ThreadClass,
        elevator: &Elevator,
        shared: &Arc<Shared>,
        now: Instant,
    ) -> MoveOutcome {
        let epoch = shared.epoch();
        let moved_by_others = std::mem::replace(&mut self.epoch, epoch) != epoch;
        if target == self.class && !(moved_by_others && self.is_recorded()) {
            return MoveOutcome::Unchanged;
        }
        if self.ejected_until.is_some_and(|until| now < until) {
            return MoveOutcome::Unchanged;
        }
        self.ejected_until = None;
        match self.try_move(target, elevator, shared) {
            Ok(class) if class == self.class => MoveOutcome::Unchanged,
            Ok(class) => {
                self.class = class;
                let newly_elevated =
                    self.is_elevated() && !std::mem::replace(&mut self.was_raised, true);
                if newly_elevated || class == ThreadClass::Idle {
                    // The thread's CPU time counts from this moment. If it cannot be read now, the
                    // next check counts an earlier part, too, which is harmless.
                    let _ = self.take_cpu_time(shared.machine.as_ref());
                }
                MoveOutcome::Moved
            }
            // The TID may mean no thread by now, or another thread. The clock, which was opened
            // at the registration, always means this thread.
            Err(_) if self.has_ended(shared.machine.as_ref()) => {
                self.end();
                MoveOutcome::Gone
            }
            Err(error) => {
                self.eject(now + RETRY);
                MoveOutcome::Refused(error)
            }
        }
    }

    fn try_move(
        &mut self,
        target: ThreadClass,
        elevator: &Elevator,
        shared: &Arc<Shared>,
    ) -> io::Result<ThreadClass> {
        if target == ThreadClass::Own
            || (target == ThreadClass::Fair && (!self.is_recorded() || !self.was_fair))
        {
            self.release();
            return Ok(ThreadClass::Own);
        }
        if self.entry.is_none() {
            let guard = elevator.record(self.tid)?;
            if self.has_ended(shared.machine.as_ref()) {
                return Err(Errno::SRCH.into());
            }
            let former = guard.former().map(|former| former.class());
            self.was_fair = matches!(former, Some(Class::Other { .. }));
            let clock = Arc::clone(&self.clock);
            self.entry = Some(RosterGuard {
                entry: shared.roster.add(guard, self.owner, Some(clock)),
                shared: Arc::clone(shared),
            });
        }
        let Some(RosterGuard { entry, .. }) = &self.entry else {
            return Ok(self.class);
        };
        match target {
            ThreadClass::Fifo(priority) => {
                if !entry.raise(priority)? {
                    return Ok(ThreadClass::Fair);
                }
            }
            ThreadClass::Idle => entry.guard().set_idle()?,
            ThreadClass::Own | ThreadClass::Fair => entry.guard().set_fair()?,
        }
        Ok(target)
    }

    /// Restores the thread. If the restoration fails, the elevator repeats it, and finally the
    /// guardian.
    pub(crate) fn release(&mut self) {
        drop(self.entry.take());
        self.class = ThreadClass::Own;
    }
}

pub(crate) fn is_gone(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::SRCH.raw_os_error())
}
