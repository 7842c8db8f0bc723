//! Functions that block, as coroutines wait for them.

pub(crate) mod pool;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use upshift_core::SpawnError;

use crate::blocking::pool::Job;
use crate::context;
use crate::host;
use crate::sync::oneshot;

/// A result, or a panic, that is to come.
pub(crate) type Coming<R> = oneshot::Receiver<std::thread::Result<R>>;

/// A function as a job; its result, or its panic, comes through the channel,
/// which closes without one if the job is dropped.
pub(crate) fn job<R: Send + 'static>(
    function: impl FnOnce() -> R + Send + 'static,
) -> (Job, Coming<R>) {
    let (sender, receiver) = oneshot::channel();
    let job = Job::Function(Box::new(move || {
        let result = catch_unwind(AssertUnwindSafe(function));
        // Nothing waits any more: the result is dropped.
        let _ = sender.send(result);
    }));
    (job, receiver)
}

/// Runs a function that blocks, at the level of the calling coroutine; its panic
/// goes on in the caller. Dropped before it has begun, the function may run all
/// the same; its result is lost.
///
/// # Errors
/// The function's own; outside a runtime, and if no thread can be had.
pub(crate) async fn run<R: Send + 'static>(
    function: impl FnOnce() -> io::Result<R> + Send + 'static,
) -> io::Result<R> {
    let level = host::current_level().unwrap_or_default();
    let pool = context::with_shared(|shared| shared.pool.clone());
    let pool = pool.ok_or_else(context::outside)?;
    let (job, result) = job(function);
    pool.take(level, job).map_err(|refused| refused.why)?;
    match result.await {
        Ok(Ok(result)) => result,
        Ok(Err(panic)) => std::panic::resume_unwind(panic),
        Err(_) => Err(io::Error::other(SpawnError::Closed)),
    }
}
