//! Implements the scheduler's trait `Host` for the kernel.
//!
//! A hart serves one vCPU, whose index is the number of the hart. While a hart runs an interrupt
//! handler, it serves none. The wakes of the handler therefore use the inbox, which needs no lock;
//! the interrupted code may hold the vCPU's lock.

use core::future::Future;
use core::ptr::NonNull;
use core::sync::atomic::Ordering::Relaxed;

use upshift_core::{
    Change, CoroutineId, Executor, Host, JoinHandle, Kind, Level, Priority, ServedVcpu, SpawnError,
    SpawnOptions,
};

use super::csr;
use crate::{hart, trace};

/// The host: a unit type, because the state is in statics.
pub(crate) struct KernelHost;

// SAFETY: `current` returns only the vCPU that the calling hart serves. This vCPU exists, because
// the hart's loop holds its executor (it is set when the hart takes the executor, and the loop
// never ends). In a handler, which may interrupt the loop at any point, `current` returns `None`.
unsafe impl Host for KernelHost {
    #[inline]
    fn waker_table() -> &'static core::task::RawWakerVTable {
        upshift_core::waker_table!(KernelHost)
    }

    #[inline]
    fn is_tracing(&self) -> bool {
        trace::is_on()
    }

    #[inline]
    fn on_step(&self, change: &Change) {
        if let Some(state) = change.step.entered() {
            trace::coroutine(change.id, change.level, state.into());
        }
    }

    #[inline]
    fn now(&self) -> u64 {
        csr::time()
    }

    #[inline]
    fn current(&self) -> Option<ServedVcpu> {
        let hart = hart::this();
        if hart.in_interrupt.load(Relaxed) {
            return None;
        }
        NonNull::new(hart.vcpu.load(Relaxed)).map(ServedVcpu::from)
    }

    fn kick(&self, index: usize) {
        hart::interrupt(index);
    }
}

/// Creates the switching coroutine of a vCPU. The coroutine is pinned, never ends, and has the
/// least urgent level until `set_level` changes it. Its hart wakes it when the hart goes online.
pub(crate) fn make_switching<F>(
    executor: &Executor<KernelHost>,
    future: F,
) -> Result<CoroutineId, SpawnError>
where
    F: Future<Output = ()> + Send + 'static,
{
    let options = SpawnOptions {
        priority: Priority::At(Level::LEAST_URGENT),
        kind: Kind::Switching,
        start: false,
    };
    // SAFETY: the future and its output are `Send`.
    let handle: JoinHandle<(), KernelHost> = unsafe { executor.spawn_pinned(future, options)? };
    let id = handle.id();
    handle.detach();
    Ok(id)
}
