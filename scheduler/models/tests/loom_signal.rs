//! Models of the signal that frees a CPU: a poll that has gone on after a suspension is stopped
//! once more, another thread is made current, and the poll goes on again, with the permit as it is.
//! The handler runs where the test says, or nowhere, since the model checker does not interrupt a
//! thread: the signal comes never, late, or twice. The runtime's own steps around the permit
//! (`preempt/{suspend,current,watcher}.rs`) are written down once more in [`Vcpu`].
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

/// A step that another thread waits for. The checker also ends waits for nothing.
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
    /// The spare thread is current, and is to be woken.
    next_up: AtomicBool,
    /// The spare thread has been woken.
    go: Step,
    /// The poll was to go on, and its thread has not said that it does.
    woken: AtomicBool,
    /// The memory of the current thread.
    own: UnsafeCell<u32>,
    /// How often the handler runs at each point.
    handlers: [usize; POINTS],
}

// SAFETY: the property to show. The checker looks at `own`.
unsafe impl Sync for Vcpu {}
// SAFETY: as above.
unsafe impl Send for Vcpu {}

impl Vcpu {
    fn uses_its_own(&self) {
        // SAFETY: the checker verifies it.
        self.own.with_mut(|own| unsafe { *own += 1 });
    }

    /// Wakes the spare thread, if that has not been done.
    fn start_next(&self) {
        if self.next_up.load(SeqCst) && self.next_up.swap(false, SeqCst) {
            self.go.is_done();
        }
    }

    /// The thread of the poll says that it goes on.
    fn goes_on(&self) {
        self.woken.store(false, SeqCst);
    }

    /// The signal's handler, on the thread of the poll.
    fn handler(&self) {
        if self.permit.is_revoked() {
            self.permit.wait_until(|| {
                self.start_next();
                false
            });
        }
        self.goes_on();
    }

    fn interrupts(&self, point: usize) {
        for _ in 0..self.handlers[point] {
            self.handler();
        }
    }

    /// The thread of a poll, which computes until it has been stopped.
    fn polls(&self, begun: &Step, stopped: &Step) {
        self.permit.enter();
        self.uses_its_own();
        let _ = self.permit.leave();
        begun.is_done();
        self.interrupts(0);
        stopped.wait();
        self.interrupts(1);
        if !self.permit.begin() {
            self.start_next();
            self.permit.wait_until(|| false);
        }
        self.goes_on();
        self.uses_its_own();
        let _ = self.permit.leave();
    }

    /// A look of the watcher, later than a turn after the poll went on. Only a thread that waits
    /// for its permit has yet to go on, so the poll is stopped.
    fn stops(&self) {
        let is_to_wake = self.woken.load(SeqCst) && self.permit.is_awaited();
        assert!(!is_to_wake, "its permit is granted");
        assert!(self.permit.revoke(|| fence(SeqCst)).is_ok(), "in its poll");
        self.next_up.store(true, SeqCst);
    }

    /// The spare thread serves, and has the poll go on.
    fn serves(&self) {
        self.go.wait();
        self.uses_its_own();
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
            // Since its last suspension the thread has not said that it goes on.
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
    // That of the suspension before, and that of this one.
    model([1, 0]);
    model([0, 1]);
}

#[test]
fn a_signal_that_comes_twice_keeps_nothing_waiting() {
    for handlers in [[2, 0], [0, 2], [1, 1]] {
        model(handlers);
    }
}
