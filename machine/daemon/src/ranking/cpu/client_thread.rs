//! A thread of a registered process, and the policy of its band.
//!
//! ```text
//!   Own ──hold──▶ Fair ◀──▶ Fifo(p)        Own: untouched.
//!    ▲             ▲▼        ▲▼            Fair, Fifo, Idle: recorded by the elevator,
//!    └──release── Idle ◀─────┘             so the guardian restores it in any case.
//! ```
//!
//! A thread is recorded when it is first moved. Until then, and for threads that had another policy
//! than SCHED_OTHER (SCHED_BATCH, SCHED_RR), `Fair` means `Own`: a demoted thread has its own
//! policy.
//!
//! A thread may end silently, and its number be reused. So it is recorded, which fixes the start
//! time, *before* its clock proves that it still is the registered thread; while it is recorded, it
//! is checked more often than numbers can wrap around (`monitor.rs`).
//!
//! A change of class is one system call, 0.3–1 µs; the first hold and a release take some 15 µs.

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

/// Time for which a thread that could not be elevated is left alone.
const RETRY: Duration = Duration::from_secs(1);

/// The scheduling class of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ThreadClass {
    /// Its own policy, not recorded.
    Own,
    /// SCHED_OTHER.
    Fair,
    /// SCHED_FIFO.
    Fifo(Priority),
    /// SCHED_IDLE, for a pause.
    Idle,
}

/// The outcome of a move.
#[must_use]
#[derive(Debug)]
pub(crate) enum MoveOutcome {
    /// The thread had this class already.
    Unchanged,
    /// The thread has this class now.
    Moved,
    /// The thread has ended.
    Gone,
    /// The kernel refused; the thread is as it was, and left alone for a second.
    Refused(io::Error),
}

/// A thread in the roster; dropping this restores it.
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

/// A thread of a vCPU.
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
    /// [`Shared::epoch`] at the last move.
    epoch: u64,
    /// CPU time at the last check, ns.
    spent: u64,
    /// CPU time when its cgroup's quota was last charged, ns.
    charged: Option<u64>,
    /// CPU time between the last two checks, ns.
    pub(crate) used: u64,
    /// Set while the thread is in SCHED_IDLE for the present pause.
    pub(crate) pauses_now: bool,
    /// Set if the thread was elevated at any moment since the last check.
    was_raised: bool,
    gone: bool,
    /// Time until which the thread is left alone.
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
            spent: 0,
            charged: None,
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

    /// Whether the thread had not ended when it was last moved.
    pub(crate) fn exists(&self) -> bool {
        !self.gone
    }

    /// Whether the thread is recorded, so that moving it is cheap.
    pub(crate) fn is_recorded(&self) -> bool {
        self.entry.is_some()
    }

    /// Whether the thread has ended, regardless of its number now. 2 µs.
    pub(crate) fn has_ended(&self, machine: &dyn Machine) -> bool {
        let time = machine.cpu_time(self.clock.as_fd());
        time.is_err_and(|error| is_gone(&error))
    }

    /// Notes the end of the thread: it is released, and left alone from now on.
    pub(crate) fn end(&mut self) {
        self.release();
        self.gone = true;
    }

    /// Returns the CPU time since the last call, or since the thread was elevated after that, ns.
    pub(crate) fn spent(&mut self, machine: &dyn Machine) -> io::Result<u64> {
        let total = machine.cpu_time(self.clock.as_fd())?;
        let before = std::mem::replace(&mut self.spent, total);
        Ok(total.saturating_sub(before))
    }

    /// Returns the CPU time since the last call of this, elevated or not, ns.
    pub(crate) fn uncharged_time(&mut self, machine: &dyn Machine) -> u64 {
        let Ok(total) = machine.cpu_time(self.clock.as_fd()) else {
            return 0;
        };
        let before = self.charged.replace(total).unwrap_or(total);
        total.saturating_sub(before)
    }

    /// Whether the thread was elevated at any moment since the last call of this.
    pub(crate) fn was_elevated(&mut self) -> bool {
        let elevated = self.is_elevated();
        std::mem::replace(&mut self.was_raised, elevated)
    }

    /// Leaves the thread alone until `until`, with its own policy.
    pub(crate) fn eject(&mut self, until: Instant) {
        self.ejected_until = Some(until);
        self.release();
    }

    /// Moves the thread to `target`.
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
                let rises = self.is_elevated() && !std::mem::replace(&mut self.was_raised, true);
                if rises || class == ThreadClass::Idle {
                    // Its CPU time counts from now on. If it cannot be read now, the next check
                    // counts too much, once.
                    let _ = self.spent(shared.machine.as_ref());
                }
                MoveOutcome::Moved
            }
            // The number may mean no thread, or another one; the clock of the registration does
            // not.
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

    /// Restores the thread. If that fails, the elevator tries again, and finally the guardian.
    pub(crate) fn release(&mut self) {
        drop(self.entry.take());
        self.class = ThreadClass::Own;
    }
}

/// Whether the error means that the thread has ended.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::SRCH.raw_os_error())
}
