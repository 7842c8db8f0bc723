//! The thread of `block_on`: the only one that polls what is pinned to it.
//!
//! ```text
//!   Absent ──1 block_on begins──► Present ──2 a seat has something──► Work
//!      ▲                            │  ▲                               │
//!      └───────4 block_on ends──────┘  └────────3 polled───────────────┘
//! ```
//!
//! The seat that hands a coroutine over (2) waits for the end of its poll (3), with
//! its permit in use: so nothing else of the vCPU runs meanwhile, and the poll is
//! not suspended. Two switches more than a poll of its own: some microseconds.

use std::cell::UnsafeCell;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use upshift_core::{Polled, Running, Yielded};
use upshift_ring::{Owner, Ring};

use super::split::Split;
use crate::context;
use crate::coop;
use crate::futex::{futex_wait, futex_wait_for, futex_wake};
use crate::host::Linux;

const ABSENT: u32 = 0;
const PRESENT: u32 = 1;
const WORK: u32 = 2;

/// See the module.
pub(super) struct Home {
    state: AtomicU32,
    job: UnsafeCell<Option<Running<'static, Linux>>>,
    back: UnsafeCell<Option<Yielded<'static, Linux>>>,
}

// SAFETY: `job` and `back` belong to the current seat, in WORK to the home thread; the changes of `state` order them.
unsafe impl Send for Home {}
// SAFETY: as above.
unsafe impl Sync for Home {}

impl Home {
    pub(super) fn new() -> Home {
        Home {
            state: AtomicU32::new(ABSENT),
            job: UnsafeCell::new(None),
            back: UnsafeCell::new(None),
        }
    }

    pub(super) fn is_absent(&self) -> bool {
        self.state.load(Acquire) == ABSENT
    }

    /// The current seat has the home thread poll a pinned coroutine. `Err`: nobody is at home.
    pub(super) fn poll<'a>(
        &self,
        running: Running<'a, Linux>,
    ) -> Result<Option<Yielded<'a, Linux>>, Running<'a, Linux>> {
        if self.is_absent() {
            return Err(running);
        }
        // SAFETY: the lifetime is that of the vCPU, which outlives this call, within which the home thread is done.
        let running =
            unsafe { std::mem::transmute::<Running<'a, Linux>, Running<'static, Linux>>(running) };
        // SAFETY: not WORK, so both cells are the current seat's.
        unsafe { *self.job.get() = Some(running) };
        if self
            .state
            .compare_exchange(PRESENT, WORK, AcqRel, Acquire)
            .is_err()
        {
            // It has just gone.
            // SAFETY: as above.
            if let Some(running) = unsafe { (*self.job.get()).take() } {
                return Err(running);
            }
        }
        futex_wake(&self.state);
        while self.state.load(Acquire) == WORK {
            futex_wait(&self.state, WORK);
        }
        // SAFETY: not WORK.
        Ok(unsafe { (*self.back.get()).take() })
    }
}

impl Split {
    /// The calling thread, which built the runtime, polls what is pinned to it until `done` says so. `patient`: look at
    /// `done` from time to time, not only after polls.
    pub(crate) fn stay_home(&self, patient: bool, done: impl Fn() -> bool) {
        let home = &self.home;
        home.state.store(PRESENT, Release);
        // What was pinned and waited for us is picked again.
        self.kick();
        loop {
            if home.state.load(Acquire) == WORK {
                self.poll_at_home();
                continue;
            }
            if done() {
                if home
                    .state
                    .compare_exchange(PRESENT, ABSENT, AcqRel, Relaxed)
                    .is_ok()
                {
                    return;
                }
                continue;
            }
            if patient {
                futex_wait_for(&home.state, PRESENT, 1_000_000);
            } else {
                futex_wait(&home.state, PRESENT);
            }
        }
    }

    fn poll_at_home(&self) {
        let home = &self.home;
        // SAFETY: WORK: both cells are ours.
        if let Some(running) = unsafe { (*home.job.get()).take() } {
            let worker = self.worker();
            let _entered = context::enter(worker);
            let _lent = Lent::to_this_thread(&worker.ring);
            coop::refill();
            if let Polled::Yielded(yielded) = running.poll() {
                // SAFETY: as above.
                unsafe { *home.back.get() = Some(yielded) };
            }
        }
        home.state.store(PRESENT, Release);
        futex_wake(&home.state);
    }
}

/// The ring is this thread's, and the seat's again afterwards, before the seat
/// goes on: this thread may use handles at any time, without a permit.
struct Lent<'a> {
    ring: &'a Ring,
    seat: Owner,
}

impl<'a> Lent<'a> {
    fn to_this_thread(ring: &'a Ring) -> Lent<'a> {
        let seat = ring.owner();
        // SAFETY: the seat that has the vCPU waits for us and does not use the ring.
        unsafe { ring.adopt() };
        Lent { ring, seat }
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        // SAFETY: the seat waits still.
        unsafe { self.ring.assign(self.seat) };
    }
}
