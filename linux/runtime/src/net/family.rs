//! The address family of a connected socket, which decides how data is received.

use upshift_ring::{Fd, RecvMulti};

use crate::worker::Worker;

#[derive(Clone, Copy)]
pub(crate) enum Family {
    Tcp,
    Unix,
}

impl Family {
    /// Arms a stream of received buffers at the level of the calling coroutine.
    pub(super) fn receive(self, worker: &Worker, fd: Fd) -> RecvMulti {
        match self {
            Family::Tcp => worker.ring().recv_multi(fd, worker.io_level()),
            Family::Unix => worker.ring().recv_unix(fd, worker.io_level()),
        }
    }
}
