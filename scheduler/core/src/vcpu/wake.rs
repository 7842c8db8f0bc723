//! Wakes or cancels a coroutine, for a caller that holds a reference to it.

use core::ptr::NonNull;

use super::Vcpu;
use crate::base::host::{Critical, Host};
use crate::coroutine::Slot;
use crate::coroutine::state::TransitionToReady;

/// Wakes the coroutine in a slot.
///
/// # Safety
/// The caller holds a reference to the slot's coroutine.
pub(crate) unsafe fn wake_slot<H: Host>(slot: NonNull<Slot<H>>) {
    // Between the state change and the enqueueing, other wakes are absorbed. If the thread were
    // suspended there, the coroutine would not run meanwhile.
    let critical = Critical::<H>::enter();
    // SAFETY: slots outlive their references.
    let coroutine = unsafe { slot.as_ref() };
    if coroutine.vcpu().is_polling_here(coroutine) {
        // The coroutine wakes itself in its poll, as most coroutines that yield do. The end of the
        // poll sees the wake without an atomic read-modify-write.
        coroutine.wake_itself();
        return;
    }
    // SAFETY: the caller guarantees the requirements of `wake_slot`.
    unsafe { wake_other(slot, critical) };
}

/// # Safety
/// Same as [`wake_slot`].
#[inline(never)]
unsafe fn wake_other<H: Host>(slot: NonNull<Slot<H>>, _critical: Critical<H>) {
    // SAFETY: slots outlive their references.
    match unsafe { slot.as_ref() }.word.wake() {
        // SAFETY: `Enqueue` gives this thread the right to enqueue the coroutine.
        TransitionToReady::Enqueue => unsafe { Vcpu::admit(slot) },
        TransitionToReady::Absorbed | TransitionToReady::Exited => {}
    }
}

/// Cancels the coroutine in a slot if it is still the one of this generation. If it is being
/// polled, the poll is asked to yield, so that a long poll that checks `need_preempt` ends, even
/// while no other coroutine is ready.
///
/// # Safety
/// If the slot contains the coroutine of this generation, the caller holds a reference to it.
pub(crate) unsafe fn cancel_slot<H: Host>(
    slot: NonNull<Slot<H>>,
    generation: u32,
) -> TransitionToReady {
    let _critical = Critical::<H>::enter();
    // SAFETY: slots outlive their references.
    let wake = unsafe { slot.as_ref() }.word.wake_by_id(generation, true);
    match wake {
        // SAFETY: `Enqueue` gives this thread the right to enqueue the coroutine.
        TransitionToReady::Enqueue => unsafe { Vcpu::admit(slot) },
        // SAFETY: `Absorbed` implies that the generation matches, so the caller holds a reference.
        TransitionToReady::Absorbed => unsafe { Vcpu::preempt_cancelled(slot) },
        TransitionToReady::Exited => {}
    }
    wake
}
