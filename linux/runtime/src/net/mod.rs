//! TCP, UDP and Unix sockets over the *ring*, that is, the vCPU's io_uring or its substitute by
//! epoll.
//!
//! Buffers are passed by value and returned (`(result, buffer)`), because the kernel owns them
//! while an operation is in flight, even if its future is dropped. The cheapest way to receive is
//! [`TcpStream::recv`], which arms the socket once and hands out the vCPU's own buffers as data
//! arrives; it holds no memory for idle connections.
//!
//! The C library's resolver looks up host names on a thread for blocking calls; addresses are not
//! looked up.
//!
//! # Closing
//!
//! A listener, a socket or a connection is closed when its last part is dropped. Operations of
//! dropped futures do not keep it open; duplicates of its descriptor stay open and usable.
//!
//! * On the vCPU whose ring has the operations, the drop cancels them, with one system call, and
//!   closes the descriptor before it returns. Without operations in flight there is no additional
//!   system call.
//! * If the ring of another vCPU has the operations, that vCPU closes the descriptor in the next
//!   pass of its loop. The poll that this vCPU runs need not end first if another vCPU is idle, or
//!   with preemption.
//!
//! [`close`](crate::io::close) waits until the descriptor is closed.
//!
//! # Cancellation safety
//!
//! `recv`, `accept` and the calls of datagram sockets lose nothing when their future is dropped. A
//! dropped `read` may lose bytes, and a dropped write may have sent an unknown part of its bytes.

mod acceptor;
mod connection;
mod datagram;
pub(crate) mod family;
mod listener;
mod options;
pub(crate) mod reader;
mod resolve;
mod socket;
mod stream;
mod udp;
pub mod unix;
mod writer;

pub use listener::TcpListener;
pub use options::SendQueue;
pub use resolve::{LookupError, ToSocketAddrs, lookup_host};
pub use socket::TcpSocket;
pub use stream::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, TcpStream, WriteHalf};
pub use udp::{Datagram, Datagrams, UdpSocket};
pub use unix::{UnixDatagram, UnixListener, UnixStream};

use std::io;
use std::os::fd::AsRawFd;

use upshift_ring::{Fd, IoBuf, Operation, Submission};

use crate::context;
use crate::preempt::without_suspension;

/// Starts an operation on the ring of the calling vCPU, at the level of the calling coroutine.
#[inline]
pub(crate) fn start<T: Operation>(operation: T) -> io::Result<Submission<T>> {
    context::try_with(|worker| worker.start(operation))
}

/// Sends the bytes that the socket takes at once, without the ring, if the calling thread did not
/// create the ring. The way through the ring takes long while the thread that created it is
/// suspended. Returns `None` if the caller must use the ring, which also reports errors.
#[inline]
pub(crate) fn send_without_ring<B: IoBuf>(fd: &Fd, buffer: &B) -> Option<usize> {
    context::with(|worker| !worker.ring().is_on_issuer_thread())?.then_some(())?;
    // SAFETY: the buffer is valid for reads of its length.
    let sent = without_suspension(|| unsafe {
        libc::send(
            fd.as_raw_fd(),
            buffer.io_ptr().cast(),
            buffer.io_len(),
            libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
        )
    });
    usize::try_from(sent).ok().filter(|sent| *sent != 0)
}

/// Returns true if the operation ended because the vCPU whose ring had it was released. Nothing
/// else cancels an operation whose future lives.
pub(crate) fn is_cancelled(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ECANCELED)
}

/// Starts an operation that carries a buffer, and waits for it. Returns the buffer with an error if
/// there is no ring.
macro_rules! transfer {
    ($operation:expr, $buffer:ident) => {
        if $crate::context::with(|_| ()).is_none() {
            (
                Err($crate::context::try_with(|_| ()).expect_err("there is no worker")),
                $buffer,
            )
        } else {
            match $crate::net::start($operation) {
                Ok(submission) => submission.await,
                Err(_) => unreachable!(
                    "there is a worker, and a coroutine keeps its thread within a poll"
                ),
            }
        }
    };
}
pub(crate) use transfer;
