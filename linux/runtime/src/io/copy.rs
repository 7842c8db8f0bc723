//! Copying from readers to writers.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_io::{AsyncBufRead, AsyncRead, AsyncWrite};

/// Bytes of a buffer.
const SIZE: usize = 16 << 10;

/// One direction: a buffer and what of it is still to be written.
struct Transfer {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    total: u64,
    /// Written since the last flush.
    dirty: bool,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Copying,
    /// The reader has ended: the writer is flushed, and closed if it is to be.
    Ending,
    Ended,
}

impl Transfer {
    fn new() -> Transfer {
        Transfer {
            buffer: vec![0; SIZE].into_boxed_slice(),
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
                    // What the peer sends next may be the answer to what is held
                    // back here.
                    if self.dirty {
                        ready!(Pin::new(writer).poll_flush(cx))?;
                        self.dirty = false;
                    }
                    return Poll::Pending;
                }
            }
        }
        if self.state == State::Ending {
            match close {
                true => ready!(Pin::new(writer).poll_close(cx))?,
                false => ready!(Pin::new(writer).poll_flush(cx))?,
            }
            self.state = State::Ended;
        }
        Poll::Ready(Ok(self.total))
    }
}

/// Copies all that `reader` has to `writer` and flushes it; returns how many bytes.
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
/// Of the reader and the writer; some may have been copied.
pub async fn copy<R, W>(reader: &mut R, writer: &mut W) -> io::Result<u64>
where
    R: AsyncRead + Unpin + ?Sized,
    W: AsyncWrite + Unpin + ?Sized,
{
    let mut transfer = Transfer::new();
    poll_fn(|cx| transfer.poll(cx, reader, writer, false)).await
}

/// [`copy`] without a buffer of its own: out of the reader's. From one connection to
/// another that is straight out of the ring's receive buffers.
///
/// # Errors
/// As [`copy`].
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
                // As in `Transfer`: the peer may wait for what is held back.
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

/// Copies both ways until both have ended; each end is passed on by closing the other
/// side's direction. Returns the bytes from `a` to `b` and those from `b` to `a`.
///
/// # Errors
/// Of either; then both directions stop.
pub async fn copy_bidirectional<A, B>(a: &mut A, b: &mut B) -> io::Result<(u64, u64)>
where
    A: AsyncRead + AsyncWrite + Unpin + ?Sized,
    B: AsyncRead + AsyncWrite + Unpin + ?Sized,
{
    let (mut there, mut back) = (Transfer::new(), Transfer::new());
    poll_fn(|cx| {
        let there = there.poll(cx, a, b, true)?;
        let back = back.poll(cx, b, a, true)?;
        Poll::Ready(Ok((ready!(there), ready!(back))))
    })
    .await
}
