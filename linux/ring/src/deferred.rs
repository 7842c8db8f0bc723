//! Runs or defers user code: wakers of other executors, and destructors of values that operations
//! own.
//!
//! By default the ring runs all user code at once. But user code may run for a long time, or take a
//! lock that a task holds while the runtime has suspended it. So a runtime can decide when and
//! where user code runs. After [`Ring::defer_user_code`](crate::Ring::defer_user_code) the ring
//! defers it until [`Ring::take_deferred`](crate::Ring::take_deferred). The runtime's own wakers
//! are still called at once, at the cost of one comparison of addresses. A thread that serves the
//! ring in place of its owner ([`Ring::stand_in`](crate::Ring::stand_in)) calls no waker at all.

use crate::catch_panic::catch_panic;
use crate::driver::Driver;
use crate::slot::{ORPHAN, Slot};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::ptr;
use std::task::{RawWakerVTable, Waker};

/// A deferred call of a waker or of a value's destructor. Dropping a `DeferredCall` makes the call,
/// and contains its panic.
#[must_use = "dropping it runs the user code at once"]
pub struct DeferredCall {
    level: u8,
    waker: Option<Waker>,
    value: Option<Box<dyn Send>>,
}

impl DeferredCall {
    /// Creates a deferred call of a waker at a level.
    pub fn waker(level: u8, waker: Waker) -> Self {
        Self {
            level,
            waker: Some(waker),
            value: None,
        }
    }

    /// Returns the level of the operation or stream.
    pub fn level(&self) -> u8 {
        self.level
    }

    /// Returns whether the call is of a waker with this vtable.
    pub fn is_waker_of(&self, kind: &'static RawWakerVTable) -> bool {
        (self.waker.as_ref()).is_some_and(|waker| ptr::eq(waker.vtable(), kind))
    }

    /// Calls the waker, or drops the value. Dropping the `DeferredCall` does the same.
    pub fn run(self) {}
}

impl Drop for DeferredCall {
    fn drop(&mut self) {
        if let Some(waker) = self.waker.take() {
            catch_panic(|| waker.wake());
        }
        if let Some(value) = self.value.take() {
            catch_panic(|| drop(value));
        }
    }
}

impl fmt::Debug for DeferredCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeferredCall")
            .field("level", &self.level)
            .field("is_waker", &self.waker.is_some())
            .finish_non_exhaustive()
    }
}

pub(crate) struct DeferredCalls {
    /// The vtable of the wakers that are called at once, or null if there are none.
    direct: Cell<*const RawWakerVTable>,
    /// Set if other wakers are deferred rather than called at once.
    defers: Cell<bool>,
    queue: RefCell<Vec<DeferredCall>>,
    has_calls: Cell<bool>,
}

/// The rule that decides which wakers are deferred. A thread saves this rule before it stands in
/// for the owner, and restores it afterwards.
pub(crate) struct WakerRule(*const RawWakerVTable, bool);

impl DeferredCalls {
    pub(crate) fn new() -> Self {
        Self {
            direct: Cell::new(ptr::null()),
            defers: Cell::new(false),
            queue: RefCell::new(Vec::new()),
            has_calls: Cell::new(false),
        }
    }

    pub(crate) fn defer_user_code(&self, runtime_vtable: &'static RawWakerVTable) {
        self.direct.set(runtime_vtable);
        self.defers.set(true);
    }

    pub(crate) fn defer_all(&self) -> WakerRule {
        let defers = self.defers.replace(true);
        WakerRule(self.direct.replace(ptr::null()), defers)
    }

    pub(crate) fn restore(&self, rule: WakerRule) {
        self.direct.set(rule.0);
        self.defers.set(rule.1);
    }

    #[inline]
    pub(crate) fn has_calls(&self) -> bool {
        self.has_calls.get()
    }

    pub(crate) fn take(&self) -> Vec<DeferredCall> {
        self.has_calls.set(false);
        self.queue.take()
    }

    /// Runs the deferred user code, and defers none from now on.
    pub(crate) fn run_all(&self) {
        self.defers.set(false);
        while self.has_calls() {
            self.take().into_iter().for_each(DeferredCall::run);
        }
    }

    fn push(&self, call: DeferredCall) {
        self.queue.borrow_mut().push(call);
        self.has_calls.set(true);
    }
}

impl Driver {
    #[inline]
    pub(crate) fn wake(&self, level: u8, waker: Waker) {
        if ptr::eq(waker.vtable(), self.deferred.direct.get()) {
            waker.wake();
        } else {
            self.wake_deferrable(level, waker);
        }
    }

    #[cold]
    fn wake_deferrable(&self, level: u8, waker: Waker) {
        let call = DeferredCall::waker(level, waker);
        if self.deferred.defers.get() {
            self.deferred.push(call);
        } else {
            call.run();
        }
    }

    /// Completes the operation of a slot without a handle, and frees the slot. Defers
    /// destructors that may run user code.
    pub(crate) fn dispose(&self, slot: &Slot) {
        if slot.has_mark(ORPHAN) {
            self.orphans.set(self.orphans.get() - 1);
        }
        let table = slot.table.get();
        let (result, flags) = (slot.result.get(), slot.flags.get());
        if table.drop_runs_user_code && self.deferred.defers.get() {
            // SAFETY: the payload holds a complete operation that has not been taken and is not
            // touched again.
            let value = unsafe { (table.take)(slot.payload(), result, flags) };
            self.deferred.push(DeferredCall {
                level: slot.level.get(),
                waker: None,
                value: Some(value),
            });
        } else {
            // SAFETY: as above.
            catch_panic(|| unsafe { (table.dispose)(slot.payload(), result, flags) });
        }
        self.slab.give_back(slot);
    }
}
