//! Models of the signal that frees a CPU: a poll that has continued after a suspension is stopped
//! once more, another thread is made current, and the poll continues again, with the unmodified
//! permit. The handler runs at points that the test chooses, or never, since the model checker does
//! not interrupt a thread: the signal comes never, late, or twice. The runtime's own steps around
//! the permit (`preempt/{suspend,current,watcher}.rs`) are repeated in [`Vcpu`].
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

/// Points of a poll at which the handler may run: before it is stopped, and after.
const POINTS: usize = 2;

/// A step for which another thread waits. The checker also ends waits without cause.
struct Step(AtomicBool, Notify);

impl Step {
    fn new() -> Step {
        Step(AtomicBool::new(false), Notify::new())
    }

    fn is_done(&self) {
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
    /// Set while the spare thread is current, and is to be woken.
    next_up: AtomicBool,
    /// Set when the spare thread has been woken.
    go: Step,
    /// Set while the poll is to continue, and its thread has not acknowledged that.
    woken: AtomicBool,
    /// The memory of the current thread.
    own: UnsafeCell<u32>,
    /// Number of runs of the handler at each point.
    handlers: [usize; POINTS],
}

// SAFETY: this is the property to show. The checker watches `own`.
unsafe impl Sync for Vcpu {}
// SAFETY: likewise.
unsafe impl Send for Vcpu {}

impl Vcpu {
    fn uses_own_state(&self) {
        // SAFETY: the checker verifies the access.
        self.own.with_mut(|own| unsafe { *own += 1 });
    }

    /// Wakes the spare thread, unless it has been woken.
    fn start_next(&self) {
        if self.next_up.load(SeqCst) && self.next_up.swap(false, SeqCst) {
            self.go.is_done();
        }
    }

    /// Acknowledges, on the thread of the poll, that it continues.
    fn resumes(&self) {
        self.woken.store(false, SeqCst);
    }

    /// Runs the signal's handler, on the thread of the poll.
    fn handler(&self) {
        if self.permit.is_revoked() {
            self.permit.wait_until(|| {
                self.start_next();
                false
            });
        }
        self.resumes();
    }

    fn interrupts(&self, point: usize) {
        for _ in 0..self.handlers[point] {
            self.handler();
        }
    }

    /// Runs the thread of a poll, which computes until it has been stopped.
    fn polls(&self, begun: &Step, stopped: &Step) {
        self.permit.enter();
        self.uses_own_state();
        let _ = self.permit.leave();
        begun.is_done();
        self.interrupts(0);
        stopped.wait();
        self.interrupts(1);
        if !self.permit.begin() {
            self.start_next();
            self.permit.wait_until(|| false);
        }
        self.resumes();
        self.uses_own_state();
        let _ = self.permit.leave();
    }

    /// A look of the watcher, later than a turn after the poll continued. Only a thread that waits
    /// for its permit has yet to continue, so the poll is stopped.
    fn stops(&self) {
        let is_to_wake = self.woken.load(SeqCst) && self.permit.is_awaited();
        assert!(!is_to_wake, "its permit is granted");
        assert!(self.permit.revoke(|| fence(SeqCst)).is_ok(), "in its poll");
        self.next_up.store(true, SeqCst);
    }

    /// Runs the spare thread, which serves and lets the poll continue.
    fn serves(&self) {
        self.go.wait();
        self.uses_own_state();
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
            // Since its last suspension the thread has not acknowledged that it continues.
            woken: AtomicBool::new(true),
            own: UnsafeCell::new(0),
            handlers,
        });
        let (begun, stopped) = (Arc::new(Step::new()), Arc::new(Step::new()));
        let (poll, begins, seen) = (vcpu.clone(), begun.clone(), stopped.clone());
        let poll = thread::spawn(move || poll.polls(&begins, &seen));
        let spare = vcpu.clone();
        let spare = thread::spawn(move || spare.serves());
        begun.wait();
        vcpu.stops();
        stopped.is_done();
        // The next look comes, whether the handler has run or not.
        vcpu.start_next();
        spare.join().unwrap();
        poll.join().unwrap();
    });
}

#[test]
fn a_signal_that_never_comes_keeps_nothing_waiting() {
    model([0, 0]);
}

#[test]
fn a_signal_that_comes_late_keeps_nothing_waiting() {
    // The signal of the previous suspension, and that of this one.
    model([1, 0]);
    model([0, 1]);
}

#[test]
fn a_signal_that_comes_twice_keeps_nothing_waiting() {
    for handlers in [[2, 0], [0, 2], [1, 1]] {
        model(handlers);
    }
}
