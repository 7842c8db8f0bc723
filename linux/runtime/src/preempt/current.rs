//! The calling thread as a thread of a preemptible vCPU: its number, its wait for its permit, and
//! its answer to the signal.

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

/// The vCPU of a thread, and its number there.
#[derive(Clone, Copy)]
struct Registration {
    vcpu: *const Preemptible,
    number: usize,
}

/// Guard: while it lives, its thread is a numbered thread of a preemptible vCPU.
pub(super) struct Registered<'a> {
    before: (Registration, permit::Saved),
    thread: &'a Thread,
    _stack: OnStack,
}

impl<'a> Registered<'a> {
    /// Begins with the permit in use, as everywhere but in polls. The thread has
    /// [claimed](interrupt::claim) its signal.
    pub(super) fn begin(vcpu: &'a Preemptible, number: usize) -> Registered<'a> {
        let thread = &vcpu.threads[number];
        let stack = OnStack::begin();
        // SAFETY: cannot fail.
        let id = unsafe { libc::gettid() } as u32;
        thread.open_status(number, id);
        // The loop may be within a poll of another runtime, whose permit stays in use.
        permit::enter();
        let registration = THREAD.replace(Registration { vcpu, number });
        // An earlier signal may be unanswered, and a signal sent before the id was known is lost.
        // So the next request sends the signal.
        thread.id.store(id, SeqCst);
        thread.sent.mark_answered();
        // SAFETY: the drop puts the former permit back; the thread is `vcpu`'s, which is borrowed
        // until then.
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
            before: (registration, permit),
            thread,
            _stack: stack,
        }
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        permit::leave();
        THREAD.set(self.before.0);
        // A signal for the former registration may have found this registration.
        with_current(|vcpu, number| vcpu.threads[number].sent.mark_answered());
        // SAFETY: the thread held that permit before.
        unsafe { permit::restore(self.before.1) };
        permit::leave();
        self.thread.began.store(0, Relaxed);
    }
}

/// Calls `f` with the vCPU that the calling thread belongs to, and its number there.
pub(super) fn with_current(f: impl FnOnce(&Preemptible, usize)) {
    let registration = THREAD.get();
    // SAFETY: the pointer is null, or set by a `Registered`, which borrows the vCPU.
    if let Some(vcpu) = unsafe { registration.vcpu.as_ref() } {
        f(vcpu, registration.number);
    }
}

/// Waits for the permit of the calling thread, which has been revoked.
fn wait_here(permit: &Permit) {
    let mut waited = false;
    with_current(|vcpu, number| {
        waited = true;
        vcpu.start_next();
        vcpu.returns_from_sleep(number);
        if number == FIRST {
            vcpu.block_signal_and_wait_in_ring(|| !permit.is_revoked());
        } else {
            let _batch = BatchPolicy::begin();
            permit.wait_until(|| false);
        }
        mark_resumed(vcpu, &vcpu.threads[number]);
    });
    if !waited {
        permit.wait_until(|| false);
    }
}

/// Records that the calling thread has resumed its poll.
fn mark_resumed(vcpu: &Preemptible, thread: &Thread) {
    if thread.resume_requested.load(Relaxed) == 0 {
        return;
    }
    if thread.resume_requested.swap(0, SeqCst) != 0 {
        thread.resumed.store(clock::ticks(), Relaxed);
        if thread.turn.load(Relaxed) == 0 {
            // The watcher may have looked at the arrivals while this poll had yet to wake up.
            vcpu.watch().unmask();
            if vcpu.watch().has_arrivals() {
                vcpu.watch().notify();
            }
        }
    }
}

/// Answers a signal to the calling thread. Async-signal-safe.
pub(crate) fn answer_here() {
    with_current(|vcpu, number| {
        let thread = &vcpu.threads[number];
        thread.sent.mark_answered();
        if number == FIRST {
            vcpu.service.answer();
            if thread.enter_requested.swap(false, SeqCst) {
                vcpu.watch().enter();
            }
            if thread.waits_in_ring.load(Relaxed) {
                // `wait_in_ring` looks again when this handler returns.
                return;
            }
        }
        // A thread in the middle of a use is not suspended: the watcher takes back a revocation
        // that meets a use.
        let is_stopped = !thread.permit.in_use() && thread.permit.is_revoked();
        if vcpu.orders.permits_waived.load(Relaxed) && !thread.permit.is_revoked() {
            // This thread may depend on suspended threads that run without permits. All may have a
            // real-time policy, in which no thread makes room by itself.
            std::thread::yield_now();
        }
        if !is_stopped || thread.blocked.load(SeqCst) {
            // The poll may have been stopped and resumed before the signal came.
            if !thread.permit.is_revoked() {
                mark_resumed(vcpu, thread);
            }
            if number == FIRST && !thread.permit.in_use() {
                // Other threads may have served meanwhile, and requested this call in vain.
                vcpu.watch().hand_over();
            }
            return;
        }
        if number == FIRST {
            // Fetches the arrivals for the next thread, which then need not ask for them.
            if vcpu.handover.next_up.load(SeqCst) != NONE {
                // The watcher need not be notified of them. A next thread that runs already,
                // because this signal came late, listens for its own poll.
                vcpu.watch().mask();
            }
            vcpu.watch().fetch();
        }
        let are_waived = || {
            // A signal on its way may begin this handler before the next thread is known.
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
    /// Waits in the ring, on the ring's thread, so that completions continue, and makes the calls
    /// that others request, until `over` returns true. The signal is blocked. Async-signal-safe.
    pub(super) fn wait_in_ring(&self, over: impl Fn() -> bool) {
        let thread = &self.threads[FIRST];
        let mask = interrupt::mask_without_own();
        thread.waits_in_ring.store(true, SeqCst);
        loop {
            self.service.answer();
            // Checked after the call, which may fetch the completion that was to end the wait.
            if over() {
                break;
            }
            // All conditions that end the wait are checked again.
            let _ = self.watch().wait(mask);
            // If the program has replaced the handler, the other one ends the wait, too, but does
            // not mark the answer.
            thread.sent.mark_answered();
            self.end_idle();
        }
        thread.waits_in_ring.store(false, Release);
        // Answers requests that came while the thread left the ring, or were withdrawn then: its
        // poll may be long.
        self.service.answer();
        self.watch().hand_over();
    }

    /// Calls [`wait_in_ring`](Preemptible::wait_in_ring) where the signal is not blocked.
    pub(super) fn block_signal_and_wait_in_ring(&self, over: impl Fn() -> bool) {
        let Ok(before) = interrupt::block_own() else {
            return;
        };
        self.wait_in_ring(over);
        interrupt::restore(&before);
    }
}
