//! Whole files at once.

use std::future::poll_fn;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use upshift_ring::op::Small;
use upshift_ring::{IoBuf, IoBufMut};

use super::at_once::{self, Beginning};
use super::options::{self, Opened};
use super::{File, OpenOptions, current_ioprio};
use crate::{context, coop};

/// The smallest read that is tried.
const LEAST: usize = 64;

/// The room behind what a vector holds already.
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

/// Opens a file, reads it to its end, and closes it, in one system call with others that do the same, if that is worth a try. `None`: it is not.
async fn small(path: &Path) -> Option<Small> {
    let shares = context::with(|worker| worker.shares_files()) == Some(true);
    if !shares || !at_once::is_openable(path, libc::O_RDONLY) {
        return None;
    }
    if !options::is_name_due() {
        return Some(Small::Unopened);
    }
    poll_fn(coop::poll_proceed).await;
    let small = context::with(|worker| worker.start_small(path, current_ioprio()))??.await;
    options::name_was_cached(!matches!(small, Small::Unopened));
    Some(small)
}

/// Reads a whole file.
///
/// # Errors
/// As [`File::open`] and [`File::read_at`]; `OutOfMemory` if it does not fit.
pub async fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let (opened, beginning) = match small(path.as_ref()).await {
        Some(Small::All(bytes)) => return Ok(bytes),
        Some(Small::Begun { fd, bytes, error }) => (
            Opened::marked(fd, libc::O_RDONLY),
            Beginning::of(bytes, error.as_ref()),
        ),
        tried => {
            let mut options = OpenOptions::new();
            options.read(true);
            let opened = match tried {
                None => options.open_marked(path.as_ref()).await?,
                Some(_) => options.open_through_the_ring(path.as_ref()).await?,
            };
            let beginning = at_once::beginning(opened.fd.as_fd());
            (opened, beginning)
        }
    };
    let mut all = beginning.bytes;
    if beginning.is_all {
        return Ok(all);
    }
    let file = opened.into_file(beginning.tries)?;
    let length = if beginning.is_local {
        file.local_len()?
    } else {
        file.len().await?
    };
    let length =
        usize::try_from(length).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
    // One more, so that the end is seen without growing. Files of the kernel say 0.
    let room = length.saturating_add(1).max(LEAST);
    all.try_reserve_exact(room.saturating_sub(all.len()))?;
    loop {
        if all.capacity() - all.len() < LEAST && all.len() != length {
            all.try_reserve(all.len().max(LEAST))?;
        }
        let offset = all.len() as u64;
        let room = all.capacity() - all.len();
        let (result, tail) = file.read_at(Tail(all), offset).await;
        all = tail.0;
        let count = result?;
        if count == 0 || (beginning.is_local && at_once::is_end(offset, count, room)) {
            return Ok(all);
        }
        if all.capacity() == all.len() {
            all.try_reserve(LEAST)?;
        }
    }
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
