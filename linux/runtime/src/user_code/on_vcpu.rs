//! Does work that needs a vCPU for a thread that belongs to the runtime but serves no vCPU. A
//! coroutine does the work, and a future on that thread waits for the coroutine. So sockets and
//! timers of this runtime work even in tokio tasks, for example in those that axum spawns with
//! tokio for a web socket. Each use costs a spawn and a switch between threads.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use upshift_core::Priority;

use crate::context;
use crate::task::JoinHandle;

/// A future that returns the coroutine's result, or `None` if the coroutine panicked or was
/// cancelled. Dropping the future cancels the coroutine.
pub(crate) struct OnVcpu<T>(JoinHandle<T>);

impl<T: Send + 'static> OnVcpu<T> {
    /// Spawns a coroutine that runs `future` on a vCPU of the runtime of the calling thread.
    ///
    /// # Errors
    /// On a thread that belongs to no runtime, or while the runtime shuts down.
    pub(crate) fn run(future: impl Future<Output = T> + Send + 'static) -> io::Result<OnVcpu<T>> {
        let runtime = context::joined_runtime().ok_or_else(context::outside)?;
        let spawned = runtime.domain.spawn(future, Priority::Inherit);
        let handle = spawned.map(JoinHandle::new).map_err(io::Error::other)?;
        Ok(OnVcpu(handle))
    }
}

impl<T: Send + 'static> Future for OnVcpu<T> {
    type Output = Option<T>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        Pin::new(&mut self.0).poll(cx).map(Result::ok)
    }
}

impl<T> Drop for OnVcpu<T> {
    fn drop(&mut self) {
        self.0.cancel();
    }
}
