//! System calls on an io_uring while a thread other than its *owner* serves the vCPU. The owner is
//! the thread that created the ring, and only it may enter the ring, so it makes the calls. The
//! serving thread is the *requester*.
//!
//! ```text
//!   Idle ──1 request──► Requested ──2 taken──► Taken ──3 done──► Done ──4──► Idle
//!                          └──────5 no answer in time: withdrawn──────────────┘
//! ```
//!
//! The requester fills in the call (1) and sends the owner a signal. It waits a little first if the
//! owner seems about to answer by itself. Without an answer the requester wakes the owner through
//! the ring. The owner waits in its ring or in the handler of the signal, or sleeps in a poll. It
//! makes the call (2, 3) and continues to wait. The requester takes the result (4). If the owner
//! blocks the signal, or is in an uninterruptible sleep, it does not answer. The requester then
//! withdraws the request (5) and tries again later.

use std::cell::UnsafeCell;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64};

use upshift_core::preempt::MAX_SUSPENSION;

use super::thread::Thread;
use crate::futex::{futex_wait_for, futex_wake};
use crate::preempt::interrupt;

const IDLE: u32 = 0;
const REQUESTED: u32 = 1;
const TAKEN: u32 = 2;
const DONE: u32 = 3;

/// The call that is requested from the owner of the ring, if any.
pub(super) struct Service {
    state: AtomicU32,
    /// Valid from REQUESTED to DONE.
    job: UnsafeCell<Option<*mut dyn FnMut()>>,
    /// Number of calls made so far.
    pub(super) call_count: AtomicU64,
}

// SAFETY: no two threads access `job` at the same time. It belongs to the requester in IDLE, and to
// the owner in TAKEN, while the requester waits; the changes of `state` order these accesses. Only
// the current thread is a requester.
unsafe impl Sync for Service {}
// SAFETY: the job is not bound to a thread, and its accesses are ordered as above.
unsafe impl Send for Service {}

impl Service {
    pub(super) fn new() -> Service {
        Service {
            state: AtomicU32::new(IDLE),
            job: UnsafeCell::new(None),
            call_count: AtomicU64::new(0),
        }
    }

    /// Makes the owner run `job`. Returns false if the owner does not answer; the owner then does
    /// not run `job`.
    ///
    /// A `grace` (ns) other than 0 means that the kernel has woken the owner for an arrival, so
    /// that it will probably answer by itself. The owner is sent the signal only after that time,
    /// because it may sleep after all. `wake` ends the owner's wait in the ring without a signal.
    pub(super) fn request(
        &self,
        job: &mut dyn FnMut(),
        owner: &Thread,
        grace: u64,
        wake: impl Fn(),
    ) -> bool {
        // SAFETY: only the lifetime changes, and no use outlives it, because the job is done or
        // withdrawn when this function returns.
        let job = unsafe { std::mem::transmute::<&mut dyn FnMut(), &'static mut dyn FnMut()>(job) };
        // SAFETY: in IDLE the job belongs to the requester, and there is only one.
        unsafe { *self.job.get() = Some(job) };
        self.state.store(REQUESTED, SeqCst);
        if grace != 0 {
            futex_wait_for(&self.state, REQUESTED, grace);
        }
        if self.state.load(Acquire) == REQUESTED && !interrupt::is_replaced() {
            owner.interrupt();
            // Other threads may keep the owner off its CPU for this time.
            futex_wait_for(&self.state, REQUESTED, MAX_SUSPENSION);
        }
        if self.state.load(Acquire) == REQUESTED {
            wake();
        }
        for state in [REQUESTED, TAKEN] {
            if self.state.load(Acquire) == state {
                futex_wait_for(&self.state, state, MAX_SUSPENSION);
            }
        }
        if self
            .state
            .compare_exchange(REQUESTED, IDLE, AcqRel, Acquire)
            .is_ok()
        {
            return false;
        }
        // The owner has taken the request, so the call is under way, and it does not block.
        while self.state.load(Acquire) == TAKEN {
            futex_wait_for(&self.state, TAKEN, MAX_SUSPENSION);
        }
        self.state.store(IDLE, Relaxed);
        self.call_count
            .store(self.call_count.load(Relaxed) + 1, Relaxed);
        true
    }

    /// Makes the requested call, and further calls that are requested meanwhile. Called on the
    /// owner's thread. Async-signal-safe.
    pub(super) fn answer(&self) {
        while self.state.load(Relaxed) == REQUESTED
            && self
                .state
                .compare_exchange(REQUESTED, TAKEN, AcqRel, Acquire)
                .is_ok()
        {
            // SAFETY: in TAKEN the job belongs to this thread, and is valid until DONE.
            unsafe {
                if let Some(job) = *self.job.get() {
                    (*job)();
                }
            }
            self.state.store(DONE, Release);
            futex_wake(&self.state);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::{Duration, Instant};

    use super::*;

    /// The owner seems about to answer by itself, but sleeps where only a signal reaches it. It
    /// must be sent the signal after the grace, so that the quickest call takes less than
    /// [`MAX_SUSPENSION`].
    #[test]
    fn an_owner_that_sleeps_after_all_is_sent_the_signal() {
        let (service, owner) = (Service::new(), Thread::new());
        let (end, calls) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                interrupt::claim().unwrap();
                interrupt::block_own().unwrap();
                let mask = interrupt::mask_without_own();
                // SAFETY: the call takes no pointers and cannot fail.
                owner.id.store(unsafe { libc::gettid() } as u32, SeqCst);
                while !end.load(SeqCst) {
                    let (none, forever) = (std::ptr::null::<u8>(), std::ptr::null::<u8>());
                    let size = size_of::<u64>();
                    // SAFETY: the call reads no descriptors, and the pointer to the set is to a
                    // local of the size given.
                    unsafe {
                        libc::syscall(libc::SYS_ppoll, none, 0, forever, &raw const mask, size)
                    };
                    owner.signal.mark_answered();
                    service.answer();
                }
            });
            while owner.id.load(SeqCst) == 0 {
                std::thread::yield_now();
            }
            let mut shortest_time = Duration::MAX;
            for n in 1..=20 {
                let mut job = || _ = calls.fetch_add(1, SeqCst);
                let start = Instant::now();
                while !service.request(&mut job, &owner, 1000, || ()) {}
                shortest_time = shortest_time.min(start.elapsed());
                assert_eq!(calls.load(SeqCst), n);
            }
            end.store(true, SeqCst);
            owner.interrupt();
            assert!(
                shortest_time < Duration::from_nanos(MAX_SUSPENSION),
                "shortest time of a call: {shortest_time:?}"
            );
        });
    }
}
