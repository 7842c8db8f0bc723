//! Work that only a vCPU can do, on behalf of a thread that serves no vCPU but belongs to the
//! runtime: a coroutine does the work, and the thread's future waits for it. So sockets and timers
//! of this runtime work in tokio tasks, too, for example in the tasks of a web socket that axum
//! spawned with tokio. Costs a spawn and a switch of threads.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use upshift_core::Priority;

use crate::context;
use crate::task::JoinHandle;

/// Future of the coroutine's result, or `None` if the runtime has cancelled the coroutine. Dropping
/// the future cancels the coroutine.
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
