//! What is pinned to a vCPU, for hosts in which another thread than the one that serves the vCPU polls it.

use core::ptr::{self, NonNull};

use super::spawn::discard;
use crate::base::host::Host;
use crate::base::id::CoroutineId;
use crate::coroutine::Slot;
use crate::vcpu::Vcpu;

impl<H: Host> Vcpu<H> {
    /// What is pinned here, with its slot. O(coroutines of the domain).
    pub(crate) fn pinned(&self) -> impl Iterator<Item = (CoroutineId, NonNull<Slot<H>>)> {
        let shared = self.shared();
        shared.table.slots().filter_map(move |(index, slot)| {
            let id = CoroutineId::new(index, slot.word.tenant()?);
            let ours = shared.with(id, |coroutine| {
                // SAFETY: `with` holds a reference.
                let block = unsafe { coroutine.as_ref() };
                block.is_pinned() && ptr::eq(block.vcpu(), self)
            });
            (ours == Ok(true)).then_some((id, shared.table.find(index)?))
        })
    }

    /// Is anything pinned here? While something is, the vCPU must not be retired on another thread than that which polls it.
    /// O(coroutines of the domain).
    #[must_use]
    pub fn has_pinned(&self) -> bool {
        self.pinned().next().is_some()
    }

    /// Ends what is pinned here and queued, without a poll, whatever thread serves the vCPU.
    ///
    /// # Safety
    /// The calling thread is that which polls what is pinned here, and in the middle of no such poll.
    pub unsafe fn discard_pinned(&self) {
        while let Some(coroutine) = { self.locked().take_pinned() } {
            // SAFETY: out of the queue, so ours, and dropped on its own thread.
            unsafe { discard(coroutine) };
        }
    }
}
