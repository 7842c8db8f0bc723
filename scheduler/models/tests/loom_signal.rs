//! Model checks of the signal that frees a CPU. A thread needs a *permit* to use its vCPU, and a
//! watcher thread revokes the permit to stop a poll. In these models, a poll that has continued
//! after a suspension is stopped once more, another thread is made current, and the poll continues
//! again. The permit is unmodified. The model checker does not interrupt threads, so the handler
//! runs at points that the test chooses. There are models without a signal, with a late signal, and
//! with two signals. The steps of the runtime around the permit
//! (`preempt/{suspend,current,watcher}.rs`) are repeated in [`Vcpu`].
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p upshift-runtime-models --test loom_signal`

#![cfg(loom)]

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::Notify;
use loom::sync::atomic::Ordering::SeqCst;
use loom::sync::atomic::{AtomicBool, fence};
use loom::thread;
use upshift_elevate::dispatch::Permit;

/// Number of points in a poll at which the handler may run: one before the poll is stopped, and one
/// after.
const POINTS: usize = 2;

/// A step for which another thread waits. The checker also ends waits without cause.
struct Step(AtomicBool, Notify);

impl Step {
    fn new() -> Step {
        Step(AtomicBool::new(false), Notify::new())
    }

    fn complete(&self) {
        self.0.store(true, SeqCst);
        self.1.notify();
    }

    fn wait(&self) {
        while !self.0.load(SeqCst) {
            self.1.wait();
        }
    }
}

/// The thread of a poll, a spare thread, and their watcher.
struct Vcpu {
    permit: Permit,
    /// Set while the spare thread is current but has not been woken yet.
    next_up: AtomicBool,
    /// The wake-up of the spare thread.
    go: Step,
    /// Set from the permission for the poll to continue until its thread has acknowledged the
    /// permission.
    woken: AtomicBool,
    /// State that only the current thread uses.
    own: UnsafeCell<u32>,
    /// Number of runs of the handler at each point.
    handlers: [usize; POINTS],
}

// SAFETY: the models show that only one thread at a time uses `own`, which the checker verifies;
// the other fields are `Sync`.
unsafe impl Sync for Vcpu {}
// SAFETY: the argument for `Sync` covers a move to another thread, too.
unsafe impl Send for Vcpu {}

impl Vcpu {
    fn use_own_state(&self) {
        // SAFETY: the checker verifies the access.
        self.own.with_mut(|own| unsafe { *own += 1 });
    }

    fn start_next(&self) {
        if self.next_up.load(SeqCst) && self.next_up.swap(false, SeqCst) {
            self.go.complete();
        }
    }

    /// Called on the thread of the poll, to tell that the poll continues.
    fn acknowledge(&self) {
        self.woken.store(false, SeqCst);
    }

    fn run_handler(&self) {
        if self.permit.is_revoked() {
            self.permit.wait_until(|| {
                self.start_next();
                false
            });
        }
        self.acknowledge();
    }

    fn interrupt(&self, point: usize) {
        for _ in 0..self.handlers[point] {
            self.run_handler();
        }
    }

    /// Runs the thread of a poll, which computes until it has been stopped.
    fn poll(&self, begun: &Step, stopped: &Step) {
        self.permit.enter();
        self.use_own_state();
        let _ = self.permit.leave();
        begun.complete();
        self.interrupt(0);
        stopped.wait();
        self.interrupt(1);
        if !self.permit.begin() {
            self.start_next();
            self.permit.wait_until(|| false);
        }
        self.acknowledge();
        self.use_own_state();
        let _ = self.permit.leave();
    }

    /// Stops the poll as the watcher does, later than a time slice after the poll continued. A
    /// thread that does not wait for its permit has continued, so the poll may be stopped.
    fn stop_poll(&self) {
        let is_to_wake = self.woken.load(SeqCst) && self.permit.is_awaited();
        assert!(!is_to_wake, "the thread still waits for its permit");
        assert!(self.permit.revoke(|| fence(SeqCst)).is_ok(), "no poll");
        self.next_up.store(true, SeqCst);
    }

    /// Runs the spare thread, which serves the vCPU and then lets the poll continue.
    fn serve(&self) {
        self.go.wait();
        self.use_own_state();
        self.woken.store(true, SeqCst);
        self.permit.grant();
        self.permit.nudge();
    }
}

fn model(handlers: [usize; POINTS]) {
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 10_000;
    builder.preemption_bound = Some(2);
    builder.check(move || {
        let vcpu = Arc::new(Vcpu {
            permit: Permit::new(),
            next_up: AtomicBool::new(false),
            go: Step::new(),
            // The thread has not acknowledged yet that it continues after its last suspension.
            woken: AtomicBool::new(true),
            own: UnsafeCell::new(0),
            handlers,
        });
        let (begun, stopped) = (Arc::new(Step::new()), Arc::new(Step::new()));
        let (poll, poll_begun, poll_stopped) = (vcpu.clone(), begun.clone(), stopped.clone());
        let poll = thread::spawn(move || poll.poll(&poll_begun, &poll_stopped));
        let spare = vcpu.clone();
        let spare = thread::spawn(move || spare.serve());
        begun.wait();
        vcpu.stop_poll();
        stopped.complete();
        // The watcher later starts the spare thread even if the handler has not run.
        vcpu.start_next();
        spare.join().unwrap();
        poll.join().unwrap();
    });
}

#[test]
fn without_the_signal_no_thread_waits_for_ever() {
    model([0, 0]);
}

#[test]
fn with_a_late_signal_no_thread_waits_for_ever() {
    // The signal of the previous suspension, and that of this one.
    model([1, 0]);
    model([0, 1]);
}

#[test]
fn with_two_signals_no_thread_waits_for_ever() {
    for handlers in [[2, 0], [0, 2], [1, 1]] {
        model(handlers);
    }
}
