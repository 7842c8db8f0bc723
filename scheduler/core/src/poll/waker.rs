//! The waker of a coroutine: a counted reference to its slot.
//!
//! It is an ordinary [`core::task::Waker`]; any future of the ecosystem may hold
//! it, on any thread, for as long as it likes, also when the domain is gone.
//! Clone and drop are one atomic step, a wake is one plus an enqueue.

use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use core::task::{RawWaker, RawWakerVTable, Waker};

use crate::base::host::{Critical, Host};
use crate::coroutine::Slot;
use crate::coroutine::state::{Release, Wake};
use crate::domain::Inner;
use crate::vcpu::Vcpu;

/// The table of the wakers of a host's coroutines, for [`waker_table!`](crate::waker_table).
#[doc(hidden)]
#[must_use]
pub const fn new_table<H: Host>() -> RawWakerVTable {
    RawWakerVTable::new(clone::<H>, wake::<H>, wake_by_ref::<H>, drop_waker::<H>)
}

/// The body of [`Host::waker_table`]: the table of the wakers of this host's coroutines, a static.
///
/// Wakers are known by its address. A constant of a generic function would have one in each crate that uses the function.
#[macro_export]
macro_rules! waker_table {
    ($host:ty) => {{
        static TABLE: core::task::RawWakerVTable = $crate::new_table::<$host>();
        &TABLE
    }};
}

/// The waker of a coroutine, without a reference of its own.
///
/// # Safety
/// The caller holds a reference for as long as the result is used.
pub(crate) unsafe fn borrowed<H: Host>(slot: NonNull<Slot<H>>) -> ManuallyDrop<Waker> {
    let raw = RawWaker::new(slot.as_ptr().cast(), H::waker_table());
    // SAFETY: the vtable below keeps the contract; the reference is the caller's.
    ManuallyDrop::new(unsafe { Waker::from_raw(raw) })
}

/// The slot behind a waker that [`borrowed`] made.
pub(crate) fn slot_of<H: Host>(waker: &Waker) -> Option<NonNull<Slot<H>>> {
    core::ptr::eq(waker.vtable(), H::waker_table())
        .then(|| NonNull::new(waker.data().cast_mut().cast()))
        .flatten()
}

/// Wakes the coroutine in a slot.
///
/// # Safety
/// The caller holds a reference.
pub(crate) unsafe fn wake_slot<H: Host>(slot: NonNull<Slot<H>>) {
    // A wake that is half done swallows those of others.
    let critical = Critical::<H>::enter();
    // SAFETY: slots outlive their references.
    let coroutine = unsafe { slot.as_ref() };
    if coroutine.vcpu().polls_here(coroutine) {
        // By a poll that goes on afterwards, as most that yield do: its end sees it, without an atomic step.
        coroutine.wake_itself();
        return;
    }
    // SAFETY: passed on.
    unsafe { wake_other(slot, critical) };
}

/// It is not what the calling thread polls.
///
/// # Safety
/// As [`wake_slot`].
#[inline(never)]
unsafe fn wake_other<H: Host>(slot: NonNull<Slot<H>>, _critical: Critical<H>) {
    // SAFETY: slots outlive their references.
    match unsafe { slot.as_ref() }.word.wake() {
        // SAFETY: `Enqueue` makes the coroutine ours.
        Wake::Enqueue => unsafe { Vcpu::admit(slot) },
        Wake::Absorbed | Wake::Exited => {}
    }
}

/// Cancels the coroutine of this generation in a slot. If it is being polled, the poll is asked to give way: a coroutine that computes
/// and asks whether it should comes to its end, also while nothing else is ready.
///
/// # Safety
/// The caller holds a reference to what is in the slot, if that is of this generation.
pub(crate) unsafe fn cancel_slot<H: Host>(slot: NonNull<Slot<H>>, generation: u32) -> Wake {
    let _critical = Critical::<H>::enter();
    // SAFETY: slots outlive their references.
    let wake = unsafe { slot.as_ref() }.word.wake_by_id(generation, true);
    match wake {
        // SAFETY: `Enqueue` makes the coroutine ours.
        Wake::Enqueue => unsafe { Vcpu::admit(slot) },
        // SAFETY: the caller's reference.
        Wake::Absorbed => unsafe { Vcpu::ask_cancelled(slot) },
        Wake::Exited => {}
    }
    wake
}

/// Gives a reference back, and with the last one the slot.
///
/// # Safety
/// The caller has a reference, and has none afterwards.
pub(crate) unsafe fn release<H: Host>(slot: NonNull<Slot<H>>) {
    // SAFETY: slots outlive their references; the domain is read before the reference goes.
    unsafe {
        let domain = slot.as_ref().vcpu().domain();
        finish(slot.as_ref().word.release(1), slot, domain);
    }
}

/// The same with what the handle has of a coroutine that has exited, which is probably all that there is: then without an atomic step, on a thread
/// that serves a vCPU.
///
/// # Safety
/// The caller is the handle, which has seen the exit, and has no reference afterwards.
#[inline]
pub(crate) unsafe fn release_of_handle<H: Host>(slot: NonNull<Slot<H>>) {
    // SAFETY: as above.
    let (word, vcpu) = unsafe { (&slot.as_ref().word, slot.as_ref().vcpu()) };
    let domain = vcpu.domain();
    {
        let _critical = Critical::<H>::enter();
        // The executor of the vCPU that the calling thread serves is a handle on the domain.
        if let Some(here) = vcpu.inner().here()
            && word.is_of_handle_alone()
        {
            // SAFETY: the calling thread serves it, in a critical section. The references are the caller's, and all that there were.
            return unsafe { here.kept.give(&here.inner().table, slot) };
        }
    }
    // SAFETY: the references are given back, and the domain is there until the slot is free.
    unsafe { finish(word.release_of_handle(), slot, domain) };
}

/// Gives a slot back that is no longer referenced.
///
/// # Safety
/// `release` is what came of giving references to this slot back, and no one else acts on it. The domain is the slot's.
#[inline]
pub(crate) unsafe fn finish<H: Host>(
    release: Release,
    slot: NonNull<Slot<H>>,
    domain: NonNull<Inner<H>>,
) {
    match release {
        Release::Alive => {}
        // SAFETY: no other reference is left; the coroutine has exited, for its own
        // reference is given back only then, and its future's memory went before. The last
        // handle on the domain waits for the slot.
        Release::Free => unsafe { Inner::give_slot_back(domain, slot) },
        // SAFETY: as above; the mark came with a count on the domain. No slots
        // are taken any more, so nothing is given back.
        Release::FreeOrphan => unsafe { Inner::release_orphan(domain) },
    }
}

unsafe fn clone<H: Host>(data: *const ()) -> RawWaker {
    // SAFETY: the waker that is being cloned holds a reference.
    unsafe { &*data.cast::<Slot<H>>() }.word.retain();
    RawWaker::new(data, H::waker_table())
}

unsafe fn wake<H: Host>(data: *const ()) {
    // SAFETY: the waker's reference keeps the control block until it is given back.
    unsafe {
        let slot = NonNull::new_unchecked(data.cast_mut().cast::<Slot<H>>());
        let here = slot.as_ref().vcpu().inner().here();
        if here.is_none() {
            // The reference keeps the domain, too, until the wake is over.
            wake_slot(slot);
            return release(slot);
        }
        // The domain stays, for this thread serves one of its vCPUs, and the coroutine,
        // once it is ours. A wake that is half done swallows those of others.
        let _critical = Critical::<H>::enter();
        match slot.as_ref().word.wake_and_release() {
            Wake::Enqueue => Vcpu::admit_from(here, slot),
            Wake::Absorbed => {}
            Wake::Exited => release(slot),
        }
    }
}

unsafe fn wake_by_ref<H: Host>(data: *const ()) {
    // SAFETY: the waker holds a reference.
    unsafe { wake_slot(NonNull::new_unchecked(data.cast_mut().cast::<Slot<H>>())) }
}

unsafe fn drop_waker<H: Host>(data: *const ()) {
    // SAFETY: the waker's reference is given back.
    unsafe { release(NonNull::new_unchecked(data.cast_mut().cast::<Slot<H>>())) }
}
