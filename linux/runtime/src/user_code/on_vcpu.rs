//! What only a vCPU can do, done for a thread that serves none but belongs to the runtime: a coroutine does it, and the
//! thread's future waits for that. So sockets and timers of this runtime go on working in tasks of tokio's, for example those
//! of a web socket that axum spawned with tokio. Costs a spawn and a switch of threads.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use upshift_core::Priority;

use crate::context;
use crate::task::JoinHandle;

/// The coroutine; cancelled when this is dropped. `None`: the runtime has cancelled it.
pub(crate) struct Errand<T>(JoinHandle<T>);

impl<T: Send + 'static> Errand<T> {
    /// # Errors
    /// On a thread that belongs to no runtime, or while that shuts down.
    pub(crate) fn run(future: impl Future<Output = T> + Send + 'static) -> io::Result<Errand<T>> {
        let runtime = context::belongs_to().ok_or_else(context::outside)?;
        let spawned = runtime.domain.spawn(future, Priority::Inherit);
        let handle = spawned.map(JoinHandle::of).map_err(io::Error::other)?;
        Ok(Errand(handle))
    }
}

impl<T: Send + 'static> Future for Errand<T> {
    type Output = Option<T>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        Pin::new(&mut self.0).poll(cx).map(Result::ok)
    }
}

impl<T> Drop for Errand<T> {
    fn drop(&mut self) {
        self.0.cancel();
    }
}
