//! Releases references to coroutines, and gives slots without references back to the table.

use alloc::sync::Arc;
use core::ptr::NonNull;

use super::shared::Shared;
use crate::base::host::{Critical, Host};
use crate::coroutine::Slot;
use crate::coroutine::state::TransitionToFree;

/// Releases a reference.
///
/// # Safety
/// The caller has a reference, and does not use it afterwards.
pub(crate) unsafe fn release<H: Host>(slot: NonNull<Slot<H>>) {
    // SAFETY: slots outlive their references; the domain is read before the reference is released.
    unsafe {
        let domain = slot.as_ref().vcpu().domain();
        finish(slot.as_ref().word.release(1), slot, domain);
    }
}

/// Releases the references of a handle. On a thread that serves a vCPU this needs no atomic
/// read-modify-write if the references of the handle are the only ones, as they usually are.
///
/// # Safety
/// The caller is the handle, which has seen the exit, and uses no reference afterwards.
#[inline]
pub(crate) unsafe fn release_handle<H: Host>(slot: NonNull<Slot<H>>) {
    // SAFETY: slots outlive their references.
    let (word, vcpu) = unsafe { (&slot.as_ref().word, slot.as_ref().vcpu()) };
    let domain = vcpu.domain();
    {
        let _critical = Critical::<H>::enter();
        // The domain stays alive, because the executor of the vCPU that the calling thread serves
        // is a handle of the domain.
        if let Some(here) = vcpu.shared().here()
            && word.has_only_handle_refs()
        {
            // SAFETY: the calling thread serves the vCPU, in a critical section. The references are
            // the caller's, and the only ones.
            return unsafe { here.slot_cache.give(&here.shared().table, slot) };
        }
    }
    // SAFETY: the references are released, and the domain lives until the slot is free.
    unsafe { finish(word.release_handle(), slot, domain) };
}

/// Acts on the release of references: gives the slot back if it was the last.
///
/// # Safety
/// `release` is the result of a release of references to this slot, and only the caller acts on it.
/// `domain` is the domain of the slot.
#[inline]
pub(crate) unsafe fn finish<H: Host>(
    release: TransitionToFree,
    slot: NonNull<Slot<H>>,
    domain: NonNull<Shared<H>>,
) {
    match release {
        TransitionToFree::Alive => {}
        // SAFETY: no other reference is left. The coroutine has exited, since its own reference is
        // released only then, and its future's memory is freed. The last handle to the domain waits
        // for the slot.
        TransitionToFree::Free => unsafe { Shared::give_slot_back(domain, slot) },
        // SAFETY: no other reference is left, and the mark holds a count of the domain. No slot is
        // taken any more, so none is given back.
        TransitionToFree::FreeOrphan => unsafe { Shared::release_orphan(domain) },
    }
}

impl<H: Host> Shared<H> {
    /// Gives the slot to the cache of the vCPU of the calling thread, or to the table. The last
    /// handle to the domain may be waiting for this very slot, so the domain may be freed while
    /// this function returns. Therefore no argument is a reference to the domain.
    ///
    /// # Safety
    /// The domain lives until the slot is back; the slot is in its table, without a tenant.
    #[inline]
    pub(crate) unsafe fn give_slot_back(this: NonNull<Shared<H>>, slot: NonNull<Slot<H>>) {
        let _critical = Critical::<H>::enter();
        // SAFETY: the domain lives until the slot is back. A table is all atomics, so it may be
        // freed while a call on it returns.
        let (here, table) = unsafe { ((*this.as_ptr()).here(), &(*this.as_ptr()).table) };
        match here {
            // SAFETY: the calling thread serves the vCPU, and the section is critical.
            Some(here) => unsafe { here.slot_cache.give(table, slot) },
            None => table.give_back(slot),
        }
    }

    /// Releases the count of the domain that a slot marked as an orphan holds.
    ///
    /// # Safety
    /// The caller freed a slot that was marked.
    pub(crate) unsafe fn release_orphan(this: NonNull<Shared<H>>) {
        // SAFETY: `this` came from an `Arc`, and the mark holds the count that is released here.
        unsafe { Arc::decrement_strong_count(this.as_ptr()) };
    }
}
