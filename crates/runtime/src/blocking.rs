//! Functions that block, as coroutines wait for them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use upshift_core::Level;

use crate::context;
use crate::host;
use crate::pool::{Job, Pool};
use crate::sync::oneshot;

/// Queues a function; its result, or its panic, comes through the channel,
/// which closes without one if no thread can be had.
pub(crate) fn run_in<R: Send + 'static>(
    pool: &Pool,
    level: Level,
    function: impl FnOnce() -> R + Send + 'static,
) -> oneshot::Receiver<std::thread::Result<R>> {
    let (sender, receiver) = oneshot::channel();
    let job: Job = Box::new(move || {
        let result = catch_unwind(AssertUnwindSafe(function));
        // Nothing waits any more: the result is dropped.
        let _ = sender.send(result);
    });
    pool.take(level, job);
    receiver
}

/// Runs a function that blocks, at the level of the calling coroutine; its panic
/// goes on in the caller. Dropped before it has begun, the function may run all
/// the same; its result is lost.
///
/// # Errors
/// The function's own; outside a runtime, and if no thread can be had.
pub(crate) async fn run<R: Send + 'static>(
    function: impl FnOnce() -> std::io::Result<R> + Send + 'static,
) -> std::io::Result<R> {
    let level = host::current_level().unwrap_or_default();
    let result = context::with_open(|worker| run_in(&worker.shared.pool, level, function));
    let result = result.ok_or_else(context::outside)?;
    match result.await {
        Ok(Ok(result)) => result,
        Ok(Err(panic)) => std::panic::resume_unwind(panic),
        Err(_) => Err(std::io::Error::other(
            "no thread for a blocking call could be started: raise the limit of threads (RLIMIT_NPROC, pids.max)",
        )),
    }
}
