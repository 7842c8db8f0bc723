//! The calling thread as one of a preemptible vCPU: which one it is, how it waits for its permit, what it does when it is interrupted.

use std::cell::Cell;
use std::ptr::null;
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};

use upshift_elevate::dispatch::Permit;

use super::roles::{FIRST, NONE};
use super::slice::Modest;
use super::thread::Thread;
use super::vcpu::Preemptible;
use crate::preempt::interrupt::{self, OnStack};
use crate::preempt::permit;
use crate::time::clock;

thread_local! {
    static THREAD: Cell<Here> = const { Cell::new(Here { vcpu: null(), number: 0 }) };
}

/// The place of a thread.
#[derive(Clone, Copy)]
struct Here {
    vcpu: *const Preemptible,
    number: usize,
}

/// While it lives, the calling thread is thread `number` of a preemptible vCPU.
pub(super) struct Registered<'a> {
    before: (Here, permit::Before),
    thread: &'a Thread,
    _stack: OnStack,
}

impl<'a> Registered<'a> {
    /// Its permit is in use from here on, but in polls. It has [claimed](interrupt::claim) its signal.
    pub(super) fn begin(vcpu: &'a Preemptible, number: usize) -> Registered<'a> {
        let thread = &vcpu.threads[number];
        let stack = OnStack::begin();
        // SAFETY: cannot fail.
        let id = unsafe { libc::gettid() } as u32;
        thread.is_born(number, id);
        // A loop within a poll of another runtime: that one's permit stays in use.
        permit::enter();
        let here = THREAD.replace(Here { vcpu, number });
        // A signal that came before was not answered, and one that was sent before the number was known went nowhere: the next is sent.
        thread.id.store(id, SeqCst);
        thread.sent.is_answered();
        // SAFETY: the drop puts the one before back; the thread is `vcpu`'s, which is borrowed until then.
        let permit = unsafe {
            permit::hold(
                &thread.permit,
                permit::Calls {
                    tell: Preemptible::tell_watcher,
                    wait: wait_here,
                },
            )
        };
        permit::enter();
        Registered {
            before: (here, permit),
            thread,
            _stack: stack,
        }
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        permit::leave();
        THREAD.set(self.before.0);
        // A signal for the place of before has found this one.
        with_current(|vcpu, number| vcpu.threads[number].sent.is_answered());
        // SAFETY: it was held before.
        unsafe { permit::put_back(self.before.1) };
        permit::leave();
        self.thread.began.store(0, Relaxed);
    }
}

/// Calls `f` with the vCPU that the calling thread belongs to, and its number there.
pub(super) fn with_current(f: impl FnOnce(&Preemptible, usize)) {
    let here = THREAD.get();
    // SAFETY: set while the thread serves, which has the vCPU.
    if let Some(vcpu) = unsafe { here.vcpu.as_ref() } {
        f(vcpu, here.number);
    }
}

/// The calling thread asks for its permit, which has been taken away.
fn wait_here(permit: &Permit) {
    let mut waited = false;
    with_current(|vcpu, number| {
        waited = true;
        vcpu.start_next();
        vcpu.comes_back(number);
        if number == FIRST {
            vcpu.attend_blocked(|| !permit.is_revoked());
        } else {
            let _modest = Modest::begin();
            permit.wait_until(|| false);
        }
        goes_on(vcpu, &vcpu.threads[number]);
    });
    if !waited {
        permit.wait_until(|| false);
    }
}

/// The calling thread goes on with its poll.
fn goes_on(vcpu: &Preemptible, thread: &Thread) {
    if thread.woken.load(Relaxed) == 0 {
        return;
    }
    let woken = thread.woken.swap(0, SeqCst);
    if woken != 0 {
        thread.resumed.store(clock::ticks(), Relaxed);
        if thread.turn.load(Relaxed) == 0 {
            // The watcher may have looked at what came while this poll had yet to wake up.
            vcpu.watch().unmask();
            if vcpu.watch().has_arrivals() {
                vcpu.watch().notify();
            }
        }
    }
}

/// The calling thread has been interrupted. Async-signal-safe.
pub(crate) fn answer_here() {
    with_current(|vcpu, number| {
        let thread = &vcpu.threads[number];
        thread.sent.is_answered();
        if number == FIRST {
            vcpu.service.answer();
            if thread.owes_enter.swap(false, SeqCst) {
                vcpu.watch().enter();
            }
            if thread.attending.load(Relaxed) {
                // It looks again when this returns.
                return;
            }
        }
        // What is in the middle of a use is not suspended: the watcher takes a revocation back that meets one.
        let is_stopped = !thread.permit.in_use() && thread.permit.is_revoked();
        if vcpu.orders.loose.load(Relaxed) && !thread.permit.is_revoked() {
            // It may depend on those that run loose. All may be in a real-time policy, in which none makes room by itself.
            std::thread::yield_now();
        }
        if !is_stopped || thread.blocked.load(SeqCst) {
            // It may have been stopped, and gone on, before the signal came.
            if !thread.permit.is_revoked() {
                goes_on(vcpu, thread);
            }
            if number == FIRST && !thread.permit.in_use() {
                // Others may have served meanwhile, and have asked for this in vain.
                vcpu.watch().hand_over();
            }
            return;
        }
        if number == FIRST {
            // The next thread finds what has arrived, and need not ask for it.
            if vcpu.relay.next_up.load(SeqCst) != NONE {
                // Nor need the watcher hear of it. One that runs already, because this signal came late, listens for its own poll.
                vcpu.watch().mask();
            }
            vcpu.watch().fetch();
        }
        let is_loose = || {
            // A signal that was on its way had this handler come before the next thread was known.
            vcpu.start_next();
            vcpu.orders.loose.load(SeqCst)
        };
        if number == FIRST {
            // The signal is blocked while its handler runs.
            vcpu.attend(|| is_loose() || !thread.permit.is_revoked());
        } else {
            let _modest = Modest::begin();
            thread.permit.wait_until(is_loose);
        }
        if !thread.permit.is_revoked() {
            goes_on(vcpu, thread);
        }
    });
}

impl Preemptible {
    /// The ring's thread waits in the ring, so that completions go on, and makes the calls that others ask for, until `over`
    /// says so. With the signal blocked. Async-signal-safe.
    pub(super) fn attend(&self, over: impl Fn() -> bool) {
        let thread = &self.threads[FIRST];
        let mask = interrupt::mask_without_own();
        thread.attending.store(true, SeqCst);
        loop {
            self.service.answer();
            // After the call, which may fetch the completion that was to end the wait.
            if over() {
                break;
            }
            // Everything that ends the wait is looked at again.
            let _ = self.watch().wait(mask);
            // Another handler may be there, which ends the wait as well.
            thread.sent.is_answered();
            self.end_idle();
        }
        thread.attending.store(false, Release);
        // What was asked while it left, or withdrawn because it came too late: its poll may be long.
        self.service.answer();
        self.watch().hand_over();
    }

    /// The same, where the signal is not blocked.
    pub(super) fn attend_blocked(&self, over: impl Fn() -> bool) {
        let Ok(before) = interrupt::block_own() else {
            return;
        };
        self.attend(over);
        interrupt::restore(&before);
    }
}
