//! The inbox and the lock alone, under the model checker. See `loom_state.rs` for how to run it, and `loom_park.rs` for
//! the protocol around them.

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

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::AtomicPtr;
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
    // SAFETY: no other thread has it.
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
