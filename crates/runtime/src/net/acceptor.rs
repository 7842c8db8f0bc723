//! Accepting connections, of whatever family.
//!
//! Armed by the first `accept`: one operation that accepts for ever. Several
//! coroutines may accept from one listener; they take turns, most urgent first.

use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::task::Poll;

use upshift_ring::{AcceptMulti, Fd};

use crate::context;
use crate::coop;
use crate::sync::Mutex;

pub(crate) struct Acceptor {
    pub(crate) fd: Fd,
    accepting: Mutex<Option<AcceptMulti>>,
}

impl Acceptor {
    pub(crate) fn new(fd: Fd) -> Acceptor {
        Acceptor {
            fd,
            accepting: Mutex::new(None),
        }
    }

    /// The next connection. Dropping the future loses none.
    pub(crate) async fn accept(&self) -> io::Result<Fd> {
        let mut accepting = self.accepting.lock().await;
        let connection = poll_fn(|cx| {
            if coop::poll_proceed(cx).is_pending() {
                return Poll::Pending;
            }
            loop {
                let armed = match &mut *accepting {
                    Some(armed) => armed,
                    empty => empty.insert(context::try_with(|worker| {
                        worker.accept_multi(self.fd.clone())
                    })?),
                };
                match armed.poll_next(cx) {
                    // The vCPU it was armed on has been released: on to this one's.
                    Poll::Ready(Err(error)) if super::is_cancelled(&error) => *accepting = None,
                    other => return other,
                }
            }
        });
        connection.await.map(|fd: OwnedFd| Fd::new(fd))
    }
}
