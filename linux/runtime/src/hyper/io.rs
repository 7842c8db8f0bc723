//! A TCP connection for hyper.
//!
//! One multishot receive reads for the life of the connection. A read copies from a buffer of the
//! ring (the vCPU's io_uring or its substitute) into hyper's buffer, and gives the ring's buffer
//! back as soon as all of it has been copied.
//!
//! A write borrows hyper's bytes for the duration of the call, while the ring has to own the bytes
//! that it sends:
//!
//! ```text
//!            ≤ MAX_COPIED bytes: gather into the connection's buffer, start a send
//!   Idle ───────────────────────────────────────────────────────────────▶ Sending
//!    ▲ │                                                     completion     │
//!    │ │ more: sendmsg(2) without waiting; the socket is full               │
//!    │ └──────────────────────────────▶ Full ── writable ──┐                │
//!    └─────────────────────────────────────────────────────┴────────────────┘
//! ```
//!
//! A `sendmsg` copies its bytes, the socket may take megabytes, and nothing interrupts the copy. So
//! each call gets [`MAX_MESSAGE`] bytes at most, and the poll checks before each call whether to
//! yield.
//!
//! [`Io::poll_send_file`] sends cached bytes of a file without a copy, at most [`MAX_FILE_PIECE`]
//! bytes between two such checks. The first of these bytes share a packet with the bytes of
//! [`Io::poll_send_before`].
//!
//! A write is accepted once the preceding write has completed, so at most one buffer of
//! [`Io::MAX_COPIED`] bytes is in flight. When its send fails, all later writes, flushes and
//! shutdowns report the error. A flush does not wait for the send, but a shutdown does. A drop
//! spawns a coroutine that waits for the send, until the peer has taken nothing for [`LINGER`],
//! because a peer that reads nothing must not keep the socket of a dropped connection open.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::mem;
use std::net::Shutdown;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use ::hyper::rt::{Read, ReadBufCursor, Write};
use upshift_core::Priority;
use upshift_ring::{Fd, Submission, op};

use super::{reply, send_file};
use crate::context;
use crate::coroutine::coop;
use crate::io::{Sink, Source, impl_read, impl_write};
use crate::net::{SendQueue, TcpStream, UnixStream, is_cancelled, start};
use crate::preempt::without_suspension;
use crate::time;
use crate::user_code::on_vcpu::OnVcpu;

/// Largest number of bytes of a file that are sent at once.
const MAX_FILE_PIECE: usize = 64 << 10;
/// Largest number of bytes of a `sendmsg`: a piece of a file, and the head before the piece.
const MAX_MESSAGE: usize = MAX_FILE_PIECE + (4 << 10);
/// Time without progress of the peer after which a dropped connection is closed.
const LINGER: Duration = Duration::from_secs(2);

/// A [`TcpStream`] or [`UnixStream`] with hyper's I/O traits.
pub struct Io {
    stream: TcpStream,
    /// Bytes that were received by [`Io::peek`] and not read.
    peeked: Vec<u8>,
    state: Writing,
    /// Buffer of the previous send, for the next send.
    spare_buffer: Vec<u8>,
    /// Beginning of the poll in which the connection was last read.
    last_read_poll: u64,
    max_read: usize,
    received: u64,
    /// True once the socket has been prepared for sending files.
    can_send_files: bool,
}

enum Writing {
    Idle,
    Sending(Submission<op::Send<Vec<u8>>>),
    Full(Submission<op::PollAdd>),
    /// The write was polled outside of the vCPUs, on a thread of tokio; a coroutine waits for the
    /// socket.
    FullOutside(OnVcpu<io::Result<u32>>),
    /// A send has failed, so accepted bytes are lost and nothing may be sent after them.
    Broken(io::ErrorKind),
}

impl Io {
    /// Largest number of bytes of a write that is copied into a buffer of the ring; a longer write
    /// goes to the socket directly.
    pub const MAX_COPIED: usize = 8192;

    /// Takes over a connection.
    #[must_use]
    pub fn new(stream: TcpStream) -> Io {
        Io {
            stream,
            peeked: Vec::new(),
            state: Writing::Idle,
            spare_buffer: Vec::new(),
            last_read_poll: 0,
            max_read: usize::MAX,
            received: 0,
            can_send_files: false,
        }
    }

    /// Returns ready if more may be read in this poll. One read is always allowed; further reads
    /// are allowed until more urgent work waits or the poll has used its share of time
    /// ([`poll_piece`](crate::task::poll_piece)). hyper's reads call it themselves;
    /// [`poll_fill`](Io::poll_fill) does not.
    #[inline]
    pub fn poll_next_read(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        coop::poll_next_piece(cx, &mut self.last_read_poll)
    }

    pub(super) fn set_max_read(&mut self, bytes: usize) {
        self.max_read = bytes;
    }

    /// Returns the connection, for its addresses and options. A Unix socket has neither, so calls
    /// for them return errors.
    #[must_use]
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Waits until `count` bytes have arrived or the peer has ended, and returns all bytes that
    /// have arrived, without consuming them. Also returns when `is_enough` returns true for these
    /// bytes.
    ///
    /// # Errors
    /// `ConnectionReset` and the like; also fails outside a runtime.
    pub async fn peek(
        &mut self,
        count: usize,
        is_enough: impl Fn(&[u8]) -> bool,
    ) -> io::Result<&[u8]> {
        while self.peeked.len() < count && (self.peeked.is_empty() || !is_enough(&self.peeked)) {
            let more = poll_fn(|cx| {
                let data = ready!(self.stream.poll_fill(cx))?;
                self.peeked.extend_from_slice(data);
                Poll::Ready(io::Result::Ok(data.len()))
            });
            let more = more.await?;
            self.stream.consume(more);
            if more == 0 {
                break;
            }
        }
        Ok(&self.peeked)
    }

    /// Waits for bytes and returns them, without a copy; no bytes mean that the peer has ended.
    ///
    /// # Errors
    /// `ConnectionReset` and the like; also fails outside a runtime.
    pub fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        if self.peeked.is_empty() {
            self.stream.poll_fill(cx)
        } else {
            Poll::Ready(Ok(&self.peeked))
        }
    }

    /// Consumes `count` of the bytes that [`poll_fill`](Io::poll_fill) has returned.
    pub fn consume(&mut self, count: usize) {
        self.received += count as u64;
        if self.peeked.is_empty() {
            self.stream.consume(count);
        } else if count >= self.peeked.len() {
            self.peeked = Vec::new();
        } else {
            self.peeked.drain(..count);
        }
    }

    /// Returns the number of bytes that have been received and read. While a layer above waits for
    /// a whole record or frame, only this number shows the progress of the peer.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use std::future::poll_fn;
    /// use upshift::{hyper::Io, net::{TcpListener, TcpStream}};
    ///
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let mut client = TcpStream::connect(listener.local_addr()?).await?;
    /// let mut io = Io::new(listener.accept().await?.0);
    /// client.write_all("ping").await.0?;
    /// let count = poll_fn(|cx| io.poll_fill(cx).map_ok(|bytes| bytes.len())).await?;
    /// io.consume(count);
    /// assert_eq!(io.received(), count as u64);
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    #[must_use]
    pub fn received(&self) -> u64 {
        self.received
    }

    fn poll_idle(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            match &mut self.state {
                Writing::Idle => return Poll::Ready(Ok(())),
                Writing::Sending(sending) => {
                    let (result, buffer) = ready!(Pin::new(sending).poll(cx));
                    self.state = Writing::Idle;
                    if let Err(error) = self.finish_send(result, buffer) {
                        self.state = Writing::Broken(error.kind());
                        return Poll::Ready(Err(error));
                    }
                }
                Writing::Broken(kind) => return Poll::Ready(Err((*kind).into())),
                Writing::FullOutside(on_vcpu) => {
                    let result = ready!(Pin::new(on_vcpu).poll(cx));
                    self.state = Writing::Idle;
                    result.unwrap_or_else(|| Err(context::outside()))?;
                }
                Writing::Full(writable) => {
                    let result = ready!(Pin::new(writable).poll(cx));
                    self.state = Writing::Idle;
                    match result {
                        Err(error) if !is_cancelled(&error) => return Poll::Ready(Err(error)),
                        _ => {}
                    }
                }
            }
        }
    }

    fn finish_send(&mut self, result: io::Result<usize>, mut buffer: Vec<u8>) -> io::Result<()> {
        let sent = match result {
            Ok(sent) => sent,
            // The vCPU that started the send was released, so this vCPU restarts the send.
            Err(error) if is_cancelled(&error) => 0,
            Err(error) => return Err(error),
        };
        if sent < buffer.len() {
            // An error cut the send short; sending the remaining bytes returns that error.
            buffer.drain(..sent);
            return self.send(buffer);
        }
        self.spare_buffer = buffer;
        Ok(())
    }

    fn send(&mut self, buffer: Vec<u8>) -> io::Result<()> {
        let send = op::Send::new(self.stream.fd().clone(), buffer).all();
        let sending = context::try_with(|worker| reply::start(worker, send))?;
        self.state = Writing::Sending(sending);
        Ok(())
    }

    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_idle(cx))?;
        let length = pieces.iter().map(|piece| piece.len()).sum();
        if length == 0 {
            return Poll::Ready(Ok(0));
        }
        // While the thread that created the ring is suspended, other threads submit through a
        // queue, which is slower than a system call.
        let is_ring_local =
            context::with(|worker| worker.ring().is_on_issuer_thread()) == Some(true);
        if length <= Self::MAX_COPIED && is_ring_local {
            let mut buffer = mem::take(&mut self.spare_buffer);
            buffer.clear();
            buffer.reserve(length);
            for piece in pieces {
                buffer.extend_from_slice(piece);
            }
            self.send(buffer)?;
            return Poll::Ready(Ok(length));
        }
        ready!(coop::poll_piece(cx));
        self.poll_send_with(cx, |fd| send_now(fd, pieces, 0))
    }

    /// Sends the bytes that precede a file, up to 68 KiB, once all earlier writes are sent. The
    /// socket may hold them back for up to 200 ms (`MSG_MORE`), so that they share a packet with
    /// the first bytes of [`poll_send_file`](Io::poll_send_file).
    ///
    /// # Errors
    /// The errors of a write.
    pub fn poll_send_before(
        &mut self,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_idle(cx))?;
        self.poll_send_with(cx, |fd| send_now(fd, pieces, libc::MSG_MORE))
    }

    /// Sends up to 64 KiB of a file, at most `max` bytes from `position`, once all earlier
    /// writes are sent. The bytes go from the kernel's memory without a copy through this process.
    /// Returns 0 at the end of the file. Returns `None` if the caller must read the file and write
    /// the bytes. That is so if the kernel may not have all of the bytes in memory, or if `SIGPIPE`
    /// would end the process. It is also so if the kernel does not tell this process whether it has
    /// the bytes (before Linux 6.5, or if the process neither owns the file nor may write to it).
    ///
    /// The pages are sent as they are, so the peer may see a change of the file that is made before
    /// the pages arrive, as with every `sendfile`.
    ///
    /// # Errors
    /// The errors of a write.
    pub fn poll_send_file(
        &mut self,
        cx: &mut Context<'_>,
        file: BorrowedFd<'_>,
        position: u64,
        max: usize,
    ) -> Poll<io::Result<Option<usize>>> {
        ready!(self.poll_idle(cx))?;
        if !self.can_send_files {
            self.can_send_files = send_file::prepare(self.stream.fd().as_raw_fd());
            if !self.can_send_files {
                return Poll::Ready(Ok(None));
            }
        }
        ready!(coop::poll_piece(cx));
        let count = max.min(MAX_FILE_PIECE);
        self.poll_send_with(cx, |fd| {
            send_file::send_file(fd.as_raw_fd(), file, position, count)
        })
    }

    /// Returns the result of `send`, which is called again whenever the full socket is writable.
    #[inline]
    fn poll_send_with<R>(
        &mut self,
        cx: &mut Context<'_>,
        mut send: impl FnMut(&Fd) -> io::Result<R>,
    ) -> Poll<io::Result<R>> {
        loop {
            match send(self.stream.fd()) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let writable = op::PollAdd::new(self.stream.fd().clone(), libc::POLLOUT as u32);
                    self.state = match context::with(|_| ()) {
                        Some(()) => Writing::Full(start(writable)?),
                        None => {
                            Writing::FullOutside(OnVcpu::run(async { start(writable)?.await })?)
                        }
                    };
                    ready!(self.poll_idle(cx))?;
                }
                done => return Poll::Ready(done),
            }
        }
    }
}

/// Sends the bytes that the socket takes without waiting, up to [`MAX_MESSAGE`].
fn send_now(fd: &Fd, pieces: &[IoSlice<'_>], flags: libc::c_int) -> io::Result<usize> {
    let first = pieces.first().map_or(&[][..], |piece| piece);
    let pieces = if first.len() >= MAX_MESSAGE {
        &[IoSlice::new(&first[..MAX_MESSAGE])]
    } else {
        &pieces[..count_within(pieces, MAX_MESSAGE)]
    };
    // SAFETY: all zeroes is an empty message.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    // `IoSlice` has the layout of `iovec`; the kernel does not write to it.
    message.msg_iov = pieces.as_ptr().cast_mut().cast();
    // The kernel takes at most 1024 pieces per call; later calls send the other pieces.
    message.msg_iovlen = pieces.len().min(1024) as _;
    // SAFETY: the message is valid for reads during the call, and so are the pieces that it points
    // to.
    let sent = without_suspension(|| unsafe {
        libc::sendmsg(
            fd.as_raw_fd(),
            &raw const message,
            libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | flags,
        )
    });
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Returns the number of pieces that fit into `limit` bytes; at least 1, if there is a piece.
fn count_within(pieces: &[IoSlice<'_>], limit: usize) -> usize {
    let mut length = 0;
    let fit = pieces.iter().take_while(|piece| {
        length += piece.len();
        length <= limit
    });
    fit.count().max(pieces.len().min(1))
}

impl From<UnixStream> for Io {
    fn from(stream: UnixStream) -> Io {
        Io::new(TcpStream::from_unix(stream))
    }
}

impl Read for Io {
    #[inline]
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_next_read(cx));
        let max = self.max_read;
        let data = ready!(self.poll_fill(cx))?;
        let count = data.len().min(buf.remaining()).min(max);
        buf.put_slice(&data[..count]);
        self.consume(count);
        Poll::Ready(Ok(()))
    }
}

impl Write for Io {
    #[inline]
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_send(cx, &[IoSlice::new(bytes)])
    }

    #[inline]
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_send(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    #[inline]
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.state {
            Writing::Broken(kind) => Poll::Ready(Err(kind.into())),
            // A flush does not wait, because the accepted bytes are on their way.
            _ => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_idle(cx))?;
        match self.stream.shutdown(Shutdown::Write) {
            Err(error) if error.kind() != io::ErrorKind::NotConnected => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(())),
        }
    }
}

/// Lets a TLS stream read and write through the traits of [`io`](crate::io).
impl Source for Io {
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        Io::poll_fill(self, cx)
    }

    fn consume(&mut self, count: usize) {
        Io::consume(self, count);
    }
}

impl Sink for Io {
    const VECTORED: bool = true;

    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_send(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        &mut self,
        cx: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_send(cx, buffers)
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Write::poll_flush(Pin::new(self), cx)
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Write::poll_shutdown(Pin::new(self), cx)
    }
}

impl_read!(Io);
impl_write!(Io);

impl Drop for Io {
    fn drop(&mut self) {
        // Dropping the submission would cancel it; the operation keeps the socket open.
        if let Writing::Sending(sending) = mem::replace(&mut self.state, Writing::Idle)
            && !sending.is_complete()
            && let Ok(handle) =
                crate::try_spawn(linger(sending, self.stream.send_queue()), Priority::Inherit)
        {
            handle.detach();
        }
    }
}

/// Waits for the last send of a dropped connection while the peer takes bytes.
async fn linger(mut sending: Submission<op::Send<Vec<u8>>>, queue: SendQueue) {
    let mut previous = queue.bytes();
    while time::timeout(LINGER, &mut sending).await.is_err() {
        let remaining = queue.bytes();
        if remaining == previous {
            return;
        }
        previous = remaining;
    }
}

impl fmt::Debug for Io {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Io").field(&self.stream).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::OwnedFd;

    use super::*;

    #[test]
    fn a_call_sends_at_most_max_message() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let fd = Fd::from(OwnedFd::from(listener.accept().unwrap().0));
        let bytes = vec![7; 4 * MAX_MESSAGE];
        let halves = bytes.chunks(MAX_MESSAGE / 2).map(IoSlice::new);
        let pieces = [
            vec![IoSlice::new(&bytes)],
            halves.collect(),
            vec![IoSlice::new(&[]), IoSlice::new(&bytes[..MAX_MESSAGE + 1])],
        ];
        for pieces in pieces {
            let sent = send_now(&fd, &pieces, 0).unwrap();
            assert!(sent <= MAX_MESSAGE, "sent {sent} bytes");
        }
        drop(peer);
    }

    #[test]
    fn a_failed_send_fails_all_later_writes() {
        let runtime = crate::Runtime::builder().vcpus(1).build().unwrap();
        runtime.block_on(async {
            let (stream, _peer) = UnixStream::pair().unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            let mut io = Io::from(stream);
            let written = poll_fn(|cx| Pin::new(&mut io).poll_write(cx, b"accepted")).await;
            assert_eq!(written.unwrap(), 8);
            let assert_broken = |result: io::Result<()>| {
                assert_eq!(result.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
            };
            assert_broken(poll_fn(|cx| io.poll_idle(cx)).await);
            let written = poll_fn(|cx| Pin::new(&mut io).poll_write(cx, b"behind")).await;
            assert_broken(written.map(drop));
            assert_broken(poll_fn(|cx| Pin::new(&mut io).poll_flush(cx)).await);
            assert_broken(poll_fn(|cx| Pin::new(&mut io).poll_shutdown(cx)).await);
        });
    }

    #[test]
    fn the_pieces_that_fit_into_a_limit_are_counted() {
        let ten = [0; 10];
        let pieces = [IoSlice::new(&ten), IoSlice::new(&ten), IoSlice::new(&ten)];
        assert_eq!(count_within(&pieces, 25), 2);
        assert_eq!(count_within(&pieces, 30), 3);
        assert_eq!(count_within(&pieces, 5), 1);
        assert_eq!(count_within(&[], 5), 0);
    }
}
