//! The waker of a coroutine: a counted reference to its slot.
//!
//! It is an ordinary [`core::task::Waker`], so any future may hold it, on any thread, for any
//! length of time, even after the end of the coroutine's domain. A clone and a drop cost one atomic
//! operation each; a wake costs one atomic operation and an enqueue.

use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use core::task::{RawWaker, RawWakerVTable, Waker};

use crate::base::host::{Critical, Host};
use crate::coroutine::Slot;
use crate::coroutine::state::TransitionToReady;
use crate::vcpu::Vcpu;
use crate::vcpu::release::release;
use crate::vcpu::wake::wake_slot;

/// Creates the vtable of the wakers of a host's coroutines, for
/// [`waker_table!`](crate::waker_table).
#[doc(hidden)]
#[must_use]
pub const fn new_table<H: Host>() -> RawWakerVTable {
    RawWakerVTable::new(clone::<H>, wake::<H>, wake_by_ref::<H>, drop_waker::<H>)
}

/// Expands to the body of [`Host::waker_table`]: a static with the vtable of the wakers of this
/// host's coroutines.
///
/// Wakers are recognized by the address of the static. A constant in a generic function would have
/// another address in each crate that uses the function.
#[macro_export]
macro_rules! waker_table {
    ($host:ty) => {{
        static TABLE: core::task::RawWakerVTable = $crate::new_table::<$host>();
        &TABLE
    }};
}

/// Creates a waker that borrows the reference of the caller.
///
/// # Safety
/// The caller holds a reference for as long as the result is used.
pub(crate) unsafe fn borrow<H: Host>(slot: NonNull<Slot<H>>) -> ManuallyDrop<Waker> {
    let raw = RawWaker::new(slot.as_ptr().cast(), H::waker_table());
    // SAFETY: the functions of the vtable keep the contract of `RawWaker`. The caller's reference
    // outlives the waker, and `ManuallyDrop` prevents its release.
    ManuallyDrop::new(unsafe { Waker::from_raw(raw) })
}

/// Returns the slot of a waker of this host, or `None` for a waker of another executor.
pub(crate) fn slot_of<H: Host>(waker: &Waker) -> Option<NonNull<Slot<H>>> {
    core::ptr::eq(waker.vtable(), H::waker_table())
        .then(|| NonNull::new(waker.data().cast_mut().cast()))
        .flatten()
}

unsafe fn clone<H: Host>(data: *const ()) -> RawWaker {
    // SAFETY: the waker that is being cloned holds a reference.
    unsafe { &*data.cast::<Slot<H>>() }.word.retain();
    RawWaker::new(data, H::waker_table())
}

unsafe fn wake<H: Host>(data: *const ()) {
    // SAFETY: the waker's reference keeps the slot allocated until it is released below.
    unsafe {
        let slot = NonNull::new_unchecked(data.cast_mut().cast::<Slot<H>>());
        let here = slot.as_ref().vcpu().shared().here();
        if here.is_none() {
            // This thread does not serve the domain, so the reference, which also keeps the domain
            // alive, is released after the wake.
            wake_slot(slot);
            return release(slot);
        }
        // This thread serves a vCPU of the domain, so the domain stays alive. The coroutine does,
        // too: after `Enqueue` only this thread may enqueue it, and it cannot exit before that.
        // Until then other wakes are absorbed, so this thread must not be suspended.
        let _critical = Critical::<H>::enter();
        match slot.as_ref().word.wake_and_release() {
            TransitionToReady::Enqueue => Vcpu::admit_from(here, slot),
            TransitionToReady::Absorbed => {}
            TransitionToReady::Exited => release(slot),
        }
    }
}

unsafe fn wake_by_ref<H: Host>(data: *const ()) {
    // SAFETY: the waker holds a reference.
    unsafe { wake_slot(NonNull::new_unchecked(data.cast_mut().cast::<Slot<H>>())) }
}

unsafe fn drop_waker<H: Host>(data: *const ()) {
    // SAFETY: the waker is being dropped, so its reference is released once.
    unsafe { release(NonNull::new_unchecked(data.cast_mut().cast::<Slot<H>>())) }
}
