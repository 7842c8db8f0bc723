//! One thread of a registered process, and the policy that its band means.
//!
//! ```text
//!   Own ──hold──▶ Fair ◀──▶ Fifo(p)        Own: untouched. Fair, Fifo, Idle: recorded by the elevator, so the guardian
//!    ▲             ▲▼        ▲▼            gives it back whatever happens.
//!    └──release── Idle ◀─────┘
//! ```
//!
//! A thread is recorded when it is first moved. Until then, and for threads that had another policy than SCHED_OTHER
//! (SCHED_BATCH, SCHED_RR), `Fair` means `Own`: demoted is what it had.
//!
//! A thread may end without a word, and its number come to mean any other thread. So it is recorded, which fixes the start
//! time, *before* its clock proves that it still is the one that was registered; and as long as it is recorded, it is looked at
//! more often than numbers can come round (`watch.rs`).
//!
//! A change of place is one system call, 0.3–1 µs; the first hold and a release some 15 µs.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use upshift_board::wire::Role;
use upshift_elevate::{Class, Elevator, Priority, Tid};

use crate::machine::Machine;
use crate::ranking::roster::{Hold, Owner};
use crate::shared::Shared;

/// How long a thread that could not be elevated is left alone.
const RETRY: Duration = Duration::from_secs(1);

/// Where a thread is, or shall be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// As it was, and not recorded.
    Own,
    /// SCHED_OTHER.
    Fair,
    /// SCHED_FIFO.
    Fifo(Priority),
    /// SCHED_IDLE, for a breath.
    Idle,
}

/// What became of a placing.
#[must_use]
#[derive(Debug)]
pub(crate) enum Placed {
    /// It was there already.
    Already,
    /// It is there now.
    Moved,
    /// The thread has ended.
    Gone,
    /// The kernel refused; the thread is as it was, and left alone for a second.
    Refused(io::Error),
}

/// A thread in the roster; leaving it gives the thread back.
#[derive(Debug)]
struct Held {
    hold: Arc<Hold>,
    shared: Arc<Shared>,
}

impl Drop for Held {
    fn drop(&mut self) {
        let machine = self.shared.machine.as_ref();
        self.shared.roster.remove(&self.hold, machine);
    }
}

/// One thread under this scheduler's charge.
#[derive(Debug)]
pub(crate) struct Charge {
    pub(crate) tid: Tid,
    pub(crate) role: Role,
    owner: Owner,
    clock: Arc<OwnedFd>,
    hold: Option<Held>,
    /// Whether it had SCHED_OTHER when it was recorded.
    was_fair: bool,
    place: Place,
    /// [`Shared::epoch`] when it was put there.
    epoch: u64,
    /// CPU time at the last look, ns.
    spent: u64,
    /// CPU time that was charged to its cgroup's quota, ns.
    charged: Option<u64>,
    /// CPU time between the last two looks, ns.
    pub(crate) used: u64,
    /// Whether it steps back in the breath under way.
    pub(crate) burns: bool,
    /// Elevated at some moment since the last look.
    rose: bool,
    gone: bool,
    /// Time until which it is left alone.
    out_until: Option<Instant>,
}

impl Charge {
    pub(crate) fn new(tid: Tid, role: Role, clock: Arc<OwnedFd>, owner: Owner) -> Charge {
        Charge {
            tid,
            role,
            owner,
            clock,
            hold: None,
            was_fair: false,
            place: Place::Own,
            epoch: 0,
            spent: 0,
            charged: None,
            used: 0,
            burns: false,
            rose: false,
            gone: false,
            out_until: None,
        }
    }

    pub(crate) fn place(&self) -> Place {
        self.place
    }

    pub(crate) fn is_elevated(&self) -> bool {
        matches!(self.place, Place::Fifo(_))
    }

    /// Whether it had not ended when it was last moved.
    pub(crate) fn exists(&self) -> bool {
        !self.gone
    }

    /// Whether it is recorded, so that it costs nothing to move.
    pub(crate) fn is_held(&self) -> bool {
        self.hold.is_some()
    }

    /// Whether it has ended, whatever has its number now. 2 µs.
    pub(crate) fn has_ended(&self, machine: &dyn Machine) -> bool {
        let time = machine.cpu_time(self.clock.as_fd());
        time.is_err_and(|error| is_over(&error))
    }

    /// It has ended: it is given back as far as it is still there, and left alone from now on.
    pub(crate) fn end(&mut self) {
        self.release();
        self.gone = true;
    }

    /// ns of CPU since the last call, or since it was elevated after that.
    pub(crate) fn spent(&mut self, machine: &dyn Machine) -> io::Result<u64> {
        let total = machine.cpu_time(self.clock.as_fd())?;
        let before = std::mem::replace(&mut self.spent, total);
        Ok(total.saturating_sub(before))
    }

    /// ns of CPU since the last call of this, elevated or not.
    pub(crate) fn newly_used(&mut self, machine: &dyn Machine) -> u64 {
        let Ok(total) = machine.cpu_time(self.clock.as_fd()) else {
            return 0;
        };
        let before = self.charged.replace(total).unwrap_or(total);
        total.saturating_sub(before)
    }

    /// Whether it was elevated at any moment since the last call of this.
    pub(crate) fn was_elevated(&mut self) -> bool {
        let elevated = self.is_elevated();
        std::mem::replace(&mut self.rose, elevated)
    }

    /// Leaves the thread alone until `until`, at what it had.
    pub(crate) fn put_out(&mut self, until: Instant) {
        self.out_until = Some(until);
        self.release();
    }

    /// Moves the thread to `target`.
    pub(crate) fn move_to(
        &mut self,
        target: Place,
        elevator: &Elevator,
        shared: &Arc<Shared>,
        now: Instant,
    ) -> Placed {
        let epoch = shared.epoch();
        let moved_by_others = std::mem::replace(&mut self.epoch, epoch) != epoch;
        if target == self.place && !(moved_by_others && self.is_held()) {
            return Placed::Already;
        }
        if self.out_until.is_some_and(|until| now < until) {
            return Placed::Already;
        }
        self.out_until = None;
        match self.try_move(target, elevator, shared) {
            Ok(place) if place == self.place => Placed::Already,
            Ok(place) => {
                self.place = place;
                let rises = self.is_elevated() && !std::mem::replace(&mut self.rose, true);
                if rises || place == Place::Idle {
                    // What it uses counts from now on. If that cannot be read now, the next look counts too much, once.
                    let _ = self.spent(shared.machine.as_ref());
                }
                Placed::Moved
            }
            // Its number may mean no thread, or another one; what it was registered with does not lie.
            Err(_) if self.has_ended(shared.machine.as_ref()) => {
                self.end();
                Placed::Gone
            }
            Err(error) => {
                self.put_out(now + RETRY);
                Placed::Refused(error)
            }
        }
    }

    fn try_move(
        &mut self,
        target: Place,
        elevator: &Elevator,
        shared: &Arc<Shared>,
    ) -> io::Result<Place> {
        if target == Place::Own || (target == Place::Fair && (!self.is_held() || !self.was_fair)) {
            self.release();
            return Ok(Place::Own);
        }
        if self.hold.is_none() {
            let guard = elevator.hold(self.tid)?;
            if self.has_ended(shared.machine.as_ref()) {
                return Err(Errno::SRCH.into());
            }
            let former = guard.former().map(|former| former.class());
            self.was_fair = matches!(former, Some(Class::Other { .. }));
            let clock = Arc::clone(&self.clock);
            self.hold = Some(Held {
                hold: shared.roster.add(guard, self.owner, Some(clock)),
                shared: Arc::clone(shared),
            });
        }
        let Some(Held { hold, .. }) = &self.hold else {
            return Ok(self.place);
        };
        match target {
            Place::Fifo(priority) => {
                if !hold.raise(priority)? {
                    return Ok(Place::Fair);
                }
            }
            Place::Idle => hold.guard().set_idle()?,
            Place::Own | Place::Fair => hold.guard().set_fair()?,
        }
        Ok(target)
    }

    /// Gives the thread back. If that fails the elevator goes on trying, and the guardian does it in the end.
    pub(crate) fn release(&mut self) {
        drop(self.hold.take());
        self.place = Place::Own;
    }
}

/// Whether the kernel says that the thread has ended.
pub(crate) fn is_over(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::SRCH.raw_os_error())
}
