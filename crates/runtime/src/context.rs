//! What the calling thread serves: the way from a leaf future to its vCPU.
//!
//! A thread-local pointer to the [`Worker`] whose loop is running on this thread.
//! Everything here answers "nothing" outside a runtime.

use std::cell::Cell;
use std::io;
use std::ptr::null;
use std::sync::Arc;

use upshift_core::{CoroutineId, Level};

use crate::preempt::Critical;
use crate::time::Timers;
use crate::worker::Worker;

thread_local! {
    static WORKER: Cell<*const Worker> = const { Cell::new(null()) };
}

/// The calling thread runs this worker's loop until the result is dropped.
pub(crate) fn enter(worker: &Worker) -> Entered {
    let before = WORKER.replace(worker);
    // SAFETY: the worker has the executor, and is borrowed by its own thread
    // until `Entered` is dropped (it is not `Sync`).
    unsafe { crate::host::serve(Some(worker.executor.vcpu())) };
    Entered { before }
}

/// Ends what [`enter`] began.
pub(crate) struct Entered {
    before: *const Worker,
}

impl Drop for Entered {
    fn drop(&mut self) {
        WORKER.set(self.before);
        // SAFETY: the worker of before, if any, is still entered on this thread.
        unsafe { crate::host::serve(self.before.as_ref().map(|worker| worker.executor.vcpu())) };
    }
}

/// Runs `f` with the worker of the calling thread.
#[inline]
pub(crate) fn with<R>(f: impl FnOnce(&Worker) -> R) -> Option<R> {
    let worker = WORKER.try_with(Cell::get).ok()?;
    // SAFETY: not null only between `enter` and its end, while the worker lives.
    let worker = unsafe { worker.as_ref() }?;
    let _critical = Critical::enter();
    Some(f(worker))
}

/// Runs `f` with the worker of the calling thread, or says what is missing.
pub(crate) fn try_with<R>(f: impl FnOnce(&Worker) -> R) -> io::Result<R> {
    with(f).ok_or_else(|| {
        io::Error::other(
            "no upshift runtime on this thread: call this from a coroutine, or use `Runtime::block_on`",
        )
    })
}

/// The coroutine that is being polled.
#[inline]
pub(crate) fn current_id() -> Option<CoroutineId> {
    let _critical = Critical::enter();
    // SAFETY: a served vCPU exists.
    crate::host::served().and_then(|vcpu| unsafe { vcpu.as_ref() }.current_id())
}

/// Its effective level.
#[inline]
pub(crate) fn current_level() -> Option<Level> {
    let _critical = Critical::enter();
    // SAFETY: a served vCPU exists.
    crate::host::served().and_then(|vcpu| unsafe { vcpu.as_ref() }.running_level())
}

/// The current coroutine has taken a lock that lends.
#[inline]
pub(crate) fn lock_taken() {
    with(|worker| worker.executor.domain().lock_taken());
}

/// A lock that `id` had taken is given back.
#[inline]
pub(crate) fn lock_released(id: CoroutineId) {
    with(|worker| worker.executor.domain().lock_released(id));
}

/// The current coroutine waits for a lock of `holder`.
pub(crate) fn lend_to_holder(holder: CoroutineId) {
    with(|worker| worker.executor.domain().lend_to_holder(holder));
}

/// The timers of the vCPU.
pub(crate) fn timers() -> Option<Arc<Timers>> {
    with(|worker| worker.timers.clone())
}
