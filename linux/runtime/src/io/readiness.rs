//! Waits until a descriptor is ready, for calls that do not wait by themselves.
//!
//! The call is made first. If it would block, one poll operation on the ring waits until the
//! descriptor is ready, and then the call is retried. Only the poll operation is in flight, and it
//! carries no data. So a dropped future loses nothing, and buffers may be borrowed.
//!
//! A transfer that need not wait costs one system call. A transfer that waits costs two system
//! calls and a ring operation. Nothing is allocated.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use upshift_ring::{Fd, Submission, op};

use crate::coroutine::coop;
use crate::net::{is_cancelled, start};

/// A direction of a descriptor; one caller waits at a time.
#[derive(Debug)]
pub(crate) struct Readiness {
    events: u32,
    operation: Option<Submission<op::PollAdd>>,
}

impl Readiness {
    pub(crate) const fn readable() -> Readiness {
        Readiness {
            events: libc::POLLIN as u32,
            operation: None,
        }
    }

    pub(crate) const fn writable() -> Readiness {
        Readiness {
            events: libc::POLLOUT as u32,
            operation: None,
        }
    }

    /// Waits until the descriptor is ready, or has an error or an end to report.
    pub(crate) fn poll_ready(&mut self, cx: &mut Context<'_>, fd: &Fd) -> Poll<io::Result<()>> {
        loop {
            let operation = match &mut self.operation {
                Some(operation) => operation,
                None => self
                    .operation
                    .insert(start(op::PollAdd::new(fd.clone(), self.events))?),
            };
            let result = ready!(Pin::new(operation).poll(cx));
            self.operation = None;
            match result {
                // The vCPU that armed the operation has been released, so arm the operation on this
                // vCPU.
                Err(error) if is_cancelled(&error) => {}
                result => return Poll::Ready(result.map(drop)),
            }
        }
    }

    /// Retries `attempt` until it returns something other than *would block*.
    pub(crate) fn poll_io<R>(
        &mut self,
        cx: &mut Context<'_>,
        fd: &Fd,
        mut attempt: impl FnMut(&Fd) -> io::Result<R>,
    ) -> Poll<io::Result<R>> {
        ready!(coop::poll_proceed(cx));
        let mut must_wait = self.operation.is_some();
        loop {
            if must_wait {
                ready!(self.poll_ready(cx, fd))?;
            }
            must_wait = false;
            match attempt(fd) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => must_wait = true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return Poll::Ready(result),
            }
        }
    }
}
