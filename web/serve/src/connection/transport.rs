//! The transport below HTTP, which is a socket's I/O, or TLS above it.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::rt::{Read, Write};
use upshift::hyper::Io;

/// A transport that lends received bytes, and may send files.
pub(crate) trait Transport: Read + Write + Unpin {
    /// Returns ready if another read is allowed in this poll, like [`Io::poll_next_read`].
    /// Otherwise the task is woken later.
    fn poll_next_read(&mut self, cx: &mut Context<'_>) -> Poll<()>;
    /// Waits for bytes and lends them; an empty slice means the end.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>>;
    fn consume(&mut self, count: usize);
    /// Returns the number of bytes received from the socket so far, including the bytes of an
    /// incomplete record.
    fn received(&self) -> u64;

    /// Sends bytes that precede a part of a file, like [`Io::poll_send_before`].
    fn poll_send_before(
        &mut self,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(self).poll_write_vectored(cx, pieces)
    }

    /// Sends a part of a file, like [`Io::poll_send_file`]. By default returns `None`, which means
    /// that the caller must read the file and write its bytes.
    fn poll_send_file(
        &mut self,
        _: &mut Context<'_>,
        _: BorrowedFd<'_>,
        _: u64,
        _: usize,
    ) -> Poll<io::Result<Option<usize>>> {
        Poll::Ready(Ok(None))
    }
}

impl Transport for Io {
    fn poll_next_read(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        Io::poll_next_read(self, cx)
    }

    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        Io::poll_fill(self, cx)
    }

    fn consume(&mut self, count: usize) {
        Io::consume(self, count);
    }

    fn received(&self) -> u64 {
        Io::received(self)
    }

    fn poll_send_before(
        &mut self,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Io::poll_send_before(self, cx, pieces)
    }

    fn poll_send_file(
        &mut self,
        cx: &mut Context<'_>,
        file: BorrowedFd<'_>,
        offset: u64,
        max_len: usize,
    ) -> Poll<io::Result<Option<usize>>> {
        Io::poll_send_file(self, cx, file, offset, max_len)
    }
}
