//! Model checks of the suspension of a poll. A watcher thread stops a poll in its middle, another
//! thread (the *spare thread*) serves the vCPU, and the poll resumes. A thread needs a *permit* to
//! use the vCPU, and the watcher revokes it to stop the poll. The vCPU of `scheduler/core` and the
//! permit are unmodified. [`SharedVcpu`] repeats the steps of the runtime (`preempt/suspend.rs`)
//! without signals and futexes.
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

/// A vCPU and the permit of its first thread, shared by the first thread, the watcher and the spare
/// thread.
struct SharedVcpu {
    domain: Domain<ModelHost>,
    vcpu: Executor<ModelHost>,
    permit: Permit,
    /// Set while a poll on the first thread is under way.
    is_polling: AtomicBool,
    /// State that only the current thread uses while its permit is in use, such as the ring.
    own: UnsafeCell<u32>,
}

// SAFETY: the models show that only the current thread uses `vcpu` and `own`; the checker verifies
// the accesses to `own`.
unsafe impl Sync for SharedVcpu {}
// SAFETY: the argument for `Sync` covers a move to another thread, too.
unsafe impl Send for SharedVcpu {}

impl SharedVcpu {
    fn new() -> Arc<SharedVcpu> {
        let domain = domain(0);
        let vcpu = domain.add_vcpu().unwrap();
        Arc::new(SharedVcpu {
            domain,
            vcpu,
            permit: Permit::new(),
            is_polling: AtomicBool::new(false),
            own: UnsafeCell::new(0),
        })
    }

    fn spawn(&self, at: u8) -> (Work, CoroutineId) {
        let work = Work::new();
        let id = serving(&self.vcpu, || work.spawn(&self.domain, at));
        (work, id)
    }

    /// Called by the current thread, with its permit in use.
    fn use_own_state(&self) {
        // SAFETY: the checker verifies the access.
        self.own.with_mut(|own| unsafe { *own += 1 });
    }

    /// Polls the next coroutine on the first thread, with `inside` as the code of the poll.
    fn poll<R>(&self, inside: impl FnOnce() -> R) -> R {
        serving(&self.vcpu, || {
            self.permit.enter();
            let Some(Picked::Poll(running)) = self.vcpu.pick(None) else {
                panic!("no coroutine is ready")
            };
            self.use_own_state();
            self.is_polling.store(true, Relaxed);
            let _ = self.permit.leave();
            let result = inside();
            self.permit.enter();
            self.is_polling.store(false, Relaxed);
            self.use_own_state();
            drop(running.poll());
            let _ = self.permit.leave();
            result
        })
    }

    /// Revokes the permit, as the watcher does. Returns false if no poll is under way.
    fn stop_poll(&self) -> bool {
        if self.permit.revoke(|| fence(SeqCst)).is_err() {
            return false;
        }
        if !self.is_polling.load(Acquire) {
            self.resume();
            return false;
        }
        true
    }

    fn suspend(&self, end: QueueEnd) -> Option<CoroutineId> {
        // SAFETY: the polling thread continues when the coroutine has been picked.
        let stopped = || unsafe { self.vcpu.suspend_current(end) };
        self.stop_poll()
            .then(|| stopped().expect("a poll is under way"))
    }

    fn set_aside(&self) -> Option<SetAside<ModelHost>> {
        // SAFETY: the polling thread continues when the coroutine has been picked; the domain
        // outlives the result.
        let stopped = || unsafe { self.vcpu.set_aside_current() };
        self.stop_poll()
            .then(|| stopped().expect("a poll is under way"))
    }

    fn resume(&self) {
        self.permit.grant();
        self.permit.nudge();
    }

    /// Serves the vCPU on the calling thread until the stopped poll is picked, and lets this poll
    /// resume. Returns the number of other polls until then.
    fn serve_until_resume(&self, id: CoroutineId) -> usize {
        let others = serving(&self.vcpu, || {
            let (mut others, mut back) = (0, None);
            loop {
                self.use_own_state();
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
        // From here on the first thread serves the vCPU.
        self.resume();
        others
    }

    fn finish(&self) {
        models::run(&self.vcpu);
        assert_eq!(self.vcpu.bitmap(), 0, "a bit is left");
    }
}

/// One thread at a time uses the state of the current thread, whenever the watcher stops the poll.
/// The coroutine of the stopped poll is polled only once.
#[test]
fn a_suspended_poll_resumes_once_and_alone() {
    for end in [QueueEnd::Head, QueueEnd::Tail] {
        check(3, move || {
            let shared = SharedVcpu::new();
            let (work, _) = shared.spawn(40);
            let other = shared.clone();
            let watcher = thread::spawn(move || {
                if let Some(id) = other.suspend(end) {
                    assert_eq!(other.serve_until_resume(id), 0);
                }
            });
            shared.poll(|| {});
            watcher.join().unwrap();
            shared.finish();
            assert_eq!(work.polls(), 1);
        });
    }
}

/// A wake during the stop, the suspension or the resumption of a poll is not lost.
#[test]
fn a_wake_of_a_suspended_coroutine_is_not_lost() {
    check(3, || {
        let shared = SharedVcpu::new();
        let (work, id) = shared.spawn(40);
        let waker = work.wake_elsewhere(&shared.domain, id);
        let other = shared.clone();
        let watcher = thread::spawn(move || {
            if let Some(id) = other.suspend(QueueEnd::Head) {
                other.serve_until_resume(id);
            }
        });
        shared.poll(|| {});
        watcher.join().unwrap();
        waker.join().unwrap();
        shared.finish();
        assert!(work.has_seen() && work.polls() <= 2);
    });
}

/// More urgent work, which another thread makes ready during the poll, is polled before the
/// suspended poll resumes.
#[test]
fn more_urgent_work_goes_before_the_poll_suspended_for_it() {
    check(3, || {
        let shared = SharedVcpu::new();
        shared.spawn(40);
        let other = shared.clone();
        let urgent = Work::new();
        let (spawned, domain) = (urgent.clone(), shared.domain.clone());
        let spawner = thread::spawn(move || {
            spawned.spawn(&domain, 10);
        });
        let watched = urgent.clone();
        shared.poll(|| {
            spawner.join().unwrap();
            let watcher = thread::spawn(move || {
                let id = other.suspend(QueueEnd::Head).expect("a poll is under way");
                assert_eq!(other.serve_until_resume(id), 1);
                assert_eq!(watched.polls(), 1);
            });
            watcher.join().unwrap();
        });
        shared.finish();
        assert_eq!(urgent.polls(), 1);
    });
}

/// The thread of a poll sleeps until another coroutine of the same vCPU has run. The poll is set
/// aside, the other coroutine runs, and the poll resumes when its thread is awake, even if the vCPU
/// has parked meanwhile.
#[test]
fn a_blocked_poll_does_not_stop_its_vcpu_and_resumes() {
    check(3, || {
        let shared = SharedVcpu::new();
        let (blocks, _) = shared.spawn(10);
        let (needed, _) = shared.spawn(40);
        let awake = Arc::new(loom::sync::Notify::new());
        let server = shared.poll(|| {
            let set_aside = shared.set_aside().expect("a poll is under way");
            let (id, spare, wakes) = (set_aside.id(), shared.clone(), awake.clone());
            let server = thread::spawn(move || {
                assert!(models::poll_next(&spare.vcpu));
                wakes.notify();
                assert_eq!(spare.serve_until_resume(id), 0);
            });
            // The thread sleeps in the kernel, which may wake it without cause. `requeue` is called
            // as if by another thread, which has seen that this thread is awake.
            while needed.polls() == 0 {
                awake.wait();
            }
            interrupting(|| set_aside.requeue());
            server
        });
        server.join().unwrap();
        shared.finish();
        assert_eq!((blocks.polls(), needed.polls()), (1, 1));
    });
}

/// If a coroutine is given a level while it is being suspended, this level decides its place in the
/// queue, so the more urgent coroutine is polled before the suspended poll resumes.
#[test]
fn a_level_given_to_a_poll_that_is_being_suspended_counts() {
    check(3, || {
        let shared = SharedVcpu::new();
        let (work, id) = shared.spawn(20);
        let (between, _) = shared.spawn(40);
        let other = shared.clone();
        shared.poll(|| {
            let demoter = models::reprio_elsewhere(&shared.domain, id, 50);
            let watcher = thread::spawn(move || {
                let stopped_id = other.suspend(QueueEnd::Head).expect("a poll is under way");
                demoter.join().unwrap();
                assert_eq!(other.domain.level(stopped_id).unwrap().get(), 50);
                assert_eq!(other.serve_until_resume(stopped_id), 1);
            });
            watcher.join().unwrap();
        });
        shared.finish();
        assert_eq!((work.polls(), between.polls()), (1, 1));
    });
}

/// An idle vCPU does not take a suspended coroutine, because the stack of the poll belongs to its
/// thread.
#[test]
fn a_suspended_poll_is_not_taken_by_another_vcpu() {
    check(3, || {
        let shared = SharedVcpu::new();
        let thief = shared.domain.add_vcpu().unwrap();
        let (work, _) = shared.spawn(40);
        let other = shared.clone();
        let (watcher, elsewhere) = shared.poll(|| {
            let watcher = thread::spawn(move || {
                if let Some(id) = other.suspend(QueueEnd::Tail) {
                    other.serve_until_resume(id);
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
        shared.finish();
        assert_eq!(work.polls(), 1);
    });
}
