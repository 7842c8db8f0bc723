//! Reads and writes whole files.
//!
//! A cached file of less than [`BEGINNING`] bytes takes three system calls, which open, read and
//! close it without the ring. A file whose name is not cached is opened through the ring, which
//! also reads its beginning. Everything behind the beginning is read with [`File::read_at`].

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use upshift_ring::{IoBuf, IoBufMut, op};

use super::attempt_history::AttemptHistory;
use super::cached::{self, Attempt};
use super::read::start_read;
use super::{File, OpenOptions};
use crate::coroutine::coop;

/// Number of bytes that are read before the kernel is asked for the length of the file.
const BEGINNING: usize = 8 << 10;
/// Smallest room, in bytes, for a read behind the end of a growing file.
const MIN_TAIL: usize = 64;

/// The room behind the bytes that a vector holds.
struct Tail(Vec<u8>);

// SAFETY: the memory stays valid and in place when the value is moved, because it is the heap
// memory of a vector, between the vector's length and its capacity.
unsafe impl IoBufMut for Tail {
    const DROP_RUNS_USER_CODE: bool = false;

    fn io_mut_ptr(&mut self) -> *mut u8 {
        self.0.spare_capacity_mut().as_mut_ptr().cast()
    }
    fn io_capacity(&self) -> usize {
        self.0.capacity() - self.0.len()
    }
    unsafe fn set_filled(&mut self, count: usize) {
        // SAFETY: the caller has initialised `count` bytes behind the old length.
        unsafe { self.0.set_len(self.0.len() + count) };
    }
}

/// Reads the cached beginning of a file into a vector with [`BEGINNING`] bytes of room. Returns
/// true if the file has no more bytes.
fn read_beginning(fd: impl AsFd, bytes: &mut Vec<u8>, history: &AttemptHistory) -> bool {
    while bytes.len() < bytes.capacity() {
        let (start, room) = (bytes.len(), bytes.capacity() - bytes.len());
        // SAFETY: there are `room` bytes behind the bytes that have been read.
        match unsafe {
            cached::read(
                fd.as_fd(),
                bytes.as_mut_ptr().add(start),
                room,
                start as u64,
            )
        } {
            Attempt::Done(count) => {
                coop::charge();
                // SAFETY: the kernel has written `count` bytes behind the old length.
                unsafe { bytes.set_len(start + count) };
                if cached::is_end(start as u64, count, room) {
                    return true;
                }
            }
            Attempt::WouldBlock => {
                history.record_miss();
                return false;
            }
            Attempt::Unsupported => {
                history.disable();
                return false;
            }
        }
    }
    false
}

/// Reads a whole file. A file that grows or shrinks meanwhile is read up to the end that is met.
/// A FIFO is read until all its writers have closed it; the call waits for the first writer.
///
/// # Cancellation safety
/// The future may be dropped at any time.
///
/// # Errors
/// The errors of [`File::open`] and [`File::read_at`]; `OutOfMemory` if the contents do not fit.
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// # let path = std::env::temp_dir().join(format!("upshift-read-{}", std::process::id()));
/// use upshift::fs;
///
/// fs::write(&path, [1, 2, 3]).await?;
/// assert_eq!(fs::read(&path).await?, [1, 2, 3]);
/// # std::fs::remove_file(&path)?;
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
pub async fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let mut options = OpenOptions::new();
    let opened = options.read(true).open_marked(path.as_ref()).await?;
    let (mut bytes, history) = (Vec::with_capacity(BEGINNING), AttemptHistory::new());
    let was_cached = opened.is_marked;
    let mut has_ended = was_cached && read_beginning(&opened.fd, &mut bytes, &history);
    if has_ended {
        // Copying from the stack would take as long as these two calls of the allocator.
        bytes.shrink_to_fit();
        return Ok(bytes);
    }
    let file = opened.into_file(history)?;
    if !was_cached {
        let read = op::ReadAt::new(file.fd().clone(), Tail(bytes), 0);
        let (result, tail) = start_read(read)?.await;
        bytes = tail.0;
        has_ended = result? == 0;
    }
    while !has_ended {
        if bytes.len() == bytes.capacity() {
            reserve(&mut bytes, file.known_len(0))?;
        }
        let (offset, room) = (bytes.len() as u64, bytes.capacity() - bytes.len());
        let (result, tail) = file.read_at(Tail(bytes), offset).await;
        bytes = tail.0;
        let count = result?;
        // Each read is first tried without the ring. That shows whether the file is cacheable, and
        // so whether a short read means the end.
        has_ended = count == 0 || (file.is_cacheable() && cached::is_end(offset, count, room));
    }
    bytes.shrink_to_fit();
    Ok(bytes)
}

/// Makes room in a full vector for the remaining bytes of a file of `length` bytes, and for one
/// byte more, so that the end is seen without growing. Files of the kernel have a length of 0, and
/// may be longer.
fn reserve(bytes: &mut Vec<u8>, length: u64) -> io::Result<()> {
    let missing = length.saturating_add(1).saturating_sub(bytes.len() as u64);
    match usize::try_from(missing) {
        Ok(0) => bytes.try_reserve(MIN_TAIL)?,
        Ok(missing) => bytes.try_reserve_exact(missing)?,
        Err(_) => return Err(io::ErrorKind::OutOfMemory.into()),
    }
    Ok(())
}

/// Reads a whole file of UTF-8 text.
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// # let path = std::env::temp_dir().join(format!("upshift-whole-{}", std::process::id()));
/// use upshift::fs;
///
/// fs::write(&path, "hello").await?;
/// assert_eq!(fs::read_to_string(&path).await?, "hello");
/// assert_eq!(fs::read(&path).await?, b"hello");
/// # std::fs::remove_file(&path)?;
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
///
/// # Errors
/// The errors of [`read`]; `InvalidData` if the file is not UTF-8.
pub async fn read_to_string(path: impl AsRef<Path>) -> io::Result<String> {
    String::from_utf8(read(path).await?)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Creates a file with these contents, or replaces the contents of an existing file.
///
/// # Cancellation safety
/// Not cancellation safe: the file may be truncated, and an unknown part written.
///
/// # Errors
/// The errors of [`File::create`] and [`File::write_at`].
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// # let path = std::env::temp_dir().join(format!("upshift-whole-{}", std::process::id()));
/// use upshift::fs;
///
/// fs::write(&path, "a long text").await?;
/// fs::write(&path, "short").await?; // Replaces the contents.
/// assert_eq!(fs::read(&path).await?, b"short");
/// # std::fs::remove_file(&path)?;
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
pub async fn write(path: impl AsRef<Path>, contents: impl IoBuf) -> io::Result<()> {
    File::create(path).await?.write_all_at(contents, 0).await.0
}
