//! Models of suspension: the watcher stops a poll in its middle, another thread serves the vCPU,
//! and the poll resumes; with the unmodified vCPU of the core and permit. The runtime's steps
//! between the two (`preempt/suspend.rs`) are repeated in [`Seat`]: roles, signals and futexes are
//! left out.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p upshift-runtime-models --test loom_suspend`

#![cfg(loom)]

#[path = "../../core/tests/models/mod.rs"]
mod models;

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use loom::sync::atomic::{AtomicBool, fence};
use loom::thread;
use models::{ModelHost, Work, check, domain, interrupting, serving};
use upshift_core::{CoroutineId, Domain, Executor, Picked, Polled, QueueEnd, SetAside};
use upshift_elevate::dispatch::Permit;

/// The first thread of a vCPU, and the state that all its threads share.
struct Seat {
    domain: Domain<ModelHost>,
    vcpu: Executor<ModelHost>,
    permit: Permit,
    /// Set while a poll of the first thread is under way.
    began: AtomicBool,
    /// State of the current thread while its permit is in use: the ring, say.
    own: UnsafeCell<u32>,
}

// SAFETY: this is the property to show: only the current thread uses `vcpu` and `own`; the checker
// watches `own`.
unsafe impl Sync for Seat {}
// SAFETY: likewise.
unsafe impl Send for Seat {}

impl Seat {
    fn new() -> Arc<Seat> {
        let domain = domain(0);
        let vcpu = domain.add_vcpu().unwrap();
        Arc::new(Seat {
            domain,
            vcpu,
            permit: Permit::new(),
            began: AtomicBool::new(false),
            own: UnsafeCell::new(0),
        })
    }

    fn spawn(&self, at: u8) -> (Work, CoroutineId) {
        let work = Work::new();
        let id = serving(&self.vcpu, || work.spawn(&self.domain, at));
        (work, id)
    }

    /// Uses the state of the current thread. Only for that thread, with its permit in use.
    fn uses_own_state(&self) {
        // SAFETY: the checker verifies the access.
        self.own.with_mut(|own| unsafe { *own += 1 });
    }

    /// Polls the next coroutine on the first thread, with `inside` as the code of the poll.
    fn polls<R>(&self, inside: impl FnOnce() -> R) -> R {
        serving(&self.vcpu, || {
            self.permit.enter();
            let Some(Picked::Poll(running)) = self.vcpu.pick(None) else {
                panic!("something is ready")
            };
            self.uses_own_state();
            self.began.store(true, Relaxed);
            let _ = self.permit.leave();
            let result = inside();
            self.permit.enter();
            self.began.store(false, Relaxed);
            self.uses_own_state();
            drop(running.poll());
            let _ = self.permit.leave();
            result
        })
    }

    /// Takes the permit as the watcher, if a poll is under way.
    fn stops(&self) -> bool {
        if self.permit.revoke(|| fence(SeqCst)).is_err() {
            return false;
        }
        if !self.began.load(Acquire) {
            self.resumes();
            return false;
        }
        true
    }

    fn suspends(&self, end: QueueEnd) -> Option<CoroutineId> {
        // SAFETY: the polling thread continues when the coroutine has been picked.
        let stopped = || unsafe { self.vcpu.suspend_current(end) };
        self.stops()
            .then(|| stopped().expect("a poll is under way"))
    }

    fn sets_aside(&self) -> Option<SetAside<ModelHost>> {
        // SAFETY: the polling thread continues when the coroutine has been picked; the domain
        // outlives the result.
        let stopped = || unsafe { self.vcpu.set_aside_current() };
        self.stops()
            .then(|| stopped().expect("a poll is under way"))
    }

    fn resumes(&self) {
        self.permit.grant();
        self.permit.nudge();
    }

    /// Serves the vCPU on another thread until the stopped poll comes first. Returns the number of
    /// other polls until then.
    fn serves_until_it_resumes(&self, id: CoroutineId) -> usize {
        let others = serving(&self.vcpu, || {
            let (mut others, mut back) = (0, None);
            loop {
                self.uses_own_state();
                match self.vcpu.pick(back.take()) {
                    Some(Picked::Poll(running)) => {
                        others += 1;
                        if let Polled::Yielded(yielded) = running.poll() {
                            back = Some(yielded);
                        }
                    }
                    Some(Picked::Resume { id: picked, .. }) => {
                        assert_eq!(picked, id, "no other poll is suspended");
                        return others;
                    }
                    None => {
                        if self.vcpu.prepare_park() {
                            self.domain.host().wait(0);
                        }
                        self.vcpu.unpark();
                    }
                }
            }
        });
        // From here on the vCPU is the first thread's.
        self.resumes();
        others
    }

    /// Polls the rest, on the first thread alone.
    fn ends(&self) {
        models::run(&self.vcpu);
        assert_eq!(self.vcpu.bitmap(), 0, "nothing is left");
    }
}

/// Exactly one thread at a time has the current thread's state, wherever the watcher comes; the
/// stopped poll is polled once.
#[test]
fn a_suspended_poll_resumes_once_and_beside_nothing() {
    for end in [QueueEnd::Head, QueueEnd::Tail] {
        check(3, move || {
            let seat = Seat::new();
            let (work, _) = seat.spawn(40);
            let other = seat.clone();
            let watcher = thread::spawn(move || {
                if let Some(id) = other.suspends(end) {
                    assert_eq!(other.serves_until_it_resumes(id), 0);
                }
            });
            seat.polls(|| {});
            watcher.join().unwrap();
            seat.ends();
            assert_eq!(work.polls(), 1);
        });
    }
}

/// A wake during the stop, the suspension or the resumption of a poll is not lost.
#[test]
fn a_wake_of_a_suspended_coroutine_is_not_lost() {
    check(3, || {
        let seat = Seat::new();
        let (work, id) = seat.spawn(40);
        let waker = work.wake_elsewhere(&seat.domain, id);
        let other = seat.clone();
        let watcher = thread::spawn(move || {
            if let Some(id) = other.suspends(QueueEnd::Head) {
                other.serves_until_it_resumes(id);
            }
        });
        seat.polls(|| {});
        watcher.join().unwrap();
        waker.join().unwrap();
        seat.ends();
        assert!(work.has_seen() && work.polls() <= 2);
    });
}

/// More urgent work is polled before the poll that made room for it resumes, also if it comes
/// meanwhile from elsewhere.
#[test]
fn more_urgent_work_goes_before_the_poll_suspended_for_it() {
    check(3, || {
        let seat = Seat::new();
        seat.spawn(40);
        let other = seat.clone();
        let urgent = Work::new();
        let (waits, domain) = (urgent.clone(), seat.domain.clone());
        let outside = thread::spawn(move || {
            waits.spawn(&domain, 10);
        });
        let waits = urgent.clone();
        seat.polls(|| {
            outside.join().unwrap();
            let watcher = thread::spawn(move || {
                let id = other.suspends(QueueEnd::Head).expect("in its poll");
                assert_eq!(other.serves_until_it_resumes(id), 1);
                assert_eq!(waits.polls(), 1);
            });
            watcher.join().unwrap();
        });
        seat.ends();
        assert_eq!(urgent.polls(), 1);
    });
}

/// The thread of a poll sleeps until another coroutine of its vCPU has run. The poll is set aside,
/// the other runs, and the poll resumes when it is known that it could, also while the vCPU parks.
#[test]
fn a_blocked_poll_does_not_stop_its_vcpu_and_resumes() {
    check(3, || {
        let seat = Seat::new();
        let (blocks, _) = seat.spawn(10);
        let (needed, _) = seat.spawn(40);
        let awake = Arc::new(loom::sync::Notify::new());
        let serves = seat.polls(|| {
            let aside = seat.sets_aside().expect("in its poll");
            let (id, spare, wakes) = (aside.id(), seat.clone(), awake.clone());
            let serves = thread::spawn(move || {
                assert!(models::turn(&spare.vcpu));
                wakes.notify();
                assert_eq!(spare.serves_until_it_resumes(id), 0);
            });
            // It sleeps in the kernel, which may wake it without cause. Another thread sees that it
            // sleeps no more.
            while needed.polls() == 0 {
                awake.wait();
            }
            interrupting(|| aside.requeue());
            serves
        });
        serves.join().unwrap();
        seat.ends();
        assert_eq!((blocks.polls(), needed.polls()), (1, 1));
    });
}

/// A suspended coroutine has its place by the level that it is given meanwhile.
#[test]
fn a_level_given_to_a_poll_that_is_being_suspended_counts() {
    check(3, || {
        let seat = Seat::new();
        let (work, id) = seat.spawn(20);
        let (between, _) = seat.spawn(40);
        let other = seat.clone();
        seat.polls(|| {
            let demoted = models::reprio_elsewhere(&seat.domain, id, 50);
            let watcher = thread::spawn(move || {
                let stopped = other.suspends(QueueEnd::Head).expect("in its poll");
                demoted.join().unwrap();
                assert_eq!(other.domain.level(stopped).unwrap().get(), 50);
                assert_eq!(other.serves_until_it_resumes(stopped), 1);
            });
            watcher.join().unwrap();
        });
        seat.ends();
        assert_eq!((work.polls(), between.polls()), (1, 1));
    });
}

/// Its stack is on its thread: an idle vCPU takes coroutines that are ready beside it, and not the
/// suspended one.
#[test]
fn a_suspended_poll_is_not_taken_by_another_vcpu() {
    check(3, || {
        let seat = Seat::new();
        let thief = seat.domain.add_vcpu().unwrap();
        let (work, _) = seat.spawn(40);
        let other = seat.clone();
        let (watcher, elsewhere) = seat.polls(|| {
            let watcher = thread::spawn(move || {
                if let Some(id) = other.suspends(QueueEnd::Tail) {
                    other.serves_until_it_resumes(id);
                }
            });
            let elsewhere = thread::spawn(move || {
                let picked = serving(&thief, || thief.pick(None).is_some());
                assert!(!picked, "no coroutine may move");
                thief
            });
            (watcher, elsewhere)
        });
        watcher.join().unwrap();
        drop(elsewhere.join().unwrap());
        seat.ends();
        assert_eq!(work.polls(), 1);
    });
}
