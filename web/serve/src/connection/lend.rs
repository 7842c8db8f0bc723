//! Received bytes, lent by what has received them: the socket's I/O, or TLS above it.

use std::io;
use std::task::{Context, Poll};

use upshift::hyper::Io;

/// What is received, lent.
pub(crate) trait Fill {
    /// May more be read in this poll?
    fn poll_read_on(&mut self, cx: &mut Context<'_>) -> Poll<()>;
    /// Waits for bytes; none is the end.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>>;
    /// So many of them are done with.
    fn consume(&mut self, count: usize);
    /// Returns how many bytes have come from the socket so far, also of a record that is not whole.
    fn received(&self) -> u64;
}

impl Fill for Io {
    fn poll_read_on(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        Io::poll_read_on(self, cx)
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
}
