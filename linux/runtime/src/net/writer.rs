//! Sends on a connected socket.
//!
//! Owned buffers go through the ring (the vCPU's io_uring or its substitute). They are submitted
//! together with the vCPU's other operations, and kept until the kernel no longer uses them.
//! Borrowed buffers ([`Writer`]) are passed to the kernel at once, by a `send` that does not wait;
//! so none of their bytes are ever in flight. The order of both kinds of buffers is kept as long as
//! each write waits for the preceding write.

use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::task::{Context, Poll};

use socket2::SockRef;
use upshift_ring::{Fd, IoBuf, op};

use super::transfer;
use crate::io::{Descriptor, Readiness, Sink};
use crate::preempt::without_suspension;

/// Flags of a `send` that does not wait, and fails without a signal if the peer is gone.
const NO_WAIT: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

/// A sender of borrowed bytes. The fields are dropped in this order: first the operation, then the
/// descriptor.
pub(crate) struct Writer {
    room: Readiness,
    pub(crate) fd: Descriptor,
}

impl Writer {
    pub(crate) fn new(fd: Descriptor) -> Writer {
        Writer {
            room: Readiness::writable(),
            fd,
        }
    }

    pub(crate) fn shutdown(&self) -> io::Result<()> {
        SockRef::from(&self.fd).shutdown(Shutdown::Write)
    }
}

impl Sink for Writer {
    const VECTORED: bool = true;

    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.room.poll_io(cx, &self.fd, |fd| {
            without_suspension(|| SockRef::from(fd).send_with_flags(bytes, NO_WAIT))
        })
    }

    fn poll_write_vectored(
        &mut self,
        cx: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // The kernel takes at most 1024 buffers per call; a write may be short.
        let buffers = &buffers[..buffers.len().min(1024)];
        self.room.poll_io(cx, &self.fd, |fd| {
            without_suspension(|| SockRef::from(fd).send_vectored_with_flags(buffers, NO_WAIT))
        })
    }

    fn poll_flush(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(match self.shutdown() {
            // The peer has closed the connection.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            result => result,
        })
    }
}

pub(crate) async fn write<B: IoBuf>(fd: &Fd, mut buffer: B) -> (io::Result<usize>, B) {
    loop {
        let result;
        (result, buffer) = transfer!(op::Send::new(fd.clone(), buffer), buffer);
        match result {
            Err(error) if super::is_cancelled(&error) => {}
            result => return (result, buffer),
        }
    }
}

pub(crate) async fn write_all<B: IoBuf>(fd: &Fd, buffer: B) -> (io::Result<()>, B) {
    let length = buffer.io_len();
    if length == 0 {
        return (Ok(()), buffer);
    }
    if let Some(sent) = super::send_without_ring(fd, &buffer) {
        return match sent {
            sent if sent == length => (Ok(()), buffer),
            sent => Box::pin(write_rest(fd, buffer, sent)).await,
        };
    }
    let (result, buffer) = transfer!(op::Send::new(fd.clone(), buffer).all(), buffer);
    match result {
        Ok(sent) if sent == length => (Ok(()), buffer),
        Ok(sent) => Box::pin(write_rest(fd, buffer, sent)).await,
        Err(error) if super::is_cancelled(&error) => Box::pin(write_rest(fd, buffer, 0)).await,
        Err(error) => (Err(error), buffer),
    }
}

/// Continues after a short write. A write is short if the connection has met an error, which the
/// next write reports, if the vCPU that was writing has been released, or if the buffer is larger
/// than the kernel takes at once. [`write_all`] boxes the future, because its state would otherwise
/// take room in every write.
#[cold]
async fn write_rest<B: IoBuf>(fd: &Fd, buffer: B, mut sent: usize) -> (io::Result<()>, B) {
    let length = buffer.io_len();
    let mut rest = buffer.slice(sent..length);
    while sent < length {
        let result;
        (result, rest) = transfer!(op::Send::new(fd.clone(), rest).all(), rest);
        match result {
            Ok(0) => return (Err(io::ErrorKind::WriteZero.into()), rest.into_inner()),
            Ok(count) => sent += count,
            Err(error) if super::is_cancelled(&error) => {}
            Err(error) => return (Err(error), rest.into_inner()),
        }
        rest = rest.into_inner().slice(sent..length);
    }
    (Ok(()), rest.into_inner())
}

pub(crate) async fn write_vectored<B: IoBuf>(
    fd: &Fd,
    mut buffers: Vec<B>,
) -> (io::Result<usize>, Vec<B>) {
    loop {
        let result;
        (result, buffers) = transfer!(op::SendVectored::new(fd.clone(), buffers), buffers);
        match result {
            Err(error) if super::is_cancelled(&error) => {}
            result => return (result, buffers),
        }
    }
}

pub(crate) async fn write_all_vectored<B: IoBuf>(
    fd: &Fd,
    buffers: Vec<B>,
) -> (io::Result<()>, Vec<B>) {
    let length: usize = buffers.iter().map(IoBuf::io_len).sum();
    if length == 0 {
        return (Ok(()), buffers);
    }
    let (result, buffers) = transfer!(op::SendVectored::new(fd.clone(), buffers).all(), buffers);
    let mut sent = match result {
        Ok(sent) if sent == length => return (Ok(()), buffers),
        Ok(sent) => sent,
        Err(error) if super::is_cancelled(&error) => 0,
        Err(error) => return (Err(error), buffers),
    };
    // The unsent bytes are written buffer by buffer.
    let mut written_buffers = Vec::with_capacity(buffers.len());
    let mut first_error = None;
    for buffer in buffers {
        let skip = sent.min(buffer.io_len());
        sent -= skip;
        if first_error.is_some() {
            written_buffers.push(buffer);
            continue;
        }
        let (result, buffer) = write_rest(fd, buffer, skip).await;
        first_error = result.err();
        written_buffers.push(buffer);
    }
    (first_error.map_or(Ok(()), Err), written_buffers)
}
