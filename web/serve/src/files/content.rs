//! Reading files: what is in the page cache at once, in the poll; the rest over the ring.
//!
//! A piece is read into a buffer from a small pool of the thread, which is not cleared each
//! time and goes back when the piece has been sent. Where nothing but a socket is between a body and its client, 32 KiB and more
//! are not read at all, as long as the page cache has them: `connection::direct`.

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

/// Bytes read at once. Larger ones would leave the allocator's cache, and the CPU's.
pub(crate) const PIECE: usize = 64 * 1024;
/// As much is not copied. Of less, the system calls cost what the copies do.
const LARGE: u64 = 32 * 1024;
/// As much is copied rather than kept in a buffer of [`PIECE`] bytes.
const COPIED: usize = 4 * 1024;
/// Buffers that a thread keeps.
const KEPT: usize = 16;

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
        // The thread may be ending.
        let _ = POOL.try_with(|pool| {
            let mut pool = pool.borrow_mut();
            if pool.len() < KEPT && bytes.len() == PIECE {
                pool.push(bytes);
            }
        });
    }
}

/// The bytes of a file that are in the page cache, from `at` on, at most `most`; `None` if
/// reading would have to wait.
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
        // Not cached; or a file system that cannot tell.
        Err(Errno::AGAIN | Errno::OPNOTSUPP) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// As [`read_now`], over the ring.
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

/// All of a file of so many bytes that is not large, if the page cache has it. To be kept: what is much shorter than a buffer is copied.
pub(super) fn small(file: &File, size: u64) -> Option<Bytes> {
    let bytes = within(file, &(0..size), LARGE - 1)?;
    Some(match bytes.len() {
        0..=COPIED => Bytes::copy_from_slice(&bytes),
        _ => bytes,
    })
}

/// All of a range of `most` bytes at most, if the page cache has it.
fn within(file: &File, range: &Range<u64>, most: u64) -> Option<Bytes> {
    let length = range.end - range.start;
    if length > most {
        return None;
    }
    let bytes = read_now(file, range.start, length).ok()??;
    (bytes.len() as u64 == length).then_some(bytes)
}

type Reading = Pin<Box<dyn Future<Output = io::Result<Bytes>> + Send>>;

/// A range of a file as a body. A file that becomes shorter meanwhile ends the response with an
/// error, so the client sees that something is missing.
pub(crate) struct FileBody {
    file: Source,
    range: Range<u64>,
}

/// How a file is read.
enum Source {
    /// It is read from the page cache.
    Plain(Arc<File>),
    /// It is read from there after the kernel has refused to send it without a copy.
    Copied(Arc<File>),
    /// It is read over the ring: once something had to wait, all that follows.
    Ring(upshift::fs::File, Option<Reading>),
}

impl FileBody {
    pub(super) fn new(file: Arc<File>, range: Range<u64>) -> FileBody {
        FileBody {
            file: Source::Plain(file),
            range,
        }
    }

    /// Is it large enough to be sent without a copy?
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

    /// Has the rest read, since the kernel did not send it without a copy.
    pub(crate) fn is_copied(&mut self) {
        if let Source::Plain(file) = &self.file {
            self.file = Source::Copied(file.clone());
        }
    }

    /// Marks bytes as sent.
    pub(crate) fn skip(&mut self, count: usize) {
        self.range.start = self.range.end.min(self.range.start + count as u64);
    }

    /// Returns all of it, if that is one piece and the page cache has it.
    pub(crate) fn whole(&self) -> Option<Bytes> {
        match &self.file {
            Source::Plain(file) => within(file, &self.range, PIECE as u64),
            _ => None,
        }
    }

    /// Returns the number of bytes that have not been handed out, or sent.
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
