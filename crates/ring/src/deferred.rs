//! Foreign code that waits until the owner of a ring is back.
//!
//! Wakers and destructors of operations are foreign code: they may take a lock that the owner's thread holds in the middle of
//! its poll. So a thread that stands in for the owner ([`Ring::stand_in`](crate::Ring::stand_in)) runs none of it: it takes the
//! wakers along, and leaves what is to be disposed of to the owner's next turn.

use crate::driver::Driver;
use crate::slot::Slot;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::task::Waker;

/// Runs foreign code whose panic must not end the work of others: the hook has reported it.
#[inline]
pub(crate) fn quietly(f: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(f)) {
        // The payload's own destructor is foreign code too.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(panic)));
    }
}

#[derive(Default)]
pub(crate) struct Deferred {
    wakers: RefCell<Vec<Waker>>,
    /// Complete, without a handle. Their slots stay taken until the owner frees them.
    orphans: RefCell<Vec<NonNull<Slot>>>,
    has_orphans: Cell<bool>,
}

impl Deferred {
    /// The wakers of handles for which something arrived.
    pub(crate) fn take_wakers(&self) -> Vec<Waker> {
        self.wakers.take()
    }
}

impl Driver {
    /// Wakes, now or when the thread that stands in is through.
    #[inline]
    pub(crate) fn wake(&self, waker: Waker) {
        if self.standing_in.get() {
            self.deferred.wakers.borrow_mut().push(waker);
        } else {
            quietly(|| waker.wake());
        }
    }

    /// Disposes of a slot whose operation is complete, now or at the owner's next turn.
    #[inline]
    pub(crate) fn dispose_in_time(&self, slot: &Slot) {
        if self.standing_in.get() {
            self.deferred.orphans.borrow_mut().push(NonNull::from(slot));
            self.deferred.has_orphans.set(true);
        } else {
            self.dispose(slot);
        }
    }

    /// Disposes of what was left to the owner. One load if nothing was.
    #[inline]
    pub(crate) fn dispose_of_deferred(&self) {
        if self.deferred.has_orphans.get() && !self.standing_in.get() {
            self.dispose_of_orphans();
        }
    }

    #[cold]
    fn dispose_of_orphans(&self) {
        self.deferred.has_orphans.set(false);
        for slot in self.deferred.orphans.take() {
            // SAFETY: slots live as long as the ring, and this one is not shared.
            self.dispose(unsafe { slot.as_ref() });
        }
    }
}
