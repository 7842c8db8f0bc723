//! Multishot accept: one operation, many connections.

use crate::consumer::Consumer;
use crate::shared::Shared;
use crate::slot::Slot;
use std::future::poll_fn;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::task::{Context, Poll};
use std::{fmt, io};

/// A stream of the connections that arrive at a listening socket; made by
/// [`Ring::accept_multi`](crate::Ring::accept_multi).
///
/// Errors (EMFILE, ENFILE, ENOBUFS, …) are reported once each and stop the stream; the next poll
/// starts it again. The stream never ends by itself. After
/// [`Ring::shutdown`](crate::Ring::shutdown) each poll reports ECANCELED.
///
/// The number of unread connections is bounded by
/// [`Config::accept_window`](crate::Config::accept_window) plus the connections that the kernel
/// accepts before it stops; further connections wait in the socket's own queue. Dropping the stream
/// closes unread connections.
///
/// The stream may be polled and dropped on any thread. Descriptors are close-on-exec and blocking.
pub struct AcceptMulti {
    state: Result<Consumer, i32>,
    /// Set while the stream is stopped by an error that has been reported.
    stopped: bool,
}

impl AcceptMulti {
    pub(crate) fn new(started: Result<&Slot, i32>, shared: NonNull<Shared>) -> Self {
        Self {
            state: started.map(|slot| Consumer::new(slot, shared)),
            stopped: false,
        }
    }

    /// Returns the next connection, or registers the waker of `cx` if there is none yet.
    ///
    /// # Errors
    ///
    /// The errno of `accept4`; ECANCELED after the ring's shutdown.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<OwnedFd>> {
        Poll::Ready(match self.poll_raw(cx) {
            Poll::Pending => return Poll::Pending,
            // SAFETY: the kernel made this descriptor for this stream and no other code knows it,
            // so the `OwnedFd` is its only owner.
            Poll::Ready(Ok(fd)) => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
            Poll::Ready(Err(errno)) => Err(io::Error::from_raw_os_error(errno)),
        })
    }

    fn poll_raw(&mut self, cx: &mut Context<'_>) -> Poll<Result<i32, i32>> {
        let consumer = match &mut self.state {
            Ok(consumer) => consumer,
            Err(errno) => return Poll::Ready(Err(*errno)),
        };
        if self.stopped {
            if let Err(errno) = consumer.request() {
                return Poll::Ready(Err(errno));
            }
            self.stopped = false;
        }
        let event = match consumer.poll_event(cx) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Err(errno)) => return Poll::Ready(Err(errno)),
            Poll::Ready(Ok(event)) => event,
        };
        // SAFETY: the event belongs to this consumer until `free`, so the pointer is valid here.
        let result = unsafe { event.as_ref() }.result.get();
        consumer.free(event);
        Poll::Ready(if result < 0 {
            self.stopped = true;
            Err(-result)
        } else {
            Ok(result)
        })
    }

    /// Waits for the next connection.
    ///
    /// # Errors
    ///
    /// Those of [`poll_next`](Self::poll_next).
    ///
    /// # Cancellation safety
    ///
    /// This method is cancellation safe, because a connection is either returned or stays in the
    /// stream.
    pub async fn next(&mut self) -> io::Result<OwnedFd> {
        poll_fn(|cx| self.poll_next(cx)).await
    }
}

impl fmt::Debug for AcceptMulti {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcceptMulti")
            .field("stopped", &self.stopped)
            .finish_non_exhaustive()
    }
}
