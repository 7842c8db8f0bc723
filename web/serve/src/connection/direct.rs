//! Pieces of files that go from the page cache to the socket without a copy through this process.
//!
//! The HTTP library owns what a connection writes, and knows bytes only. So a body hands out *stand-ins*: as many bytes of a window
//! that is never sent, with the piece of the file in the connection's queue. When the library has them written, [`Watched`](crate::connection::watched::Watched)
//! knows them by their address, and sends the piece in their place; in the order in which they were handed out, which is
//! that of the queue. What may have to be fetched from the device is read and written as any other file, from there on.
//!
//! A stand-in that is dropped before its piece has been sent was copied, or left out: then the connection
//! writes nothing any more, so that no byte of the window is ever seen.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::rt::Write;
use upshift::hyper::Io;

use crate::connection::Conn;
use crate::files::PIECE;
use crate::tls::TlsIo;

/// What stand-ins are made of.
static WINDOW: [u8; PIECE] = [0; PIECE];

/// Sends pieces of files.
pub(crate) trait SendFile {
    /// As [`Io::poll_send_before`].
    fn poll_send_before(
        &mut self,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>>;

    /// As [`Io::poll_send_file`].
    fn poll_send_file(
        &mut self,
        cx: &mut Context<'_>,
        file: BorrowedFd<'_>,
        at: u64,
        most: usize,
    ) -> Poll<io::Result<Option<usize>>>;
}

impl SendFile for Io {
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
        at: u64,
        most: usize,
    ) -> Poll<io::Result<Option<usize>>> {
        Io::poll_send_file(self, cx, file, at, most)
    }
}

/// What is encrypted is copied.
impl SendFile for TlsIo {
    fn poll_send_before(
        &mut self,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(self).poll_write_vectored(cx, pieces)
    }

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

/// A file that is sent so.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) file: Arc<File>,
    /// Not any more.
    ended: AtomicBool,
}

impl Source {
    pub(crate) fn new(file: Arc<File>) -> Arc<Source> {
        Arc::new(Source {
            file,
            ended: AtomicBool::new(false),
        })
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Relaxed)
    }
}

/// What a stand-in stands for.
#[derive(Debug)]
pub(crate) struct Piece {
    source: Arc<Source>,
    at: u64,
    length: usize,
    sent: AtomicUsize,
}

impl Piece {
    fn sent(&self) -> usize {
        self.sent.load(Relaxed)
    }

    /// Where what has not been sent begins, and how much it is.
    pub(crate) fn rest(&self) -> (u64, usize) {
        let sent = self.sent();
        (self.at + sent as u64, self.length - sent)
    }

    pub(crate) fn file(&self) -> &File {
        &self.source.file
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.source.file.as_fd()
    }

    /// It has to be read, and so will what follows.
    pub(crate) fn end_source(&self) {
        self.source.ended.store(true, Relaxed);
    }
}

/// The bytes of the window, as the library has them.
struct StandIn {
    piece: Arc<Piece>,
    conn: Arc<Conn>,
}

impl AsRef<[u8]> for StandIn {
    fn as_ref(&self) -> &[u8] {
        &WINDOW[..self.piece.length]
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        if self.piece.sent() != self.piece.length {
            self.conn.direct.broken.store(true, Relaxed);
        }
    }
}

/// Pieces of a connection that have been handed out and not been sent, in order.
#[derive(Debug, Default)]
pub(crate) struct Direct {
    queue: Mutex<VecDeque<Arc<Piece>>>,
    broken: AtomicBool,
}

impl Direct {
    fn queue(&self) -> MutexGuard<'_, VecDeque<Arc<Piece>>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing may be written any more.
    #[inline]
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Relaxed)
    }

    /// The piece that these bytes of the window stand for.
    pub(crate) fn piece_of(&self, bytes: &[u8]) -> io::Result<Arc<Piece>> {
        let piece = self.queue().front().cloned();
        piece
            .filter(|piece| {
                let rest = &WINDOW[piece.sent()..piece.length];
                std::ptr::eq(rest, bytes)
            })
            .ok_or_else(out_of_order)
    }

    /// So much of the first piece has been sent.
    pub(crate) fn sent(&self, piece: &Piece, count: usize) {
        if piece.sent.fetch_add(count, Relaxed) + count == piece.length {
            self.queue().pop_front();
        }
    }
}

pub(crate) fn out_of_order() -> io::Error {
    io::Error::other("a piece of a file was not sent where it belongs")
}

/// Are these bytes of the window?
#[inline]
pub(crate) fn stands_in(bytes: &[u8]) -> bool {
    WINDOW.as_ptr_range().contains(&bytes.as_ptr()) && !bytes.is_empty()
}

/// A stand-in for the next `length` bytes of a file, from `at` on; [`PIECE`] at most.
pub(crate) fn hand_out(conn: &Arc<Conn>, source: &Arc<Source>, at: u64, length: usize) -> Bytes {
    let piece = Arc::new(Piece {
        source: source.clone(),
        at,
        length: length.min(PIECE),
        sent: AtomicUsize::new(0),
    });
    conn.direct.queue().push_back(piece.clone());
    let conn = conn.clone();
    Bytes::from_owner(StandIn { piece, conn })
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::atomic::AtomicU64;

    use bytes::Buf;

    use super::*;

    fn conn() -> Arc<Conn> {
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        Arc::new(Conn::new(peer, Arc::new(AtomicU64::new(1))))
    }

    fn source() -> Arc<Source> {
        Source::new(Arc::new(File::open("/dev/null").unwrap()))
    }

    #[test]
    fn a_stand_in_is_known_by_its_place_and_gone_when_all_is_sent() {
        let (conn, source) = (conn(), source());
        let mut first = hand_out(&conn, &source, 10, 100);
        let second = hand_out(&conn, &source, 110, 7);
        assert!(stands_in(&first) && stands_in(&second) && !stands_in(b"bytes"));
        let piece = conn.direct.piece_of(&first).unwrap();
        assert_eq!(piece.rest(), (10, 100));
        conn.direct.sent(&piece, 99);
        // What has been sent is not asked for again.
        assert!(conn.direct.piece_of(&first).is_err());
        first.advance(99);
        assert_eq!(conn.direct.piece_of(&first).unwrap().rest(), (109, 1));
        assert!(conn.direct.piece_of(&second).is_err());
        conn.direct.sent(&piece, 1);
        first.advance(1);
        drop(first);
        let piece = conn.direct.piece_of(&second).unwrap();
        assert_eq!(piece.rest(), (110, 7));
        conn.direct.sent(&piece, 7);
        drop(second);
        assert!(!conn.direct.is_broken());
        assert!(conn.direct.queue().is_empty());
    }

    #[test]
    fn a_stand_in_that_is_copied_ends_what_the_connection_writes() {
        let conn = conn();
        let bytes = hand_out(&conn, &source(), 0, 100);
        let copy = bytes.to_vec();
        assert!(!stands_in(&copy) && !conn.direct.is_broken());
        drop(bytes);
        assert!(conn.direct.is_broken());
    }
}
