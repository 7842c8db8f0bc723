//! System calls on a ring, made by its owner while the owner is suspended.
//!
//! ```text
//!   Idle ──1 request──► Requested ──2 handler takes it──► Taken ──3 done──► Done ──4──► Idle
//!                          └──────5 no answer in time: withdrawn──────────────────────────┘
//! ```
//!
//! The requester (1) fills the call in, sends the owner a signal and elevates it
//! above itself: on their common CPU the handler runs at once, makes the call, and
//! demotes its thread again, so that the requester finds the result when its own
//! call to elevate returns. Only if the owner runs elsewhere, or has the signal
//! blocked, or is in an uninterruptible sleep, is there anything to wait for; then
//! the requester waits a little, withdraws (5), and tries again later.
//!
//! The handler does nothing but the job, which calls nothing but the kernel.

use std::cell::UnsafeCell;
use std::io;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};

use upshift_elevate::{Elevated, Priority};

use crate::futex::{futex_wait_for, futex_wake};
use crate::interrupt;

const IDLE: u32 = 0;
const REQUESTED: u32 = 1;
const TAKEN: u32 = 2;
const DONE: u32 = 3;

/// How long a requester waits for an owner that does not answer at once, ns.
const PATIENCE: u64 = 2_000_000;

thread_local! {
    static SERVICE: AtomicPtr<Service> = const { AtomicPtr::new(null_mut()) };
}

/// The calls of one ring.
pub(super) struct Service {
    state: AtomicU32,
    /// The requester sleeps.
    waiting: AtomicU32,
    /// What to do; good from REQUESTED to DONE.
    job: UnsafeCell<Option<*mut dyn FnMut()>>,
    /// The ring's thread.
    owner: AtomicU32,
    /// The priority the owner goes back to after the job.
    back_to: AtomicU32,
    pub(super) served: AtomicU64,
}

// SAFETY: `job` belongs to the requester in IDLE, and to the handler in TAKEN, while the requester waits; the changes of `state`
// order them. There is one requester at a time: the current seat.
unsafe impl Sync for Service {}
// SAFETY: as above.
unsafe impl Send for Service {}

impl Service {
    pub(super) fn new() -> Service {
        Service {
            state: AtomicU32::new(IDLE),
            waiting: AtomicU32::new(0),
            job: UnsafeCell::new(None),
            owner: AtomicU32::new(0),
            back_to: AtomicU32::new(0),
            served: AtomicU64::new(0),
        }
    }

    /// The calling thread owns the ring and answers requests.
    ///
    /// # Safety
    /// The service outlives the thread, or [`retire`] is called before.
    pub(super) unsafe fn attend(&self) -> io::Result<()> {
        interrupt::claim()?;
        SERVICE.with(|service| service.store(std::ptr::from_ref(self).cast_mut(), Relaxed));
        // SAFETY: cannot fail.
        self.owner.store(unsafe { libc::gettid() } as u32, Release);
        Ok(())
    }

    /// Has the owner do `job`; false: it does not answer, and will not do it. `owner`: its elevation; `service`: the
    /// priority for the time of the handler; `back_to`: the one it has otherwise.
    pub(super) fn request(
        &self,
        job: &mut dyn FnMut(),
        owner: &Elevated,
        service: Priority,
        back_to: Priority,
    ) -> bool {
        // SAFETY: only the lifetime is forgotten: the job is done or withdrawn when this returns.
        let job = unsafe { std::mem::transmute::<&mut dyn FnMut(), &'static mut dyn FnMut()>(job) };
        // SAFETY: IDLE, and we are the only requester.
        unsafe { *self.job.get() = Some(job) };
        self.back_to.store(u32::from(back_to.get()), Relaxed);
        self.state.store(REQUESTED, Release);
        interrupt::send(self.owner.load(Relaxed));
        if self.state.load(Acquire) != DONE {
            // Without rights the owner answers when it gets the CPU: we sleep below.
            let _ = owner.set(service);
            if self.state.load(Acquire) != DONE {
                // It is elsewhere, or does not take the signal: its handler may not run, or run before it was elevated.
                self.wait();
            }
            // If it runs on another CPU, its handler may have ended before it was elevated.
            let _ = owner.set(back_to);
        }
        let done = self.state.load(Acquire) == DONE;
        self.state.store(IDLE, Relaxed);
        self.served
            .store(self.served.load(Relaxed) + u64::from(done), Relaxed);
        done
    }

    /// Waits for an answer; returns with DONE, or with the request withdrawn.
    #[cold]
    fn wait(&self) {
        self.waiting.store(1, SeqCst);
        for state in [REQUESTED, TAKEN] {
            futex_wait_for(&self.state, state, PATIENCE);
        }
        if self
            .state
            .compare_exchange(REQUESTED, IDLE, AcqRel, Acquire)
            .is_err()
        {
            // Taken: the call is under way and does not block.
            while self.state.load(Acquire) == TAKEN {
                futex_wait_for(&self.state, TAKEN, PATIENCE);
            }
        }
        self.waiting.store(0, Relaxed);
    }

    /// The owner, in its signal handler.
    fn answer(&self) {
        if self
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
        if self.waiting.load(SeqCst) != 0 {
            futex_wake(&self.state);
        }
        let param = libc::sched_param {
            sched_priority: self.back_to.load(Relaxed) as i32,
        };
        // SAFETY: the parameter lives for the length of the call. Lowering needs no rights.
        unsafe {
            let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
            libc::sched_setscheduler(0, policy, &raw const param);
        }
    }
}

/// The calling thread answers no more.
pub(super) fn retire() {
    SERVICE.with(|service| service.store(null_mut(), Relaxed));
}

/// The calling thread has been interrupted: it answers, if it is to.
pub(crate) fn answer_here() {
    SERVICE.with(|service| {
        // SAFETY: set while the service is there.
        if let Some(service) = unsafe { service.load(Relaxed).as_ref() } {
            service.answer();
        }
    });
}
