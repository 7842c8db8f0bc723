//! The coroutine of a call: polls it to its end, and hands the answer on.
//!
//! Written out instead of an `async` function, because that would keep the call three
//! times, and the control block is moved to its place as it is.

use alloc::sync::Arc;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

use os_abi::Error;
use pin_project_lite::pin_project;

use super::{Answer, word};
use crate::executor;
use crate::process::{Flight, Process};

/// Recipient of the answer.
#[derive(Clone, Copy)]
pub(super) enum Whom {
    /// The thread of this line, which waits for the answer.
    Thread { line: usize },
    /// The completion ring: token and coroutine, at the level that the call has then.
    Ring { entry: [u64; 2] },
}

pin_project! {
    // A call, and the mark that it is in flight, dropped in this order.
    struct InFlight<F> {
        // Until it is over.
        #[pin]
        call: Option<F>,
        flight: Option<Flight>,
        number: usize,
        process: Arc<Process>,
        whom: Whom,
    }
}

/// The call of this number in its process, from now on in flight.
pub(super) fn new<F>(
    call: F,
    number: usize,
    process: Arc<Process>,
    whom: Whom,
) -> impl Future<Output = ()> + Send + 'static
where
    F: Future<Output = Answer> + Send + 'static,
{
    InFlight {
        call: Some(call),
        flight: Some(Flight::new(process.clone())),
        number,
        process,
        whom,
    }
}

impl<F: Future<Output = Answer>> Future for InFlight<F> {
    type Output = ();

    /// Polls the call. A cancelled call is dropped in the middle of its waiting, with its
    /// coroutine, and has taken nothing.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        let process = &*this.process;
        let cancelled =
            matches!(this.whom, Whom::Ring { .. }) && process.is_cancelled(*this.number);
        let answer = if cancelled {
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
        // Drops the call's resources before its end can be seen.
        this.call.set(None);
        process.end_call(*this.number);
        drop(this.flight.take());
        match *this.whom {
            Whom::Thread { line } => process.resume(line, word(answer)),
            Whom::Ring {
                entry: [token, coroutine],
            } => {
                let entry = [token, coroutine, word(answer) as u64];
                process.complete(entry, executor::level());
            }
        }
        Poll::Ready(())
    }
}
