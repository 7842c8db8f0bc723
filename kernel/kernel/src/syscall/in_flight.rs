//! Implements the coroutine of a system call: polls the call until it ends, and delivers the
//! answer.
//!
//! The future is written by hand instead of as an `async` function, which would store the call
//! three times in a control block that is moved once.

use alloc::sync::Arc;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

use os_abi::Error;
use pin_project_lite::pin_project;

use super::{Answer, word};
use crate::executor;
use crate::process::{CallGuard, Process};

#[derive(Clone, Copy)]
pub(super) enum Recipient {
    /// The thread of this line, which waits for the answer.
    Thread { line: usize },
    /// The completion ring: token and coroutine. The level is that of the call when it ends.
    Ring { entry: [u64; 2] },
}

pin_project! {
    // A call, and the guard that counts it as in flight, dropped in this order.
    struct InFlight<F> {
        // `None` once the call has finished.
        #[pin]
        call: Option<F>,
        guard: Option<CallGuard>,
        number: usize,
        process: Arc<Process>,
        recipient: Recipient,
    }
}

/// Returns the future of a call, which counts as in flight from now on.
pub(super) fn new<F>(
    call: F,
    number: usize,
    process: Arc<Process>,
    recipient: Recipient,
) -> impl Future<Output = ()> + Send + 'static
where
    F: Future<Output = Answer> + Send + 'static,
{
    InFlight {
        call: Some(call),
        guard: Some(CallGuard::new(process.clone())),
        number,
        process,
        recipient,
    }
}

impl<F: Future<Output = Answer>> Future for InFlight<F> {
    type Output = ();

    /// Polls the call. A cancelled call is dropped while it waits, with its coroutine, and has
    /// consumed nothing.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        let process = &*this.process;
        let is_cancelled =
            matches!(this.recipient, Recipient::Ring { .. }) && process.is_cancelled(*this.number);
        let answer = if is_cancelled {
            Err(Error::Cancelled)
        } else {
            match this.call.as_mut().as_pin_mut() {
                Some(call) => match call.poll(cx) {
                    Poll::Ready(answer) => answer,
                    Poll::Pending => return Poll::Pending,
                },
                None => return Poll::Ready(()),
            }
        };
        // Drop the resources of the call before its end is visible.
        this.call.set(None);
        process.end_call(*this.number);
        drop(this.guard.take());
        match *this.recipient {
            Recipient::Thread { line } => process.resume(line, word(answer)),
            Recipient::Ring {
                entry: [token, coroutine],
            } => {
                let entry = [token, coroutine, word(answer) as u64];
                process.complete(entry, executor::level());
            }
        }
        Poll::Ready(())
    }
}
