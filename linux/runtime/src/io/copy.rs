//! Copying from readers to writers.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_io::{AsyncBufRead, AsyncRead, AsyncWrite};

/// Size of the buffer of a direction.
const BUFFER_BYTES: usize = 16 << 10;

/// A direction of a copy: a buffer, and the part of it that is still to be written.
struct Transfer {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    total: u64,
    /// True if bytes have been written since the last flush.
    dirty: bool,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Copying,
    /// The reader has ended, and the writer is now flushed, or closed.
    Ending,
    Ended,
}

impl Transfer {
    fn new() -> Transfer {
        Transfer {
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
            total: 0,
            dirty: false,
            state: State::Copying,
        }
    }

    fn poll<R, W>(
        &mut self,
        cx: &mut Context<'_>,
        reader: &mut R,
        writer: &mut W,
        close: bool,
    ) -> Poll<io::Result<u64>>
    where
        R: AsyncRead + Unpin + ?Sized,
        W: AsyncWrite + Unpin + ?Sized,
    {
        while self.state == State::Copying {
            while self.start < self.end {
                let bytes = &self.buffer[self.start..self.end];
                let count = ready!(Pin::new(&mut *writer).poll_write(cx, bytes))?;
                if count == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                self.start += count;
                self.total += count as u64;
                self.dirty = true;
            }
            match Pin::new(&mut *reader).poll_read(cx, &mut self.buffer)? {
                Poll::Ready(0) => self.state = State::Ending,
                Poll::Ready(count) => (self.start, self.end) = (0, count),
                Poll::Pending => {
                    // The peer's next data may be the answer to bytes that are held back here.
                    if self.dirty {
                        ready!(Pin::new(writer).poll_flush(cx))?;
                        self.dirty = false;
                    }
                    return Poll::Pending;
                }
            }
        }
        if self.state == State::Ending {
            if close {
                ready!(Pin::new(writer).poll_close(cx))?;
            } else {
                ready!(Pin::new(writer).poll_flush(cx))?;
            }
            self.state = State::Ended;
        }
        Poll::Ready(Ok(self.total))
    }
}

/// Copies all bytes of `reader` to `writer` and flushes `writer`. Returns the number of bytes.
///
/// # Cancellation safety
/// Not cancellation safe: bytes that have been read and not written are lost.
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// use upshift::io;
/// let mut out = Vec::new();
/// assert_eq!(io::copy(&mut b"bytes".as_slice(), &mut out).await?, 5);
/// assert_eq!(out, b"bytes");
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
///
/// # Errors
/// Errors of the reader and the writer; a part may have been copied.
pub async fn copy<R, W>(reader: &mut R, writer: &mut W) -> io::Result<u64>
where
    R: AsyncRead + Unpin + ?Sized,
    W: AsyncWrite + Unpin + ?Sized,
{
    let mut transfer = Transfer::new();
    poll_fn(|cx| transfer.poll(cx, reader, writer, false)).await
}

/// Copies like [`copy`], but writes straight out of the reader's buffer, without another buffer.
/// From one connection to another, bytes are sent straight out of the ring's receive buffers.
///
/// # Cancellation safety
/// A dropped future loses no bytes: bytes that were not written stay in the reader.
///
/// # Errors
/// The errors of [`copy`].
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// use upshift::io;
/// let mut out = Vec::new();
/// let mut reader = io::BufReader::new(b"bytes".as_slice());
/// assert_eq!(io::copy_buf(&mut reader, &mut out).await?, 5);
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
pub async fn copy_buf<R, W>(reader: &mut R, writer: &mut W) -> io::Result<u64>
where
    R: AsyncBufRead + Unpin + ?Sized,
    W: AsyncWrite + Unpin + ?Sized,
{
    let mut total = 0;
    let mut dirty = false;
    poll_fn(|cx| {
        loop {
            let Poll::Ready(data) = Pin::new(&mut *reader).poll_fill_buf(cx)? else {
                // As in `Transfer`, the peer may wait for bytes that are held back.
                if dirty {
                    ready!(Pin::new(&mut *writer).poll_flush(cx))?;
                    dirty = false;
                }
                return Poll::Pending;
            };
            if data.is_empty() {
                return Pin::new(&mut *writer).poll_flush(cx);
            }
            let count = ready!(Pin::new(&mut *writer).poll_write(cx, data))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            Pin::new(&mut *reader).consume(count);
            total += count as u64;
            dirty = true;
        }
    })
    .await?;
    Ok(total)
}

/// Copies in both directions until both have ended. The end of one side closes the direction to the
/// other side. Returns the number of bytes from `a` to `b`, and from `b` to `a`.
///
/// # Cancellation safety
/// Not cancellation safe: bytes that have been read and not written are lost.
///
/// # Errors
/// Errors of either side; both directions stop at the first error.
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// use upshift::io::{self, AsyncReadExt, AsyncWriteExt};
/// use upshift::net::UnixStream;
///
/// let (mut client, mut proxy_in) = UnixStream::pair()?;
/// let (mut proxy_out, mut server) = UnixStream::pair()?;
/// let proxy = async { io::copy_bidirectional(&mut proxy_in, &mut proxy_out).await };
/// let talk = async {
///     AsyncWriteExt::write_all(&mut client, b"ping").await?;
///     let mut request = [0; 4];
///     server.read_exact(&mut request).await?;
///     AsyncWriteExt::write_all(&mut server, b"pong!").await?;
///     server.close().await?;
///     client.close().await?;
///     std::io::Result::Ok(())
/// };
/// let (copied, talked) = futures_lite::future::zip(proxy, talk).await;
/// talked?;
/// assert_eq!(copied?, (4, 5));
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
pub async fn copy_bidirectional<A, B>(a: &mut A, b: &mut B) -> io::Result<(u64, u64)>
where
    A: AsyncRead + AsyncWrite + Unpin + ?Sized,
    B: AsyncRead + AsyncWrite + Unpin + ?Sized,
{
    let (mut forward, mut backward) = (Transfer::new(), Transfer::new());
    poll_fn(|cx| {
        let forward = forward.poll(cx, a, b, true)?;
        let backward = backward.poll(cx, b, a, true)?;
        Poll::Ready(Ok((ready!(forward), ready!(backward))))
    })
    .await
}
