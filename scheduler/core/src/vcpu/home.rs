//! The home vCPU of a coroutine, to which its wakes go.

use core::ptr;

use super::Vcpu;
use crate::base::host::Host;
use crate::coroutine::Slot;
use crate::sync::Ordering::{Acquire, Relaxed, Release};

impl<H: Host> Slot<H> {
    pub(crate) fn vcpu(&self) -> &Vcpu<H> {
        // SAFETY: the field holds the address of a vCPU of the coroutine's domain, never null. A
        // vCPU lives as long as the domain, and so longer than any coroutine.
        unsafe { &*self.vcpu.load(Relaxed).cast() }
    }

    /// Returns true if the coroutine is on this vCPU. If so, the writes of the thread that moved
    /// the coroutine are visible, because the load is an Acquire.
    pub(super) fn is_on(&self, vcpu: &Vcpu<H>) -> bool {
        ptr::eq(self.vcpu.load(Acquire).cast(), vcpu)
    }

    /// Stores the vCPU in whose queue the coroutine is put. The caller holds the lock of that vCPU.
    #[inline]
    pub(super) fn set_vcpu(&self, vcpu: &Vcpu<H>) {
        self.vcpu
            .store(ptr::from_ref(vcpu).cast_mut().cast(), Relaxed);
    }

    /// Stores a new vCPU. The caller owns the coroutine, which is in no queue.
    pub(crate) fn move_to(&self, vcpu: &Vcpu<H>) {
        // Release, because `settle`, under the lock of the new vCPU, must not see the coroutine
        // still queued on the old vCPU.
        self.vcpu
            .store(ptr::from_ref(vcpu).cast_mut().cast(), Release);
    }

    pub(crate) fn location(&self) -> &'static core::panic::Location<'static> {
        self.spawned_at(self.vcpu().spawn_sites())
    }
}
