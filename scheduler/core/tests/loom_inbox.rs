//! Models the inbox alone, without a vCPU. The inbox is the lock-free list through which wakes from
//! other threads reach a vCPU. See `loom_state.rs` for the command that runs the models, and
//! `loom_park.rs` for the protocol in which the inbox is used.

#![cfg(loom)]

#[allow(dead_code, reason = "each model uses a part of the module")]
#[path = "../src/base/inbox.rs"]
mod inbox;
#[allow(
    dead_code,
    unused_imports,
    reason = "each model uses a part of the module"
)]
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
    // SAFETY: the element has not been shared yet.
    element.value.with_mut(|it| unsafe { *it = value });
    // SAFETY: the element stays allocated until `take` frees it.
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
fn each_element_is_taken_once_and_each_pushers_order_is_kept() {
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
            let pusher_values: Vec<u32> = values
                .iter()
                .copied()
                .filter(|value| value / 10 * 10 == base)
                .collect();
            assert_eq!(pusher_values, [base, base + 1]);
        }
        assert_eq!(values.len(), 4);
    });
}
