//! Waiting until a descriptor is ready, for calls that do not wait by themselves.
//!
//! First the call, then, if it would block, one poll operation on the ring, then
//! the call again. Nothing is in flight but the poll, which carries no data: so a
//! future that is dropped loses nothing, and borrowed buffers will do.
//!
//! Costs one system call per transfer that need not wait; two system calls and an
//! operation for one that must. No allocation.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use upshift_ring::{Fd, Submission, op};

use crate::coroutine::coop;
use crate::net::{is_cancelled, start};

/// One direction of a descriptor, waited for by one at a time.
#[derive(Debug)]
pub(crate) struct Readiness {
    events: u32,
    armed: Option<Submission<op::PollAdd>>,
}

impl Readiness {
    /// For reading.
    pub(crate) const fn readable() -> Readiness {
        Readiness {
            events: libc::POLLIN as u32,
            armed: None,
        }
    }

    /// For writing.
    pub(crate) const fn writable() -> Readiness {
        Readiness {
            events: libc::POLLOUT as u32,
            armed: None,
        }
    }

    /// Waits until the descriptor is ready, or has an error or an end to report.
    pub(crate) fn poll_ready(&mut self, cx: &mut Context<'_>, fd: &Fd) -> Poll<io::Result<()>> {
        loop {
            let armed = match &mut self.armed {
                Some(armed) => armed,
                None => self
                    .armed
                    .insert(start(op::PollAdd::new(fd.clone(), self.events))?),
            };
            let result = ready!(Pin::new(armed).poll(cx));
            self.armed = None;
            match result {
                // The vCPU it was armed on has been released: on to this one's.
                Err(error) if is_cancelled(&error) => {}
                result => return Poll::Ready(result.map(drop)),
            }
        }
    }

    /// Attempts until the answer is something else than *would block*.
    pub(crate) fn poll_io<R>(
        &mut self,
        cx: &mut Context<'_>,
        fd: &Fd,
        mut attempt: impl FnMut(&Fd) -> io::Result<R>,
    ) -> Poll<io::Result<R>> {
        ready!(coop::poll_proceed(cx));
        let mut wait = self.armed.is_some();
        loop {
            if wait {
                ready!(self.poll_ready(cx, fd))?;
            }
            wait = false;
            match attempt(fd) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => wait = true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return Poll::Ready(result),
            }
        }
    }
}
