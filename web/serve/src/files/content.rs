//! Reading files: bytes in the page cache at once, in the poll; all others over the ring.
//!
//! A piece is read into a buffer from a small pool of the thread, which is not cleared each time
//! and returns when the piece has been sent. If the socket takes the body's bytes directly, 32 KiB
//! and more are not read at all, as long as the page cache has them: see `connection::direct`.

use std::cell::RefCell;
use std::fs::File;
use std::future::Future;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use rustix::io::{Errno, ReadWriteFlags, preadv2};

/// Bytes read at once. Larger pieces would not fit into the allocator's cache and the CPU's.
pub(crate) const PIECE: usize = 64 * 1024;
/// Number of bytes from which on a file is sent without a copy. For less, the system calls cost as
/// much as the copies.
const LARGE: u64 = 32 * 1024;
/// Number of bytes up to which a piece is copied instead of kept in a buffer of [`PIECE`] bytes.
const COPIED: usize = 4 * 1024;
/// Number of buffers in the pool of a thread.
const MAX_POOLED: usize = 16;

thread_local! {
    static POOL: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// A buffer of [`PIECE`] initialised bytes, which returns to the pool of the thread that drops it.
struct Buffer {
    bytes: Vec<u8>,
    length: usize,
}

impl Buffer {
    fn take() -> Buffer {
        let bytes = POOL
            .with_borrow_mut(Vec::pop)
            .unwrap_or_else(|| vec![0; PIECE]);
        Buffer { bytes, length: 0 }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        // Fails if the thread is ending.
        let _ = POOL.try_with(|pool| {
            let mut pool = pool.borrow_mut();
            if pool.len() < MAX_POOLED && bytes.len() == PIECE {
                pool.push(bytes);
            }
        });
    }
}

/// Reads bytes of a file from `at` on, at most `most`, if they are in the page cache. Returns
/// `None` if reading would have to wait.
fn read_now(file: &File, at: u64, most: u64) -> io::Result<Option<Bytes>> {
    let mut buffer = Buffer::take();
    let most = usize::try_from(most).map_or(PIECE, |most| most.min(PIECE));
    let room = &mut [IoSliceMut::new(&mut buffer.bytes[..most])];
    match preadv2(file, room, at, ReadWriteFlags::NOWAIT) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(count) => {
            buffer.length = count;
            Ok(Some(Bytes::from_owner(buffer)))
        }
        // The bytes are not cached, or the file system cannot tell.
        Err(Errno::AGAIN | Errno::OPNOTSUPP) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Reads like [`read_now`], but over the ring.
async fn read_later(file: upshift::fs::File, at: u64, most: u64) -> io::Result<Bytes> {
    let most = usize::try_from(most).map_or(PIECE, |most| most.min(PIECE));
    let (result, mut buffer) = file.read_at(Vec::with_capacity(most), at).await;
    match result? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        count => {
            buffer.truncate(count.min(most));
            Ok(Bytes::from(buffer))
        }
    }
}

/// Returns the whole content of a small file of `size` bytes, if the page cache has it. The content
/// is to be cached, so a file that is much shorter than a buffer is copied.
pub(super) fn small(file: &File, size: u64) -> Option<Bytes> {
    let bytes = within(file, &(0..size), LARGE - 1)?;
    Some(match bytes.len() {
        0..=COPIED => Bytes::copy_from_slice(&bytes),
        _ => bytes,
    })
}

/// Returns the content of a range of at most `most` bytes, if the page cache has it.
fn within(file: &File, range: &Range<u64>, most: u64) -> Option<Bytes> {
    let length = range.end - range.start;
    if length > most {
        return None;
    }
    let bytes = read_now(file, range.start, length).ok()??;
    (bytes.len() as u64 == length).then_some(bytes)
}

type Reading = Pin<Box<dyn Future<Output = io::Result<Bytes>> + Send>>;

/// A range of a file as a body. A file that shrinks meanwhile ends the response with an error, so
/// the client sees that bytes are missing.
pub(crate) struct FileBody {
    file: Source,
    range: Range<u64>,
}

/// The way in which a file is read.
enum Source {
    /// Read from the page cache.
    Plain(Arc<File>),
    /// Read from the page cache after the kernel has refused to send it without a copy.
    Copied(Arc<File>),
    /// Read over the ring: all bytes after the first read that had to wait.
    Ring(upshift::fs::File, Option<Reading>),
}

impl FileBody {
    pub(super) fn new(file: Arc<File>, range: Range<u64>) -> FileBody {
        FileBody {
            file: Source::Plain(file),
            range,
        }
    }

    /// Tells whether the body is large enough to be sent without a copy.
    pub(crate) fn is_large(&self) -> bool {
        self.left() >= LARGE
    }

    /// Returns the descriptor and the position of the next byte, if it may be sent without a copy.
    pub(crate) fn uncopied(&self) -> Option<(BorrowedFd<'_>, u64)> {
        match &self.file {
            Source::Plain(file) => Some((file.as_fd(), self.range.start)),
            _ => None,
        }
    }

    /// Switches to reading the rest, since the kernel did not send it without a copy.
    pub(crate) fn is_copied(&mut self) {
        if let Source::Plain(file) = &self.file {
            self.file = Source::Copied(file.clone());
        }
    }

    /// Marks bytes as sent.
    pub(crate) fn skip(&mut self, count: usize) {
        self.range.start = self.range.end.min(self.range.start + count as u64);
    }

    /// Returns the whole body, if it is one piece that the page cache has.
    pub(crate) fn whole(&self) -> Option<Bytes> {
        match &self.file {
            Source::Plain(file) => within(file, &self.range, PIECE as u64),
            _ => None,
        }
    }

    /// Returns the number of bytes that were neither handed out nor sent.
    pub(crate) fn left(&self) -> u64 {
        self.range.end - self.range.start
    }

    pub(crate) fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if self.left() == 0 {
            return Poll::Ready(None);
        }
        let result = ready!(self.poll_read(cx));
        match &result {
            Ok(bytes) => self.skip(bytes.len()),
            Err(_) => self.range.start = self.range.end,
        }
        Poll::Ready(Some(result))
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Bytes>> {
        let (at, left) = (self.range.start, self.left());
        if let Source::Plain(file) | Source::Copied(file) = &self.file {
            if let Some(bytes) = read_now(file, at, left)? {
                return Poll::Ready(Ok(bytes));
            }
            let file = upshift::fs::File::from_std(file.try_clone()?);
            self.file = Source::Ring(file, None);
        }
        let Source::Ring(file, reading) = &mut self.file else {
            unreachable!("all other files have been turned into this one")
        };
        let file = &*file;
        let result = reading.get_or_insert_with(|| Box::pin(read_later(file.clone(), at, left)));
        let result = ready!(result.as_mut().poll(cx));
        *reading = None;
        Poll::Ready(result)
    }
}
