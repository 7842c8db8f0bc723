//! References to coroutines that are given back, and slots that have none left.

use alloc::sync::Arc;
use core::ptr::NonNull;

use super::shared::Shared;
use crate::base::host::{Critical, Host};
use crate::coroutine::Slot;
use crate::coroutine::state::TransitionToFree;

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

/// Gives back the references of the handle of an exited coroutine. They are probably all that there
/// are: then without an atomic step, on a thread that serves a vCPU.
///
/// # Safety
/// The caller is the handle, which has seen the exit, and has no reference afterwards.
#[inline]
pub(crate) unsafe fn release_handle<H: Host>(slot: NonNull<Slot<H>>) {
    // SAFETY: as above.
    let (word, vcpu) = unsafe { (&slot.as_ref().word, slot.as_ref().vcpu()) };
    let domain = vcpu.domain();
    {
        let _critical = Critical::<H>::enter();
        // The executor of the vCPU that the calling thread serves is a handle on the domain.
        if let Some(here) = vcpu.shared().here()
            && word.has_only_handle_refs()
        {
            // SAFETY: the calling thread serves it, in a critical section. The references are the
            // caller's, and all that there were.
            return unsafe { here.slot_cache.give(&here.shared().table, slot) };
        }
    }
    // SAFETY: the references are given back, and the domain is there until the slot is free.
    unsafe { finish(word.release_handle(), slot, domain) };
}

/// Gives a slot back that is no longer referenced.
///
/// # Safety
/// `release` is the answer to giving references to this slot back, and no one else acts on it. The
/// domain is the slot's.
#[inline]
pub(crate) unsafe fn finish<H: Host>(
    release: TransitionToFree,
    slot: NonNull<Slot<H>>,
    domain: NonNull<Shared<H>>,
) {
    match release {
        TransitionToFree::Alive => {}
        // SAFETY: no other reference is left; the coroutine has exited, for its own
        // reference is given back only then, and its future's memory went before. The last
        // handle on the domain waits for the slot.
        TransitionToFree::Free => unsafe { Shared::give_slot_back(domain, slot) },
        // SAFETY: as above; the mark came with a count on the domain. No slots
        // are taken any more, so nothing is given back.
        TransitionToFree::FreeOrphan => unsafe { Shared::release_orphan(domain) },
    }
}

impl<H: Host> Shared<H> {
    /// Gives back a slot whose tenant's future is gone: to the vCPU of the calling thread, or to
    /// the table. The last handle on the domain may wait for just this slot, so the domain may be
    /// freed while this function returns: no argument is a reference to it.
    ///
    /// # Safety
    /// The domain is there until the slot is back; the slot is of its table, without a tenant.
    #[inline]
    pub(crate) unsafe fn give_slot_back(this: NonNull<Shared<H>>, slot: NonNull<Slot<H>>) {
        let _critical = Critical::<H>::enter();
        // SAFETY: it is there until the slot is back. All of a table is atomics, and so may go
        // while a call on it returns.
        let (here, table) = unsafe { ((*this.as_ptr()).here(), &(*this.as_ptr()).table) };
        match here {
            // SAFETY: the calling thread serves it, and the section is critical.
            Some(here) => unsafe { here.slot_cache.give(table, slot) },
            None => table.give_back(slot),
        }
    }

    /// The mark of an orphaned slot held a count.
    ///
    /// # Safety
    /// The caller freed a slot that was marked.
    pub(crate) unsafe fn release_orphan(this: NonNull<Shared<H>>) {
        // SAFETY: `this` came from an `Arc`, and the mark counted it.
        unsafe { Arc::decrement_strong_count(this.as_ptr()) };
    }
}
