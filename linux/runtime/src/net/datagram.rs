//! Sends and receives datagrams on sockets of any family.
//!
//! Buffers may be borrowed, a dropped future loses no datagram, and any number of coroutines may
//! share a socket by reference. This works because the system call that transfers the data never
//! waits. If it would block, a poll operation on the ring waits until the socket is ready, and then
//! the call is retried.

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::{SockAddr, SockRef};
use upshift_ring::{Datagram, DatagramMulti, Fd};

use crate::context;
use crate::coroutine::coop;
use crate::io::{Descriptor, Readiness};
use crate::preempt::without_suspension;
use crate::time;

/// Longest pause between two attempts to send into another socket's queue.
const LONGEST_PAUSE: Duration = Duration::from_millis(5);

/// Flags of calls that neither wait nor raise `SIGPIPE`.
const NO_WAIT: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

pub(super) async fn send(fd: &Fd, bytes: &[u8]) -> io::Result<usize> {
    let mut room = Readiness::writable();
    poll_fn(|cx| {
        room.poll_io(cx, fd, |fd| {
            without_suspension(|| SockRef::from(fd).send_with_flags(bytes, NO_WAIT))
        })
    })
    .await
}

pub(super) async fn send_to(fd: &Fd, bytes: &[u8], to: &SockAddr) -> io::Result<usize> {
    let mut room = Readiness::writable();
    poll_fn(|cx| {
        room.poll_io(cx, fd, |fd| {
            without_suspension(|| SockRef::from(fd).send_to_with_flags(bytes, to, NO_WAIT))
        })
    })
    .await
}

/// Sends like [`send_to`], for a socket family that loses no messages, where a send fails while the
/// receiver's queue is full. The send is then retried after a pause, because no call waits for room
/// in the queue of a receiver to which the socket is not connected: neither `poll` nor a send on
/// the ring in blocking mode.
pub(super) async fn send_to_queue(fd: &Fd, bytes: &[u8], to: &SockAddr) -> io::Result<usize> {
    let mut pause = Duration::from_micros(100);
    loop {
        match without_suspension(|| SockRef::from(fd).send_to_with_flags(bytes, to, NO_WAIT)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Receives into initialised memory. `flags` are added to [`NO_WAIT`].
pub(super) async fn recv(fd: &Fd, buffer: &mut [u8], flags: i32) -> io::Result<usize> {
    let mut data = Readiness::readable();
    poll_fn(|cx| {
        data.poll_io(cx, fd, |fd| {
            without_suspension(|| {
                SockRef::from(fd).recv_with_flags(as_uninit(buffer), NO_WAIT | flags)
            })
        })
    })
    .await
}

pub(super) async fn recv_from(
    fd: &Fd,
    buffer: &mut [u8],
    flags: i32,
) -> io::Result<(usize, SockAddr)> {
    let mut data = Readiness::readable();
    poll_fn(|cx| {
        data.poll_io(cx, fd, |fd| {
            without_suspension(|| {
                SockRef::from(fd).recv_from_with_flags(as_uninit(buffer), NO_WAIT | flags)
            })
        })
    })
    .await
}

/// Converts the buffer of a call that writes initialised bytes only.
fn as_uninit(buffer: &mut [u8]) -> &mut [MaybeUninit<u8>] {
    // SAFETY: the result has the memory and the lifetime of `buffer`; only the kernel writes
    // through it, and writes initialised bytes.
    unsafe { &mut *(std::ptr::from_mut(buffer) as *mut [MaybeUninit<u8>]) }
}

/// An operation that receives until it is dropped, armed by the first call. The fields are
/// dropped in this order: first the operation, then the descriptor.
pub(super) struct DatagramReceiver {
    operation: Option<DatagramMulti>,
    fd: Descriptor,
}

impl DatagramReceiver {
    pub(super) fn new(fd: Descriptor) -> DatagramReceiver {
        DatagramReceiver {
            operation: None,
            fd,
        }
    }

    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Datagram>> {
        ready!(coop::poll_proceed(cx));
        loop {
            let operation = match &mut self.operation {
                Some(operation) => operation,
                None => self.operation.insert(context::try_with(|worker| {
                    worker
                        .ring()
                        .datagram_multi(self.fd.clone(), worker.io_level())
                })?),
            };
            match ready!(operation.poll_next(cx)) {
                Ok(Some(datagram)) => return Poll::Ready(Ok(datagram)),
                // The operation has ended with an error, which has been reported, so arm a new
                // operation.
                Ok(None) => self.operation = None,
                // The vCPU that armed the operation has been released, so arm the operation on this
                // vCPU.
                Err(error) if super::is_cancelled(&error) => self.operation = None,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}
