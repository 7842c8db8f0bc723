//! System calls on a ring, made by the thread that made it while another one serves the vCPU.
//!
//! ```text
//!   Idle ──1 request──► Requested ──2 taken──► Taken ──3 done──► Done ──4──► Idle
//!                          └──────5 no answer in time: withdrawn──────────────┘
//! ```
//!
//! The requester (1) fills the call in and sends the owner a signal. The owner waits in its ring, or in the handler of the signal, or
//! sleeps in a poll; it makes the call (2, 3) and waits on. One that does not take the signal, or is in an uninterruptible sleep,
//! does not answer: the requester withdraws (5) and tries again later.

use std::cell::UnsafeCell;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64};

use upshift_core::preempt::KEPT;

use super::thread::Thread;
use crate::futex::{futex_wait_for, futex_wake};

const IDLE: u32 = 0;
const REQUESTED: u32 = 1;
const TAKEN: u32 = 2;
const DONE: u32 = 3;

/// The calls of one ring.
pub(super) struct Service {
    state: AtomicU32,
    /// What to do; good from REQUESTED to DONE.
    job: UnsafeCell<Option<*mut dyn FnMut()>>,
    pub(super) served: AtomicU64,
}

// SAFETY: `job` belongs to the requester in IDLE, and to the owner in TAKEN, while the requester waits; the changes of `state`
// order them. There is one requester at a time: the current thread.
unsafe impl Sync for Service {}
// SAFETY: as above.
unsafe impl Send for Service {}

impl Service {
    pub(super) fn new() -> Service {
        Service {
            state: AtomicU32::new(IDLE),
            job: UnsafeCell::new(None),
            served: AtomicU64::new(0),
        }
    }

    /// Has the owner do `job`; false: it does not answer, and will not do it. One that `comes`, because the kernel has woken it for what has
    /// arrived, is sent no signal.
    pub(super) fn request(&self, job: &mut dyn FnMut(), owner: &Thread, comes: bool) -> bool {
        // SAFETY: only the lifetime is forgotten: the job is done or withdrawn when this returns.
        let job = unsafe { std::mem::transmute::<&mut dyn FnMut(), &'static mut dyn FnMut()>(job) };
        // SAFETY: IDLE, and we are the only requester.
        unsafe { *self.job.get() = Some(job) };
        self.state.store(REQUESTED, SeqCst);
        if comes {
            futex_wait_for(&self.state, REQUESTED, KEPT);
        }
        if self.state.load(Acquire) == REQUESTED {
            owner.interrupt();
        }
        for state in [REQUESTED, TAKEN] {
            if self.state.load(Acquire) == state {
                // For as long as others may keep a suspended thread from its CPU.
                futex_wait_for(&self.state, state, KEPT);
            }
        }
        if self
            .state
            .compare_exchange(REQUESTED, IDLE, AcqRel, Acquire)
            .is_ok()
        {
            return false;
        }
        // Taken: the call is under way and does not block.
        while self.state.load(Acquire) == TAKEN {
            futex_wait_for(&self.state, TAKEN, KEPT);
        }
        self.state.store(IDLE, Relaxed);
        self.served.store(self.served.load(Relaxed) + 1, Relaxed);
        true
    }

    /// The owner does what has been asked for. Async-signal-safe.
    pub(super) fn answer(&self) {
        if self.state.load(Relaxed) != REQUESTED
            || self
                .state
                .compare_exchange(REQUESTED, TAKEN, AcqRel, Acquire)
                .is_err()
        {
            return;
        }
        // SAFETY: TAKEN: the job is ours, and good until DONE.
        unsafe {
            if let Some(job) = *self.job.get() {
                (*job)();
            }
        }
        self.state.store(DONE, Release);
        futex_wake(&self.state);
    }
}
