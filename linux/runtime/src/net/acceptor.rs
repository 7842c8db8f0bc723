//! Accepts connections on a listening socket of any family.
//!
//! The first `accept` starts a multishot operation, which accepts connections until it is dropped.
//! Several coroutines may accept from one listener; the most urgent one is served first.

use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::task::Poll;

use upshift_ring::AcceptMulti;

use crate::context;
use crate::coroutine::coop;
use crate::io::Descriptor;
use crate::sync::Mutex;

/// A listening socket. The fields are dropped in this order: first the operation, then the
/// descriptor.
pub(crate) struct Acceptor {
    operation: Mutex<Option<AcceptMulti>>,
    pub(crate) fd: Descriptor,
}

impl Acceptor {
    pub(crate) fn new(fd: impl Into<OwnedFd>) -> Acceptor {
        Acceptor {
            operation: Mutex::new(None),
            fd: Descriptor::new(fd),
        }
    }

    /// Accepts the next connection. Dropping the future loses no connection.
    pub(crate) async fn accept(&self) -> io::Result<Descriptor> {
        let mut operation = self.operation.lock().await;
        let connection = poll_fn(|cx| {
            if coop::poll_proceed(cx).is_pending() {
                return Poll::Pending;
            }
            loop {
                let accepting = match &mut *operation {
                    Some(accepting) => accepting,
                    empty => empty.insert(context::try_with(|worker| {
                        worker
                            .ring()
                            .accept_multi(self.fd.clone(), worker.io_level())
                    })?),
                };
                match accepting.poll_next(cx) {
                    // The vCPU that armed the operation has been released, so arm the operation on
                    // this vCPU.
                    Poll::Ready(Err(error)) if super::is_cancelled(&error) => *operation = None,
                    other => return other,
                }
            }
        });
        connection.await.map(|fd: OwnedFd| Descriptor::new(fd))
    }
}
