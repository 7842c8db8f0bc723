//! A handle to cancel a coroutine, independent of its join handle.

use core::fmt;
use core::ptr::NonNull;

use crate::base::host::Host;
use crate::base::id::CoroutineId;
use crate::coroutine::Slot;
use crate::tables::table::id_of;
use crate::vcpu::{release, wake};

/// A handle that cancels a coroutine and returns whether it has exited, from any thread. The handle
/// keeps the control block alive.
pub struct CancelHandle<H: Host> {
    slot: NonNull<Slot<H>>,
}

// SAFETY: only the id and atomics can be reached, as through a waker.
unsafe impl<H: Host> Send for CancelHandle<H> {}
// SAFETY: only the id and atomics can be reached, as through a waker.
unsafe impl<H: Host> Sync for CancelHandle<H> {}

impl<H: Host> CancelHandle<H> {
    /// # Safety
    /// The caller has a reference to the slot's coroutine, and gives this reference to the handle.
    pub(crate) unsafe fn new(slot: NonNull<Slot<H>>) -> CancelHandle<H> {
        CancelHandle { slot }
    }

    /// Returns the id of the coroutine.
    #[must_use]
    pub fn id(&self) -> CoroutineId {
        id_of(self.slot)
    }

    fn slot(&self) -> &Slot<H> {
        // SAFETY: our reference keeps the slot alive.
        unsafe { self.slot.as_ref() }
    }

    /// Returns true if the coroutine has exited.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.slot().word.is_exited()
    }

    /// Cancels the coroutine, as [`JoinHandle::cancel`](crate::JoinHandle::cancel) does.
    pub fn cancel(&self) {
        // SAFETY: our reference keeps the control block.
        let _ = unsafe { wake::cancel_slot(self.slot, self.slot().word.generation()) };
    }
}

impl<H: Host> Clone for CancelHandle<H> {
    fn clone(&self) -> CancelHandle<H> {
        self.slot().word.retain();
        CancelHandle { slot: self.slot }
    }
}

impl<H: Host> Drop for CancelHandle<H> {
    fn drop(&mut self) {
        // SAFETY: the reference is ours, and not used after this.
        unsafe { release::release(self.slot) };
    }
}

impl<H: Host> fmt::Debug for CancelHandle<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CancelHandle").field(&self.id()).finish()
    }
}
