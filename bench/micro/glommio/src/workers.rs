//! Runs the measurement `conserve` on two executors. A task never leaves its executor, so the
//! second executor cannot help.

use std::future::{Future, pending};
use std::os::fd::{FromRawFd, IntoRawFd};
use std::os::unix::net::UnixStream;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use bench_kit::conserve::{Conserve, conserve};
use futures_lite::AsyncReadExt;
use glommio::timer::sleep;
use glommio::{LocalExecutorBuilder, Placement, spawn_local};

struct Glommio;

/// Marks a future of glommio as `Send`, for interfaces that require it.
struct AssertSend<F>(F);

// SAFETY: `spawn_local` keeps a task on the thread that spawned it, and every future here is
// created, polled and dropped by such a task. So no future ever changes its thread.
unsafe impl<F> Send for AssertSend<F> {}

impl<F: Future> Future for AssertSend<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        // SAFETY: the field is pinned whenever the struct is, because it is never moved out of the
        // struct.
        unsafe { self.map_unchecked_mut(|this| &mut this.0) }.poll(cx)
    }
}

impl Conserve for Glommio {
    fn spawn<F: Future<Output = ()> + Send + 'static>(future: F) {
        drop(spawn_local(future).detach());
    }

    fn spawn_other<F: Future<Output = ()> + Send + 'static>(future: F) {
        drop(spawn_local(future).detach());
    }

    fn sleep(time: Duration) -> impl Future<Output = ()> + Send {
        AssertSend(sleep(time))
    }

    fn read(socket: UnixStream) -> impl Future<Output = ()> + Send {
        AssertSend(async move {
            // SAFETY: the descriptor is an open socket, and nothing else owns it.
            let mut socket = unsafe { glommio::net::UnixStream::from_raw_fd(socket.into_raw_fd()) };
            let _ = pin!(socket.read(&mut [0])).await;
        })
    }
}

pub(crate) fn run() {
    let idle_executor = LocalExecutorBuilder::new(Placement::Unbound).spawn(pending::<()>);
    let _idle_executor = idle_executor.expect("an executor can be built");
    let executor = LocalExecutorBuilder::new(Placement::Unbound).make();
    executor
        .expect("an executor can be built")
        .run(conserve::<Glommio>("glommio"));
}
