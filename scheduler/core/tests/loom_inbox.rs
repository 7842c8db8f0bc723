//! Models the inbox, the lock-free list through which wakes from other threads reach a vCPU,
//! without a vCPU. See `loom_state.rs` for the command that runs the models, and `loom_park.rs` for
//! the protocol in which the inbox is used.

#![cfg(loom)]

#[allow(dead_code, reason = "each model uses a part")]
#[path = "../src/base/inbox.rs"]
mod inbox;
#[allow(dead_code, unused_imports, reason = "each model uses a part")]
#[path = "../src/sync.rs"]
mod sync;

use std::ptr::{NonNull, null_mut};

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::AtomicPtr;
use loom::thread;

use inbox::{Inbox, Linked};

struct Element {
    link: AtomicPtr<Element>,
    /// Written before the push.
    value: UnsafeCell<u32>,
}

// SAFETY: `link` always returns the field `link`, which only the inbox uses.
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
    // SAFETY: no other thread has the element.
    element.value.with_mut(|it| unsafe { *it = value });
    // SAFETY: the element is leaked until it is taken.
    unsafe { inbox.push(NonNull::from(element)) };
}

fn take(inbox: &Inbox<Element>) -> Vec<u32> {
    inbox
        .take()
        .map(|element| {
            // SAFETY: `push` leaked the element, and it is taken once.
            let element = unsafe { Box::from_raw(element.as_ptr()) };
            // SAFETY: the element was taken, so it is ours.
            element.value.with(|it| unsafe { *it })
        })
        .collect()
}

#[test]
fn each_element_is_taken_once_and_in_the_order_of_its_pusher() {
    loom::model(|| {
        let inbox = Arc::new(Inbox::new());
        let pushers = [10, 20].map(|base| {
            let inbox = inbox.clone();
            thread::spawn(move || {
                push(&inbox, base);
                push(&inbox, base + 1);
            })
        });
        let mut values = take(&inbox);
        for pusher in pushers {
            pusher.join().unwrap();
        }
        values.extend(take(&inbox));
        assert!(inbox.is_empty());
        for base in [10, 20] {
            let of_pusher: Vec<u32> = values
                .iter()
                .copied()
                .filter(|v| v / 10 * 10 == base)
                .collect();
            assert_eq!(of_pusher, [base, base + 1]);
        }
        assert_eq!(values.len(), 4);
    });
}
