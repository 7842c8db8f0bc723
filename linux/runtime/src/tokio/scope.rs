//! A tokio runtime within the poll of a coroutine, so that tasks of `tokio::spawn` have a level.
//!
//! A scope is a `current_thread` runtime whose `block_on` runs in the poll: the tasks that the
//! future spawns are polled there, on the vCPU, at the coroutine's level. With preemption such a
//! poll is suspended like any other long one, and while it waits for tokio's driver its thread
//! sleeps: it is *blocked*, and the vCPU goes on with another thread.
//!
//! A *turn* is one call of `block_on`. It ends with the future, or when the future itself has been
//! polled and the coroutine should give way ([`yield_if_needed`]); the coroutine then yields, and
//! is cancelled there if that was asked for. Between two polls of tasks nothing can end a turn.
//!
//! Leaf futures of this crate ask whether to give way at each completion. Within a turn the answer
//! goes to tokio, which polls the same task again at once, so they do not give way there
//! ([`budget::nest`]).
//!
//! Costs: an epoll set and an eventfd for each scope, and entering tokio's context for each turn.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::task::Poll;

use tokio::runtime::{self, Runtime};

use crate::coroutine::budget;
use crate::coroutine::coop::yield_if_needed;

/// Runs a future with a tokio runtime of its own in the poll of the calling coroutine, so that
/// tasks that the future spawns with `tokio::spawn` run at the coroutine's level.
///
/// For engines that spawn their computing through tokio. All tasks of a scope share the vCPU of
/// its coroutine; scopes of several coroutines share the vCPUs. Tasks that are left when the future
/// ends are dropped, as by a tokio runtime that ends. Sockets and timers of tokio that are made in
/// the scope end with it: do not keep them in a pool that outlives it.
///
/// The runtime needs [preemption](crate::Builder::preemption), or at least
/// [blocking tolerance](crate::Builder::blocking_tolerant): without them everything else on the
/// vCPU waits while the future or one of its tasks computes, and while all of them wait.
///
/// The coroutine is cancelled only when the future itself is polled, not by a cancellation while
/// tasks compute: stop those with a token of their own.
///
/// ```
/// use upshift::task::tokio_scope;
/// use upshift::{Level, Preemption, Runtime};
///
/// let runtime = Runtime::builder().preemption(Preemption::Preferred).build()?;
/// let level = runtime.block_on(async {
///     let query = tokio_scope(async {
///         let task = tokio::spawn(async { upshift::current_level() });
///         task.await.expect("the task does not panic")
///     });
///     upshift::spawn(query, Level::at::<8>()).await
/// })??;
/// assert_eq!(level, Some(Level::at::<8>()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// If tokio cannot start a runtime, for want of descriptors.
///
/// # Panics
/// In a task of tokio's, and in a scope: `block_on` is not allowed there. A panic of the future
/// goes on to the caller.
pub async fn tokio_scope<F: Future>(future: F) -> io::Result<F::Output> {
    let runtime = Scope::new()?;
    let mut future = pin!(future);
    loop {
        let turn = runtime.turn(poll_fn(|cx| {
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(Ok(output));
            }
            let yields = yield_if_needed();
            if yields.is_needed() {
                Poll::Ready(Err(yields))
            } else {
                Poll::Pending
            }
        }));
        match turn {
            Ok(output) => return Ok(output),
            Err(yields) => yields.await,
        }
    }
}

/// The runtime of a scope, which is not waited for at its end.
struct Scope(Option<Runtime>);

impl Scope {
    fn new() -> io::Result<Scope> {
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .thread_name("tokio-scope")
            .build()?;
        Ok(Scope(Some(runtime)))
    }

    fn turn<T>(&self, future: impl Future<Output = T>) -> T {
        let runtime = self.0.as_ref().expect("taken in `drop` only");
        let _nested = budget::nest();
        runtime.block_on(future)
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            // Drops the tasks here; functions of `spawn_blocking` end on their threads.
            runtime.shutdown_background();
        }
    }
}
