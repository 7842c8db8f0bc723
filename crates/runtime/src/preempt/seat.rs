//! A seat: one thread of a preemptible vCPU, and its permit to use what the
//! threads of the vCPU share.
//!
//! A seat whose poll was suspended waits in [`permit::enter`] until it is resumed.

use std::cell::Cell;
use std::ptr::null;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use upshift_elevate::Elevated;
use upshift_elevate::dispatch::Permit;
use upshift_ring::Owner;

use super::split::Split;
use crate::clock;
use crate::futex::{futex_wait, futex_wake};
use crate::permit::{self, Critical};

thread_local! {
    static SEAT: Cell<*const Seat> = const { Cell::new(null()) };
}

/// What a seat's thread is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Go {
    /// The vCPU is yours: serve it.
    Serve,
    /// The vCPU leaves: end.
    End,
}

const WAIT: u32 = 0;
const SERVE: u32 = 1;
const END: u32 = 2;

/// See the module. On cache lines of its own.
#[repr(align(128))]
#[derive(Debug)]
pub(crate) struct Seat {
    pub(super) permit: Permit,
    /// A futex: WAIT, SERVE or END.
    go: AtomicU32,
    /// Ticks at which the poll of this seat began; 0: none that may be suspended.
    pub(super) started: AtomicU64,
    /// Ticks at which it was resumed; 0: it was not.
    pub(super) resumed: AtomicU64,
    pub(super) entitled: AtomicBool,
    /// Ticks that its poll had run when it was suspended last.
    pub(super) ran: AtomicU64,
    /// It goes on with its poll at ordinary priority.
    pub(super) background: AtomicBool,
    /// The coroutine that is suspended here, packed; 0: none.
    pub(super) coroutine: AtomicU64,
    /// The user's guards that the thread holds, and since when (ns).
    guards: AtomicU32,
    guarded_since: AtomicU64,
    pub(super) thread: OnceLock<Elevated>,
    /// What the ring knows the thread by.
    pub(super) owner: OnceLock<Owner>,
}

impl Seat {
    pub(super) fn new() -> Seat {
        Seat {
            permit: Permit::new(),
            go: AtomicU32::new(WAIT),
            started: AtomicU64::new(0),
            resumed: AtomicU64::new(0),
            entitled: AtomicBool::new(false),
            ran: AtomicU64::new(0),
            background: AtomicBool::new(false),
            coroutine: AtomicU64::new(0),
            guards: AtomicU32::new(0),
            guarded_since: AtomicU64::new(0),
            thread: OnceLock::new(),
            owner: OnceLock::new(),
        }
    }

    /// The calling thread sits here from now on.
    ///
    /// # Safety
    /// The seat outlives the thread, or [`stand_up`] is called before.
    pub(super) unsafe fn sit(&self) {
        SEAT.set(self);
        // SAFETY: passed on.
        let _ = unsafe { permit::hold(&self.permit, Split::tell_sentinel) };
    }

    /// Waits until told what to do.
    pub(super) fn wait(&self) -> Go {
        loop {
            match self.go.load(Acquire) {
                SERVE => {
                    self.go.store(WAIT, Relaxed);
                    return Go::Serve;
                }
                END => return Go::End,
                _ => futex_wait(&self.go, WAIT),
            }
        }
    }

    /// Tells the thread what to do.
    pub(super) fn tell(&self, go: Go) {
        let word = match go {
            Go::Serve => SERVE,
            Go::End => END,
        };
        self.go.store(word, Release);
        futex_wake(&self.go);
    }

    /// How long its poll has run, suspensions left out, ticks. For the seat itself, or whoever has revoked its permit.
    pub(super) fn has_run(&self) -> u64 {
        let since = match self.resumed.load(Relaxed) {
            0 => self.started.load(Relaxed),
            resumed => resumed,
        };
        self.ran.load(Relaxed) + clock::ticks().saturating_sub(since)
    }

    /// Since when (ns) the user has forbidden suspension; 0: not.
    pub(super) fn guarded_since(&self) -> u64 {
        if self.guards.load(Acquire) == 0 {
            0
        } else {
            self.guarded_since.load(Relaxed).max(1)
        }
    }
}

/// The calling thread leaves its seat.
pub(super) fn stand_up() {
    SEAT.set(null());
    permit::release();
}

/// Has the calling thread a seat? Then what it polls may go on on other threads.
pub(crate) fn is_seated() -> bool {
    !SEAT.get().is_null()
}

/// While it lives, the poll that made it is not suspended: for a few microseconds
/// in which others would wait for what this one holds (a spin lock, say).
///
/// The promise is bounded: after a millisecond the poll is suspended all the same,
/// so that a forgotten guard does not bring the runtime to a halt. Without
/// preemption it does nothing. Made by [`no_suspend`](crate::no_suspend).
#[derive(Debug)]
#[must_use = "suspension is forbidden while the guard lives"]
pub struct NoSuspend {
    seat: *const Seat,
}

impl NoSuspend {
    pub(crate) fn new() -> NoSuspend {
        let seat = SEAT.get();
        // SAFETY: a seat is there while a thread sits on it.
        if let Some(seat) = unsafe { seat.as_ref() } {
            let _critical = Critical::enter();
            let guards = seat.guards.load(Relaxed);
            if guards == 0 {
                seat.guarded_since.store(clock::now(), Relaxed);
            }
            seat.guards.store(guards + 1, Release);
        }
        NoSuspend { seat }
    }
}

impl Drop for NoSuspend {
    fn drop(&mut self) {
        // SAFETY: the guard is not `Send`, so it ends on the thread that made it, which sits there still.
        if let Some(seat) = unsafe { self.seat.as_ref() } {
            // Who waits for the end of the guard is told at the end of this.
            let _critical = Critical::enter();
            seat.guards.store(seat.guards.load(Relaxed) - 1, Release);
        }
    }
}

/// Makes the stores before it visible before the loads after it, on the thread
/// itself and to a thread that passes a heavy barrier.
pub(super) fn compiler_barrier() {
    std::sync::atomic::compiler_fence(SeqCst);
}
