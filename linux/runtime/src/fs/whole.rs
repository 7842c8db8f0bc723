//! Whole files at once.

use std::future::poll_fn;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use upshift_ring::op::Small;
use upshift_ring::{IoBuf, IoBufMut};

use super::at_once::{self, Beginning, Tries};
use super::options::{self, Opened};
use super::{File, OpenOptions, current_ioprio};
use crate::context;
use crate::coroutine::coop;
use crate::worker::Worker;

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

thread_local! {
    /// Of files that this thread reads at once because they may be small.
    static SMALL: Tries = const { Tries::new() };
}

/// How far reading a file has come.
enum Begun {
    /// To its end.
    All(Vec<u8>),
    /// It is open.
    Open(Opened, Beginning),
}

impl Begun {
    /// Of what is cached.
    fn cached(small: Small) -> Option<Begun> {
        match small {
            Small::All(bytes) => Some(Begun::All(bytes)),
            Small::Begun { fd, bytes, error } => {
                let beginning = Beginning::of(bytes, error.as_ref());
                Some(Begun::Open(Opened::marked(fd, FLAGS), beginning))
            }
            Small::Unopened => None,
        }
    }

    /// Of what was waited for.
    fn waited_for(small: Small) -> Option<Begun> {
        match small {
            Small::All(bytes) => Some(Begun::All(bytes)),
            // The error is met again.
            Small::Begun { fd, bytes, .. } => {
                let beginning = at_once::behind(fd.as_fd(), bytes);
                Some(Begun::Open(Opened::unmarked(fd, FLAGS), beginning))
            }
            Small::Unopened => None,
        }
    }
}

/// How whole files are opened.
const FLAGS: i32 = libc::O_RDONLY;

/// Opens a file and reads its beginning; if that is all, it is closed again. Of what many coroutines ask for at the same time, as much as can be goes with one system call.
async fn begin(path: &Path) -> io::Result<Begun> {
    let may_be_small = at_once::is_openable(path, FLAGS) && SMALL.with(|small| small.is_due(None));
    let shares = may_be_small && context::with(|worker| worker.shares_files()) == Some(true);
    if let Some(begun) = begin_cached(path, shares).await {
        return Ok(begun);
    }
    if may_be_small && let Some(begun) = read_small(path, true).await.and_then(Begun::waited_for) {
        return Ok(begun);
    }
    // Also where there is nothing: this tells why.
    let mut options = OpenOptions::new();
    let opened = options.read(true).open_through_the_ring(path).await?;
    let beginning = at_once::beginning(opened.fd.as_fd());
    Ok(Begun::Open(opened, beginning))
}

/// As [`begin`], of a file whose name is cached, if names are tried now; in one call with others, or by calls of its own.
async fn begin_cached(path: &Path, shares: bool) -> Option<Begun> {
    if shares {
        if !options::is_name_due() {
            return None;
        }
        poll_fn(coop::poll_proceed).await;
        if let Some(small) = read_small(path, false).await {
            options::name_was_cached(!matches!(small, Small::Unopened));
            return Begun::cached(small);
        }
    }
    let fd = options::cached(path, FLAGS).await?;
    let beginning = at_once::beginning(fd.as_fd());
    Some(Begun::Open(Opened::marked(fd, FLAGS), beginning))
}

/// Opens a file, reads it to its end, and closes it, by one system call together with others. `None`: not now, or not here.
async fn read_small(path: &Path, waits: bool) -> Option<Small> {
    let start = |worker: &Worker| worker.start_small(path, waits, current_ioprio());
    let small = context::with(start)??.await;
    SMALL.with(|tries| match &small {
        Small::All(_) => tries.hit(),
        Small::Begun { error: None, .. } => tries.missed(),
        Small::Begun { .. } | Small::Unopened => {}
    });
    Some(small)
}

/// Reads a whole file. One that grows or is cut off meanwhile is read up to where its end is met. A FIFO is read until all that write to it have closed it, of which the first is
/// waited for.
///
/// # Errors
/// As [`File::open`] and [`File::read_at`]; `OutOfMemory` if it does not fit. A small file may be read where no descriptor is left for it.
pub async fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let (opened, beginning) = match begin(path.as_ref()).await? {
        Begun::All(bytes) => return Ok(bytes),
        Begun::Open(opened, beginning) => (opened, beginning),
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
