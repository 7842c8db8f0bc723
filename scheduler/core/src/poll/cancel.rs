//! Asking a coroutine to end, apart from its join handle.

use core::fmt;
use core::ptr::NonNull;

use crate::base::host::Host;
use crate::base::id::CoroutineId;
use crate::coroutine::Slot;
use crate::tables::table::id_of;
use crate::vcpu::{release, wake};

/// The right to cancel a coroutine, and to see whether it has exited; from any thread. It
/// keeps the control block.
pub struct CancelHandle<H: Host> {
    slot: NonNull<Slot<H>>,
}

// SAFETY: nothing but the id and atomics can be reached, as by a waker.
unsafe impl<H: Host> Send for CancelHandle<H> {}
// SAFETY: as above.
unsafe impl<H: Host> Sync for CancelHandle<H> {}

impl<H: Host> CancelHandle<H> {
    /// # Safety
    /// The caller gives it a reference to the slot's coroutine.
    pub(crate) unsafe fn new(slot: NonNull<Slot<H>>) -> CancelHandle<H> {
        CancelHandle { slot }
    }

    /// The id of the coroutine.
    #[must_use]
    pub fn id(&self) -> CoroutineId {
        id_of(self.slot)
    }

    fn slot(&self) -> &Slot<H> {
        // SAFETY: our reference keeps it.
        unsafe { self.slot.as_ref() }
    }

    /// Has it exited?
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.slot().word.is_exited()
    }

    /// As [`JoinHandle::cancel`](crate::JoinHandle::cancel).
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
        // SAFETY: it is our reference.
        unsafe { release::release(self.slot) };
    }
}

impl<H: Host> fmt::Debug for CancelHandle<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CancelHandle").field(&self.id()).finish()
    }
}
