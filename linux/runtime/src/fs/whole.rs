//! Whole files at once.
//!
//! A cached file of less than [`BEGINNING`] bytes takes three system calls: it is opened, read
//! and closed without the ring. A file whose name is not cached is opened through the ring, and so
//! is its beginning read. Everything behind the beginning is read as [`File::read_at`] does.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use upshift_ring::{IoBuf, IoBufMut, op};

use super::at_once::{self, Now};
use super::read::start_read;
use super::tries::Tries;
use super::{File, OpenOptions};
use crate::coroutine::coop;

/// Bytes of a file that are read before its length is asked for.
const BEGINNING: usize = 8 << 10;
/// The room that a read behind the end of a growing file has at least.
const LEAST: usize = 64;

/// The room behind the bytes that a vector holds.
struct Tail(Vec<u8>);

// SAFETY: the heap memory of a vector stays where it is, also behind its length and
// up to its capacity.
unsafe impl IoBufMut for Tail {
    const FOREIGN: bool = false;

    fn io_mut_ptr(&mut self) -> *mut u8 {
        self.0.spare_capacity_mut().as_mut_ptr().cast()
    }
    fn io_capacity(&self) -> usize {
        self.0.capacity() - self.0.len()
    }
    unsafe fn set_filled(&mut self, count: usize) {
        // SAFETY: so many bytes behind the old length have been initialised.
        unsafe { self.0.set_len(self.0.len() + count) };
    }
}

/// Reads the beginning of a file into a vector with [`BEGINNING`] bytes of room, as far as it is
/// cached. Returns whether that is all of the file.
fn read_beginning(fd: impl AsFd, bytes: &mut Vec<u8>, tries: &Tries) -> bool {
    while bytes.len() < bytes.capacity() {
        let (start, room) = (bytes.len(), bytes.capacity() - bytes.len());
        // SAFETY: there is so much room behind the bytes that have been read.
        match unsafe {
            at_once::read(
                fd.as_fd(),
                bytes.as_mut_ptr().add(start),
                room,
                start as u64,
            )
        } {
            Now::Done(count) => {
                coop::charge();
                // SAFETY: so many bytes have been written.
                unsafe { bytes.set_len(start + count) };
                if at_once::is_end(start as u64, count, room) {
                    return true;
                }
            }
            Now::Waits => {
                tries.missed();
                return false;
            }
            Now::Cannot => {
                tries.never();
                return false;
            }
        }
    }
    false
}

/// Reads a whole file. One that grows or is cut off meanwhile is read up to where its end is met.
/// A FIFO is read until all that write to it have closed it, of which the first is waited for.
///
/// # Errors
/// As [`File::open`] and [`File::read_at`]; `OutOfMemory` if it does not fit.
pub async fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let mut options = OpenOptions::new();
    let opened = options.read(true).open_marked(path.as_ref()).await?;
    let (mut all, tries) = (Vec::with_capacity(BEGINNING), Tries::new());
    let was_cached = opened.is_marked;
    let mut has_ended = was_cached && read_beginning(&opened.fd, &mut all, &tries);
    if has_ended {
        // Copying 4,000 bytes from the stack takes as long as these two calls of the allocator.
        all.shrink_to_fit();
        return Ok(all);
    }
    let file = opened.into_file(tries)?;
    if !was_cached {
        let read = op::ReadAt::new(file.fd().clone(), Tail(all), 0);
        let (result, tail) = start_read(read)?.await;
        all = tail.0;
        has_ended = result? == 0;
    }
    while !has_ended {
        if all.len() == all.capacity() {
            reserve(&mut all, file.known_len(0))?;
        }
        let (offset, room) = (all.len() as u64, all.capacity() - all.len());
        let (result, tail) = file.read_at(Tail(all), offset).await;
        all = tail.0;
        let count = result?;
        // The try that precedes each read shows whether a short read means the end.
        has_ended = count == 0 || (file.is_cacheable() && at_once::is_end(offset, count, room));
    }
    all.shrink_to_fit();
    Ok(all)
}

/// Makes room in a full vector for the rest of a file of `length` bytes, and for one byte more, so
/// that the end is seen without growing. Files of the kernel have a length of 0, and may be longer.
fn reserve(bytes: &mut Vec<u8>, length: u64) -> io::Result<()> {
    let missing = length.saturating_add(1).saturating_sub(bytes.len() as u64);
    match usize::try_from(missing) {
        Ok(0) => bytes.try_reserve(LEAST)?,
        Ok(missing) => bytes.try_reserve_exact(missing)?,
        Err(_) => return Err(io::ErrorKind::OutOfMemory.into()),
    }
    Ok(())
}

/// Reads a whole file of UTF-8 text.
///
/// # Errors
/// As [`read`]; `InvalidData` if it is something else.
pub async fn read_to_string(path: impl AsRef<Path>) -> io::Result<String> {
    String::from_utf8(read(path).await?)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Makes a file of these contents; what it contained before is gone.
///
/// # Errors
/// As [`File::create`] and [`File::write_at`].
pub async fn write(path: impl AsRef<Path>, contents: impl IoBuf) -> io::Result<()> {
    File::create(path).await?.write_all_at(contents, 0).await.0
}
