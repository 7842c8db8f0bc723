//! Finds and ends the coroutines that are pinned to a vCPU. The public functions are for hosts that
//! poll pinned coroutines on a thread other than the one that serves the vCPU.

use core::ptr::{self, NonNull};

use super::spawn::discard;
use crate::base::host::Host;
use crate::base::id::CoroutineId;
use crate::coroutine::Slot;
use crate::vcpu::Vcpu;

impl<H: Host> Vcpu<H> {
    /// Iterates over the coroutines that are pinned here. O(coroutines of the domain).
    pub(crate) fn pinned(&self) -> impl Iterator<Item = (CoroutineId, NonNull<Slot<H>>)> {
        let shared = self.shared();
        shared.table.slots().filter_map(move |(index, slot)| {
            let id = CoroutineId::new(index, slot.word.live_generation()?);
            let ours = shared.with_coroutine(id, |coroutine| {
                // SAFETY: `with_coroutine` holds a reference.
                let block = unsafe { coroutine.as_ref() };
                block.is_pinned() && ptr::eq(block.vcpu(), self)
            });
            (ours == Ok(true)).then_some((id, shared.table.find(index)?))
        })
    }

    /// Returns true if a coroutine is pinned here. While this is true, the vCPU must not be retired
    /// on a thread other than the one that polls its pinned coroutines. O(coroutines of the
    /// domain).
    #[must_use]
    pub fn has_pinned(&self) -> bool {
        self.pinned().next().is_some()
    }

    /// Ends the coroutines that are pinned here and queued, without a poll, even while another
    /// thread serves the vCPU.
    ///
    /// # Safety
    /// The calling thread is the one that polls the coroutines pinned here, and is not in the
    /// middle of such a poll.
    pub unsafe fn discard_pinned(&self) {
        while let Some(coroutine) = { self.lock().take_pinned() } {
            // SAFETY: the coroutine is out of its queue, so ours, and dropped on its own thread.
            unsafe { discard(coroutine) };
        }
    }
}
