//! Code that each thread of a preemptible vCPU runs for itself: the thread registers with the vCPU,
//! waits for its permit to use the vCPU's state, and answers the signal that interrupts its poll.

use std::cell::Cell;
use std::ptr::null;
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};

use upshift_elevate::dispatch::Permit;

use super::roles::{FIRST, NONE};
use super::slice::BatchPolicy;
use super::thread::Thread;
use super::vcpu::Preemptible;
use crate::preempt::interrupt::{self, OnStack};
use crate::preempt::permit;
use crate::time::clock;

thread_local! {
    static THREAD: Cell<Registration> = const { Cell::new(Registration { vcpu: null(), number: 0 }) };
}

#[derive(Clone, Copy)]
struct Registration {
    vcpu: *const Preemptible,
    number: usize,
}

/// Guard of a thread's membership in a preemptible vCPU.
pub(super) struct Registered<'a> {
    previous: (Registration, permit::Saved),
    thread: &'a Thread,
    _stack: OnStack,
}

impl<'a> Registered<'a> {
    /// Registers the calling thread, which has [claimed](interrupt::claim) its signal. The thread's
    /// permit is in use from here on, as it is everywhere except in polls.
    pub(super) fn begin(vcpu: &'a Preemptible, number: usize) -> Registered<'a> {
        let thread = &vcpu.threads[number];
        let stack = OnStack::begin();
        // SAFETY: the call takes no pointers and cannot fail.
        let id = unsafe { libc::gettid() } as u32;
        thread.open_status(number, id);
        // The loop may run within a poll of another runtime. The permit for that runtime stays in
        // use.
        permit::enter();
        let registration = THREAD.replace(Registration { vcpu, number });
        // An earlier signal may be unanswered, and a signal sent before the id was known is lost.
        // The signal is marked as answered, so that the next request sends it.
        thread.id.store(id, SeqCst);
        thread.signal.mark_answered();
        // SAFETY: the permit is in `vcpu`, which is borrowed until the drop, and the drop restores
        // the former permit, whose use ends only after that.
        let permit = unsafe {
            permit::hold(
                &thread.permit,
                permit::Hooks {
                    notify: Preemptible::notify_watcher,
                    wait: wait_here,
                },
            )
        };
        permit::enter();
        Registered {
            previous: (registration, permit),
            thread,
            _stack: stack,
        }
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        permit::leave();
        THREAD.set(self.previous.0);
        // A signal meant for the former registration may have been handled during this one.
        with_current(|vcpu, number| vcpu.threads[number].signal.mark_answered());
        // SAFETY: `hold` returned this permit, which the thread held under the contract of `hold`.
        unsafe { permit::restore(self.previous.1) };
        permit::leave();
        self.thread.began.store(0, Relaxed);
    }
}

/// Runs `f` with the vCPU of the calling thread and the number of the thread in it, if the thread
/// is registered.
pub(super) fn with_current(f: impl FnOnce(&Preemptible, usize)) {
    let registration = THREAD.get();
    // SAFETY: the pointer is null or valid, because only a `Registered` sets it, which borrows the
    // vCPU and restores the former pointer when dropped.
    if let Some(vcpu) = unsafe { registration.vcpu.as_ref() } {
        f(vcpu, registration.number);
    }
}

fn wait_here(permit: &Permit) {
    let mut has_waited = false;
    with_current(|vcpu, number| {
        has_waited = true;
        vcpu.start_next();
        vcpu.record_return_from_sleep(number);
        if number == FIRST {
            vcpu.block_signal_and_wait_in_ring(|| !permit.is_revoked());
        } else {
            let _batch = BatchPolicy::begin();
            permit.wait_until(|| false);
        }
        mark_resumed(vcpu, &vcpu.threads[number]);
    });
    if !has_waited {
        permit.wait_until(|| false);
    }
}

fn mark_resumed(vcpu: &Preemptible, thread: &Thread) {
    if thread.resume_requested.load(Relaxed) == 0 {
        return;
    }
    if thread.resume_requested.swap(0, SeqCst) != 0 {
        thread.resumed.store(clock::ticks(), Relaxed);
        if thread.turn.load(Relaxed) == 0 {
            // The watcher may have looked at the arrivals before this thread had woken up.
            vcpu.watch().unmask();
            if vcpu.watch().has_arrivals() {
                vcpu.watch().notify();
            }
        }
    }
}

/// Handles the signal on the interrupted thread. Async-signal-safe.
pub(crate) fn answer_here() {
    with_current(|vcpu, number| {
        let thread = &vcpu.threads[number];
        thread.signal.mark_answered();
        if number == FIRST {
            vcpu.service.answer();
            if thread.enter_requested.swap(false, SeqCst) {
                vcpu.watch().enter();
            }
            if thread.waits_in_ring.load(Relaxed) {
                // `wait_in_ring` checks its conditions again when this handler returns.
                return;
            }
        }
        // A thread in the middle of a use of its permit is not suspended, because the watcher takes
        // back a revocation that coincides with a use.
        let is_stopped = !thread.permit.in_use() && thread.permit.is_revoked();
        if vcpu.orders.permits_waived.load(Relaxed) && !thread.permit.is_revoked() {
            // This thread may depend on suspended threads that run without permits. It yields the
            // CPU to them, because under a real-time policy the kernel does not make threads take
            // turns.
            std::thread::yield_now();
        }
        if !is_stopped || thread.blocked.load(SeqCst) {
            // The poll may have been stopped and resumed before the signal came.
            if !thread.permit.is_revoked() {
                mark_resumed(vcpu, thread);
            }
            if number == FIRST && !thread.permit.in_use() {
                // Other threads may have served meanwhile, and requested in vain that this thread
                // call `hand_over`.
                vcpu.watch().hand_over();
            }
            return;
        }
        if number == FIRST {
            // Fetches the arrivals, so that the next thread need not request that from this thread.
            if vcpu.handover.next_up.load(SeqCst) != NONE {
                // The watcher need not be notified of these arrivals. If this signal came late, the
                // next thread already runs, and arrivals stay unmasked for the watch over its own
                // poll.
                vcpu.watch().mask();
            }
            vcpu.watch().fetch();
        }
        let are_waived = || {
            // An earlier signal may have started this handler before the next thread was known.
            vcpu.start_next();
            vcpu.orders.permits_waived.load(SeqCst)
        };
        if number == FIRST {
            // The signal is blocked while its handler runs.
            vcpu.wait_in_ring(|| are_waived() || !thread.permit.is_revoked());
        } else {
            let _batch = BatchPolicy::begin();
            thread.permit.wait_until(are_waived);
        }
        if !thread.permit.is_revoked() {
            mark_resumed(vcpu, thread);
        }
    });
}

impl Preemptible {
    /// Waits in the ring until `is_over` returns true. Called on the ring's thread, with the signal
    /// blocked. During the wait, operations complete, and this thread makes the system calls that
    /// other threads request. Async-signal-safe.
    pub(super) fn wait_in_ring(&self, is_over: impl Fn() -> bool) {
        let thread = &self.threads[FIRST];
        let mask = interrupt::mask_without_own();
        thread.waits_in_ring.store(true, SeqCst);
        loop {
            self.service.answer();
            // This is checked after the requested call, which may fetch the completion that was
            // meant to end the wait.
            if is_over() {
                break;
            }
            // The result is ignored, because the loop checks all conditions that end the wait.
            let _ = self.watch().wait(mask);
            // If the program has replaced the handler, the program's handler ends the wait, too,
            // but does not mark the signal as answered.
            thread.signal.mark_answered();
            self.end_idle();
        }
        thread.waits_in_ring.store(false, Release);
        // Answers requests that were made, or withdrawn, while the thread left the ring, because
        // the poll that follows may be long.
        self.service.answer();
        self.watch().hand_over();
    }

    /// Waits in the ring as [`wait_in_ring`](Preemptible::wait_in_ring) does, and blocks the signal
    /// meanwhile.
    pub(super) fn block_signal_and_wait_in_ring(&self, is_over: impl Fn() -> bool) {
        let Ok(previous_mask) = interrupt::block_own() else {
            return;
        };
        self.wait_in_ring(is_over);
        interrupt::restore(&previous_mask);
    }
}
