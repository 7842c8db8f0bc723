//! Blocking functions, and the coroutines that wait for them.

pub(crate) mod pool;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use upshift_core::SpawnError;

use crate::blocking::pool::Job;
use crate::context;
use crate::host;
use crate::sync::oneshot;

/// Receiver of a function's result or panic.
pub(crate) type JobResult<R> = oneshot::Receiver<std::thread::Result<R>>;

/// Turns a function into a job. Its result or panic arrives through the channel, which closes
/// without a value if the job is dropped.
pub(crate) fn job<R: Send + 'static>(
    function: impl FnOnce() -> R + Send + 'static,
) -> (Job, JobResult<R>) {
    let (sender, receiver) = oneshot::channel();
    let job = Job::Function(Box::new(move || {
        let result = catch_unwind(AssertUnwindSafe(function));
        // If the receiver is gone the result is dropped.
        let _ = sender.send(result);
    }));
    (job, receiver)
}

/// Runs a blocking function at the level of the calling coroutine. A panic of the function
/// continues in the caller.
///
/// # Cancellation safety
/// If the future is dropped, a queued function still runs; its result is lost.
///
/// # Errors
/// The function's own; an error outside a runtime, and if no thread can be started.
pub(crate) async fn run<R: Send + 'static>(
    function: impl FnOnce() -> io::Result<R> + Send + 'static,
) -> io::Result<R> {
    let level = host::current_level().unwrap_or_default();
    let pool = context::with_shared(|shared| shared.pool.clone());
    let pool = pool.ok_or_else(context::outside)?;
    let (job, result) = job(function);
    pool.submit(level, job).map_err(|refused| refused.error)?;
    match result.await {
        Ok(Ok(result)) => result,
        Ok(Err(panic)) => std::panic::resume_unwind(panic),
        Err(_) => Err(io::Error::other(SpawnError::Closed)),
    }
}
