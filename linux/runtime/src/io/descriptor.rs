//! Descriptors that are closed when they are dropped, even with operations in flight.
//!
//! An operation keeps its descriptor open until the operation has ended, even after its future has
//! been dropped. So the drop of a [`Descriptor`] first ends the operations whose futures have been
//! dropped.
//!
//! | vCPU whose ring has the operations | time at which the descriptor is closed |
//! |---|---|
//! | the vCPU that the dropping thread serves | before `drop` returns |
//! | any other vCPU | the next pass of the loop of the vCPU that has the operations |
//!
//! On a vCPU with preemption, the thread that created the ring makes the system call on behalf of
//! the dropping thread. If the ring's thread does not answer in time, the next pass of the vCPU's
//! loop closes the descriptor.
//!
//! If a long poll delays that next pass, the descriptor is closed by an idle vCPU that stands in
//! for the busy one, or by the thread that takes over the vCPU when the poll is suspended. Without
//! either, the descriptor is closed when the poll ends.
//!
//! A drop costs one load if no operation is in flight, else one system call, which also submits all
//! other pending entries of the ring.

use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use upshift_ring::Fd;

use super::{AsyncFd, PipeReader, PipeWriter};
use crate::net::{TcpListener, TcpStream, UdpSocket, UnixDatagram, UnixListener, UnixStream};
use crate::preempt::without_suspension;
use crate::user_code::deferred;
use crate::{context, time};

/// Longest pause between two checks of a descriptor that another vCPU keeps open.
const LONGEST_PAUSE: Duration = Duration::from_millis(5);

/// One of the handles to a descriptor. Operations in flight hold the descriptor too, but as an
/// [`Fd`].
#[derive(Debug)]
pub(crate) struct Descriptor(Fd);

impl Descriptor {
    pub(crate) fn new(fd: impl Into<OwnedFd>) -> Descriptor {
        Descriptor(Fd::new(fd))
    }

    pub(crate) fn share(&self) -> Descriptor {
        Descriptor(self.0.clone())
    }

    /// Ends operations whose futures have been dropped, as a drop does, and returns the descriptor.
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

/// Ends those operations on a descriptor whose futures have been dropped, if the calling thread
/// serves the vCPU whose ring has them.
#[inline]
fn settle(fd: &Fd) {
    if fd.is_shared() {
        settle_shared(fd);
    }
}

#[inline(never)]
fn settle_shared(fd: &Fd) {
    // `Worker::settle` may reap completions of other descriptors too, and their wakers may be user
    // code.
    let foreign_wakers = without_suspension(|| context::with(|worker| worker.settle(fd)));
    if let Some(wakers) = foreign_wakers.filter(|wakers| !wakers.is_empty()) {
        context::with_domain(|domain| deferred::run(domain, wakers));
    }
}

/// A type that [`close`] takes: a socket, an end of a pipe or a descriptor.
pub trait Close: sealed::Sealed {}

mod sealed {
    pub trait Sealed {
        /// Drops everything but the descriptor.
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

/// Closes a listener, a socket, a connection, an end of a pipe or an [`AsyncFd`], and waits until
/// the descriptor is closed, even if another vCPU has operations on it.
///
/// A drop waits for the operations of its own vCPU only ([closing](crate::net#closing)). Duplicates
/// of the descriptor stay open.
///
/// # Cancellation safety
/// If the future is dropped, the descriptor is still closed, but nothing waits for this.
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
pub async fn close(closable: impl Close) {
    let mut fd = closable.into_fd();
    let mut pause = Duration::from_micros(100);
    // The drop of their futures has told the operations of other vCPUs to end. Nothing reports when
    // they have ended, so this loop checks from time to time.
    while let Err(shared) = fd.try_into_owned() {
        fd = shared;
        time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
