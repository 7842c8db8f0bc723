//! The inbox, the parking protocol around it, and the lock, under the model
//! checker. See `loom_state.rs` for how to run it.
//!
//! Inbox and lock are the source itself. The protocol is written down here once
//! more, step by step as `Vcpu::deliver`, `pick` and `prepare_park` do it.

#![cfg(loom)]

#[allow(dead_code, reason = "each model uses a part")]
#[path = "../src/inbox.rs"]
mod inbox;
#[allow(dead_code, reason = "the slow path spins")]
#[path = "../src/lock.rs"]
mod lock;
#[allow(dead_code, unused_imports, reason = "each model uses a part")]
#[path = "../src/sync.rs"]
mod sync;

/// What the lock asks of its host.
mod host {
    pub(crate) trait Host {
        fn relax(&self, spins: u32);
    }
}

use std::ptr::{NonNull, null_mut};

use Ordering::{Relaxed, Release, SeqCst};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence};
use loom::thread;

use inbox::{Inbox, Linked};
use lock::Lock;

struct Element {
    link: AtomicPtr<Element>,
    /// Written before the push.
    value: UnsafeCell<u32>,
}

// SAFETY: one field, used by nothing else.
unsafe impl Linked for Element {
    fn link(&self) -> &AtomicPtr<Element> {
        &self.link
    }
}

fn push(inbox: &Inbox<Element>, value: u32) {
    let element = Box::leak(Box::new(Element {
        link: AtomicPtr::new(null_mut()),
        value: UnsafeCell::new(0),
    }));
    // SAFETY: nobody else has it.
    element.value.with_mut(|it| unsafe { *it = value });
    // SAFETY: leaked until it is taken.
    unsafe { inbox.push(NonNull::from(element)) };
}

fn take(inbox: &Inbox<Element>) -> Vec<u32> {
    inbox
        .take()
        .map(|element| {
            // SAFETY: leaked by `push`, and taken once.
            let element = unsafe { Box::from_raw(element.as_ptr()) };
            // SAFETY: taken, it is ours.
            element.value.with(|it| unsafe { *it })
        })
        .collect()
}

#[test]
fn what_two_push_is_taken_once_in_the_order_of_each() {
    loom::model(|| {
        let inbox = Arc::new(Inbox::new());
        let pushers = [10, 20].map(|base| {
            let inbox = inbox.clone();
            thread::spawn(move || {
                push(&inbox, base);
                push(&inbox, base + 1);
            })
        });
        let mut taken = take(&inbox);
        for pusher in pushers {
            pusher.join().unwrap();
        }
        taken.extend(take(&inbox));
        assert!(inbox.is_empty());
        for base in [10, 20] {
            let of_one: Vec<u32> = taken
                .iter()
                .copied()
                .filter(|v| v / 10 * 10 == base)
                .collect();
            assert_eq!(of_one, [base, base + 1]);
        }
        assert_eq!(taken.len(), 4);
    });
}

/// The words of a vCPU that waking and parking use.
struct Vcpu {
    inbox: Inbox<Element>,
    arriving: AtomicU64,
    preempt: AtomicBool,
    parked: AtomicBool,
    idle: AtomicUsize,
    kicks: AtomicUsize,
}

impl Vcpu {
    fn new() -> Arc<Vcpu> {
        Arc::new(Vcpu {
            inbox: Inbox::new(),
            arriving: AtomicU64::new(0),
            preempt: AtomicBool::new(false),
            parked: AtomicBool::new(false),
            idle: AtomicUsize::new(0),
            kicks: AtomicUsize::new(0),
        })
    }

    fn deliver(&self, value: u32) {
        push(&self.inbox, value);
        self.arriving.fetch_or(1, SeqCst);
        self.preempt.fetch_or(true, Release);
        fence(SeqCst);
        if self.parked.load(Relaxed) && self.parked.swap(false, SeqCst) {
            self.idle.fetch_sub(1, SeqCst);
            self.kicks.fetch_add(1, SeqCst);
        }
    }

    fn pick(&self) -> Vec<u32> {
        if self.preempt.load(Relaxed) {
            self.preempt.swap(false, SeqCst);
        }
        if self.inbox.is_empty() && self.arriving.load(Relaxed) == 0 {
            return Vec::new();
        }
        self.arriving.store(0, SeqCst);
        take(&self.inbox)
    }

    fn prepare_park(&self) -> bool {
        self.idle.fetch_add(1, SeqCst);
        if self.parked.swap(true, SeqCst) {
            self.idle.fetch_sub(1, SeqCst);
        }
        fence(SeqCst);
        let work = !self.inbox.is_empty() || self.arriving.load(Relaxed) != 0;
        if work {
            self.unpark();
        }
        !work
    }

    fn unpark(&self) {
        if self.parked.swap(false, SeqCst) {
            self.idle.fetch_sub(1, SeqCst);
        }
    }
}

#[test]
fn invariant_2_a_push_while_the_owner_parks_is_seen_or_kicks_it() {
    loom::model(|| {
        let vcpu = Vcpu::new();
        let waker = {
            let vcpu = vcpu.clone();
            thread::spawn(move || vcpu.deliver(1))
        };
        let mut taken = vcpu.pick();
        let parked = vcpu.prepare_park();
        waker.join().unwrap();
        let kicks = vcpu.kicks.load(SeqCst);
        if parked && kicks == 0 {
            // Nobody will come: so there was nothing left.
            assert_eq!(taken, [1]);
            // Invariant 5: the bitmap of a parked vCPU is the truth.
            assert_eq!(vcpu.arriving.load(SeqCst), 0);
        }
        vcpu.unpark();
        assert_eq!(vcpu.idle.load(SeqCst), 0);
        taken.extend(vcpu.pick());
        assert_eq!(taken, [1]);
        // What arrived has its bit, and no bit is left without it.
        assert_eq!(vcpu.arriving.load(SeqCst), 0);
    });
}

#[test]
fn two_that_push_to_a_parked_vcpu_kick_it_once() {
    loom::model(|| {
        let vcpu = Vcpu::new();
        assert!(vcpu.prepare_park());
        let wakers = [1, 2].map(|value| {
            let vcpu = vcpu.clone();
            thread::spawn(move || vcpu.deliver(value))
        });
        for waker in wakers {
            waker.join().unwrap();
        }
        assert_eq!(vcpu.kicks.load(SeqCst), 1);
        assert_eq!(vcpu.idle.load(SeqCst), 0);
        assert_eq!(vcpu.pick().len(), 2);
    });
}

#[test]
fn a_wake_is_taken_by_the_pick_that_clears_need_preempt_or_leaves_it_set() {
    loom::model(|| {
        let vcpu = Vcpu::new();
        let waker = {
            let vcpu = vcpu.clone();
            thread::spawn(move || vcpu.deliver(1))
        };
        let taken = vcpu.pick();
        waker.join().unwrap();
        assert!(taken == [1] || vcpu.preempt.load(SeqCst));
        if taken.is_empty() {
            assert_eq!(vcpu.pick(), [1]);
        }
    });
}

/// Spinning is left out: the checker cannot tell a long wait from an endless one.
#[test]
fn the_lock_lets_one_in_at_a_time() {
    loom::model(|| {
        let shared = Arc::new((Lock::new(), UnsafeCell::new(0)));
        let enter_twice = |shared: &(Lock, UnsafeCell<u32>)| {
            let mut entered = 0;
            for _ in 0..2 {
                if let Some(guard) = shared.0.try_lock() {
                    // SAFETY: the lock is held; the checker verifies it.
                    shared.1.with_mut(|it| unsafe { *it += 1 });
                    drop(guard);
                    entered += 1;
                }
            }
            entered
        };
        let other = {
            let shared = shared.clone();
            thread::spawn(move || enter_twice(&shared))
        };
        let entered = enter_twice(&shared) + other.join().unwrap();
        // SAFETY: all threads are joined.
        assert_eq!(shared.1.with(|it| unsafe { *it }), entered);
        assert!(entered >= 1);
    });
}
