//! Reads files. Bytes in the page cache are read within the poll, all other bytes over the ring
//! (io_uring).
//!
//! A piece is read into a buffer from a small pool of the thread. The buffer is not cleared, and
//! returns to the pool when the piece has been sent. Over HTTP/1 without TLS, files of at least 32
//! KiB in the page cache are not read at all (see `connection::send_file`).

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

/// Number of bytes read at once. Larger pieces would not fit into the caches of the allocator and
/// the CPU.
pub(crate) const PIECE: usize = 64 * 1024;
/// Minimum size in bytes of a file that is sent without a copy. For smaller files, the system calls
/// cost as much as the copies.
const MIN_SEND_FILE: u64 = 32 * 1024;
/// Maximum size in bytes of content that [`read_small`] copies, so that the cache does not keep a
/// whole buffer of [`PIECE`] bytes for it.
const MAX_COPIED: usize = 4 * 1024;
/// Number of idle buffers that a thread keeps.
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

/// Reads at most `max` bytes of a file, beginning at `offset`, if they are in the page
/// cache. Returns `None` if the read would have to wait.
fn read_cached(file: &File, offset: u64, max: u64) -> io::Result<Option<Bytes>> {
    let mut buffer = Buffer::take();
    let max = usize::try_from(max).map_or(PIECE, |max| max.min(PIECE));
    let slices = &mut [IoSliceMut::new(&mut buffer.bytes[..max])];
    match preadv2(file, slices, offset, ReadWriteFlags::NOWAIT) {
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

/// Reads like [`read_cached`], but over the ring.
async fn read_ring(file: upshift::fs::File, offset: u64, max: u64) -> io::Result<Bytes> {
    let max = usize::try_from(max).map_or(PIECE, |max| max.min(PIECE));
    let (result, mut buffer) = file.read_at(Vec::with_capacity(max), offset).await;
    match result? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        count => {
            buffer.truncate(count.min(max));
            Ok(Bytes::from(buffer))
        }
    }
}

/// Returns the whole content of a small file of `size` bytes, if it is in the page cache. The
/// caller caches the content, so content that is much shorter than a buffer is copied out of the
/// buffer.
pub(super) fn read_small(file: &File, size: u64) -> Option<Bytes> {
    let bytes = read_range(file, &(0..size), MIN_SEND_FILE - 1)?;
    Some(match bytes.len() {
        0..=MAX_COPIED => Bytes::copy_from_slice(&bytes),
        _ => bytes,
    })
}

/// Returns the content of a range of at most `max` bytes, if it is in the page cache.
fn read_range(file: &File, range: &Range<u64>, max: u64) -> Option<Bytes> {
    let length = range.end - range.start;
    if length > max {
        return None;
    }
    let bytes = read_cached(file, range.start, length).ok()??;
    (bytes.len() as u64 == length).then_some(bytes)
}

type Reading = Pin<Box<dyn Future<Output = io::Result<Bytes>> + Send>>;

/// A range of a file as a body. If the file shrinks while it is sent, the response ends with an
/// error, so the client notices that bytes are missing.
pub(crate) struct FileBody {
    file: Source,
    range: Range<u64>,
}

enum Source {
    /// Read from the page cache, or sent by the kernel without a copy.
    Plain(Arc<File>),
    /// Read from the page cache, because the kernel has refused to send the file without a copy.
    Copied(Arc<File>),
    /// Read over the ring, beginning with the first read that would have had to wait.
    Ring(upshift::fs::File, Option<Reading>),
}

impl FileBody {
    pub(super) fn new(file: Arc<File>, range: Range<u64>) -> FileBody {
        FileBody {
            file: Source::Plain(file),
            range,
        }
    }

    /// Returns whether the body is large enough to be sent without a copy.
    pub(crate) fn is_large(&self) -> bool {
        self.left() >= MIN_SEND_FILE
    }

    pub(crate) fn send_file_source(&self) -> Option<(BorrowedFd<'_>, u64)> {
        match &self.file {
            Source::Plain(file) => Some((file.as_fd(), self.range.start)),
            _ => None,
        }
    }

    /// Switches to reading, since the kernel cannot send the file without a copy.
    pub(crate) fn disable_send_file(&mut self) {
        if let Source::Plain(file) = &self.file {
            self.file = Source::Copied(file.clone());
        }
    }

    pub(crate) fn advance(&mut self, count: usize) {
        self.range.start = self.range.end.min(self.range.start + count as u64);
    }

    /// Returns the whole body, if it is one piece and in the page cache.
    pub(crate) fn read_whole(&self) -> Option<Bytes> {
        match &self.file {
            Source::Plain(file) => read_range(file, &self.range, PIECE as u64),
            _ => None,
        }
    }

    pub(crate) fn left(&self) -> u64 {
        self.range.end - self.range.start
    }

    pub(crate) fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if self.left() == 0 {
            return Poll::Ready(None);
        }
        let result = ready!(self.poll_read(cx));
        match &result {
            Ok(bytes) => self.advance(bytes.len()),
            Err(_) => self.range.start = self.range.end,
        }
        Poll::Ready(Some(result))
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Bytes>> {
        let (offset, left) = (self.range.start, self.left());
        if let Source::Plain(file) | Source::Copied(file) = &self.file {
            if let Some(bytes) = read_cached(file, offset, left)? {
                return Poll::Ready(Ok(bytes));
            }
            let file = upshift::fs::File::from_std(file.try_clone()?);
            self.file = Source::Ring(file, None);
        }
        let Source::Ring(file, reading) = &mut self.file else {
            unreachable!("other sources were replaced above")
        };
        let file = &*file;
        let result = reading.get_or_insert_with(|| Box::pin(read_ring(file.clone(), offset, left)));
        let result = ready!(result.as_mut().poll(cx));
        *reading = None;
        Poll::Ready(result)
    }
}
