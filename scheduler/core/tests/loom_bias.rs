//! Models a vCPU's lock while it is biased, that is, cheap for the thread that serves the vCPU and
//! more expensive for all others (`lock.rs`). Full fences stand for both barriers. In these models
//! and in all others, the guarded data is a cell that the checker watches. See `loom_state.rs` for
//! the command, and `models` for the bounds.

#![cfg(loom)]

// Included by path, because the lock is private to the crate, and these models run it with another
// host. It is not public, because programs have no use for a lock with a single owner thread.
#[path = "../src/base/lock.rs"]
mod lock;
mod models;
#[allow(dead_code, unused_imports, reason = "each model uses a part")]
#[path = "../src/sync.rs"]
mod sync;

/// The part of the host that the lock uses.
mod host {
    pub(crate) trait Host {
        fn relax(&self, spins: u32);
        fn has_heavy_barrier(&self) -> bool;
        fn heavy_barrier(&self);
    }
}

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{Ordering::SeqCst, fence};
use loom::thread;

use host::Host;
use lock::Lock;
use models::{
    Work, biased_domain, check, level, poll_next, reprio_elsewhere, run, run_elsewhere, serving,
};
use upshift_core::Kind;

struct Barriers(bool);

impl Host for Barriers {
    fn relax(&self, _: u32) {
        thread::yield_now();
    }
    fn has_heavy_barrier(&self) -> bool {
        self.0
    }
    fn heavy_barrier(&self) {
        fence(SeqCst);
    }
}

/// The lock without a vCPU, and the data that it guards.
struct Guarded {
    lock: Lock,
    host: Barriers,
    entries: UnsafeCell<u32>,
}

impl Guarded {
    fn new(biases: bool) -> Arc<Guarded> {
        Arc::new(Guarded {
            lock: Lock::new(),
            host: Barriers(biases),
            entries: UnsafeCell::new(0),
        })
    }

    fn enter(&self, as_owner: bool) {
        let guard = if as_owner {
            // SAFETY: only one thread of each model enters as the owner.
            unsafe { self.lock.lock_by_owner(&self.host) }
        } else {
            self.lock.lock(&self.host)
        };
        // SAFETY: the access is exclusive, since the lock is held; the checker verifies this.
        self.entries.with_mut(|entries| unsafe { *entries += 1 });
        drop(guard);
    }

    fn entries(&self) -> u32 {
        // SAFETY: no other thread has access, since all threads are joined.
        self.entries.with(|entries| unsafe { *entries })
    }
}

fn enter_elsewhere(guarded: &Arc<Guarded>, times: usize) -> thread::JoinHandle<()> {
    let guarded = guarded.clone();
    thread::spawn(move || (0..times).for_each(|_| guarded.enter(false)))
}

#[test]
fn the_lock_admits_one_thread_at_a_time() {
    for biases in [false, true] {
        check(3, move || {
            let guarded = Guarded::new(biases);
            guarded.enter(true);
            let other = enter_elsewhere(&guarded, 2);
            guarded.enter(true);
            guarded.enter(true);
            other.join().unwrap();
            assert_eq!(guarded.entries(), 5);
        });
    }
}

#[test]
fn two_threads_end_a_bias_and_one_is_inside_at_a_time() {
    check(2, || {
        let guarded = Guarded::new(true);
        guarded.enter(true);
        let others = [1, 1].map(|times| enter_elsewhere(&guarded, times));
        guarded.enter(true);
        for other in others {
            other.join().unwrap();
        }
        assert_eq!(guarded.entries(), 4);
    });
}

/// The owner holds the lock by its bias, or tries to take it, while another thread ends the bias.
#[test]
fn the_owner_and_a_thread_that_ends_its_bias_are_never_both_inside() {
    check(3, || {
        let domain = biased_domain(0);
        let owner = domain.add_vcpu().unwrap();
        let (work, id) = Work::blocked(&domain, &owner, 40);
        let raiser = reprio_elsewhere(&domain, id, 30);
        serving(&owner, || work.wake(&domain, id));
        run(&owner);
        raiser.join().unwrap();
        assert_eq!(domain.level(id), Ok(level(30)));
        run(&owner);
        assert_eq!(work.polls(), 2);
        assert_eq!(owner.bitmap(), 0);
    });
}

/// The owner sets the bias again between two steps that end it.
#[test]
fn a_bias_that_comes_back_is_ended_again() {
    check(2, || {
        let domain = biased_domain(0);
        let owner = domain.add_vcpu().unwrap();
        let (work, id) = Work::blocked(&domain, &owner, 40);
        let raiser = thread::spawn({
            let domain = domain.clone();
            move || {
                domain.reprio(id, level(30)).unwrap();
                domain.reprio(id, level(20)).unwrap();
            }
        });
        serving(&owner, || work.wake(&domain, id));
        poll_next(&owner);
        poll_next(&owner);
        raiser.join().unwrap();
        assert_eq!(domain.level(id), Ok(level(20)));
        assert_eq!(work.polls(), 2);
        assert_eq!(owner.bitmap(), 0);
    });
}

/// Another thread serves the vCPU while the vCPU's lock is still biased.
#[test]
fn a_bias_moves_with_the_executor_to_another_thread() {
    check(2, || {
        let domain = biased_domain(0);
        let owner = domain.add_vcpu().unwrap();
        let (work, id) = Work::blocked(&domain, &owner, 40);
        serving(&owner, || work.wake(&domain, id));
        let server = run_elsewhere(owner);
        domain.reprio(id, level(30)).unwrap();
        let owner = server.join().unwrap();
        run(&owner);
        assert_eq!(work.polls(), 2);
        assert_eq!(owner.bitmap(), 0);
    });
}

/// A thief ends the bias of its victim, which keeps its pinned coroutine.
#[test]
fn a_coroutine_stolen_from_a_biased_vcpu_is_polled_once() {
    check(2, || {
        let domain = biased_domain(0);
        let (owner, thief) = (domain.add_vcpu().unwrap(), domain.add_vcpu().unwrap());
        let (moves, stays) = (Work::new(), Work::new());
        serving(&owner, || moves.spawn(&domain, 20));
        stays.spawn_pinned(&owner, 20, Kind::Task);
        let stealer = run_elsewhere(thief);
        run(&owner);
        let thief = stealer.join().unwrap();
        run(&owner);
        run(&thief);
        assert_eq!((moves.polls(), stays.polls()), (1, 1));
        assert_eq!(domain.bitmap(), 0);
    });
}
