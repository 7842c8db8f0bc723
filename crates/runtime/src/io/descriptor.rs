//! Descriptors that are closed when they are dropped, not when the kernel has been told of it some time later.
//!
//! An operation keeps its descriptor open until it has ended, also when the future that waited for it has been dropped. So a
//! [`Descriptor`] that is dropped while operations on it are under way first ends those that nothing waits for.
//!
//! | the operation is on | closed |
//! |---|---|
//! | the ring of the vCPU that drops | before `drop` returns; on a preemptible vCPU the thread that made the ring makes the system call |
//! | another ring, or dropped by a thread without a vCPU | with the next turn of the operation's vCPU, which it is notified of; in a long poll, by the vCPU or the thread that stands in |
//!
//! Costs one load where nothing is under way, else a system call, which hands over whatever else waits for the ring.

use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use upshift_ring::Fd;

use super::{AsyncFd, PipeReader, PipeWriter};
use crate::net::{TcpListener, TcpStream, UdpSocket, UnixDatagram, UnixListener, UnixStream};
use crate::preempt::at_once;
use crate::{context, foreign, time};

/// The longest pause between two looks at a descriptor that another vCPU keeps open.
const LONGEST_PAUSE: Duration = Duration::from_millis(5);

/// A user of a descriptor, other than an operation.
#[derive(Debug)]
pub(crate) struct Descriptor(Fd);

impl Descriptor {
    pub(crate) fn new(fd: impl Into<OwnedFd>) -> Descriptor {
        Descriptor(Fd::new(fd))
    }

    /// Another user of it.
    pub(crate) fn share(&self) -> Descriptor {
        Descriptor(self.0.clone())
    }

    /// Ends what nothing waits for; then the descriptor, which others may still use.
    pub(crate) fn into_fd(self) -> Fd {
        settle(&self.0);
        self.0.clone()
    }
}

impl From<Fd> for Descriptor {
    fn from(fd: Fd) -> Descriptor {
        Descriptor(fd)
    }
}

impl Deref for Descriptor {
    type Target = Fd;

    fn deref(&self) -> &Fd {
        &self.0
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Descriptor {
    #[inline]
    fn drop(&mut self) {
        settle(&self.0);
    }
}

/// Ends the operations on a descriptor that nothing waits for, if the calling thread serves the vCPU that has them.
#[inline]
fn settle(fd: &Fd) {
    if fd.is_shared() {
        settle_shared(fd);
    }
}

#[inline(never)]
fn settle_shared(fd: &Fd) {
    // Completions of others may have come along, and with them code of users.
    let foreign = at_once(|| context::with(|worker| worker.settle(fd)));
    if let Some(foreign) = foreign.filter(|foreign| !foreign.is_empty()) {
        context::with_domain(|domain| foreign::run(domain, foreign));
    }
}

/// A socket, a pipe's end or a descriptor, for [`close`].
pub trait Close: sealed::Sealed {}

mod sealed {
    pub trait Sealed {
        /// What was known of it is dropped.
        fn into_fd(self) -> upshift_ring::Fd;
    }
}

use sealed::Sealed;

macro_rules! close {
    ($($type:ty),*) => { $(
        impl Close for $type {}

        impl Sealed for $type {
            fn into_fd(self) -> Fd {
                self.into_descriptor().into_fd()
            }
        }
    )* };
}

close!(
    AsyncFd,
    PipeReader,
    PipeWriter,
    TcpListener,
    TcpStream,
    UdpSocket,
    UnixDatagram,
    UnixListener,
    UnixStream
);

/// Closes a listener, a socket, a connection, an end of a pipe or an [`AsyncFd`], and returns when it is closed, whichever vCPU
/// has operations on it.
///
/// A drop closes, too, and before it returns if the operations on the descriptor, if any, are on the vCPU of the caller; this
/// function also waits for other vCPUs. Duplicates of the descriptor stay open. Dropping the future has
/// the effect of dropping what is to be closed.
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// use upshift::net::TcpListener;
///
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let address = listener.local_addr()?;
/// upshift::io::close(listener).await;
/// let again = TcpListener::bind(address)?;
/// # drop(again);
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
pub async fn close(what: impl Close) {
    let mut fd = what.into_fd();
    let mut pause = Duration::from_micros(100);
    // What operations of another vCPU share is told to end, and says nothing when it has.
    while let Err(shared) = fd.try_into_owned() {
        fd = shared;
        time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
