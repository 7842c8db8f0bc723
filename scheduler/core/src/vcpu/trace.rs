//! Tracing: reports the steps of coroutines to the host.

use core::ptr::NonNull;

use super::Vcpu;
use crate::base::events::{Change, Step};
use crate::base::host::Host;
use crate::coroutine::Slot;
use crate::tables::table::id_of;

impl<H: Host> Vcpu<H> {
    /// Reports a step to the host if the host traces. The caller owns the coroutine.
    #[inline]
    pub(crate) fn trace(&self, coroutine: NonNull<Slot<H>>, step: Step) {
        if self.shared().host.is_tracing() {
            self.emit(coroutine, step);
        }
    }

    #[cold]
    fn emit(&self, coroutine: NonNull<Slot<H>>, step: Step) {
        let domain = self.shared();
        // SAFETY: the caller owns the coroutine, so it is alive.
        let block = unsafe { coroutine.as_ref() };
        domain.host.on_step(&Change {
            id: id_of(coroutine),
            level: block.level(),
            location: block.location(),
            step,
            vcpu: self.index(),
            by: domain.here().map(Vcpu::index),
        });
    }
}
