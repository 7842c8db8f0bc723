//! Reading a small file whose name and contents are cached.

use crate::lanes::{Lane, ROOM, Step};
use crate::operation::Operation;
use io_uring::squeue::Entry;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// Pages are of this size, or of multiples of it.
const SMALLEST_PAGE: usize = 4096;

/// A file opened, read to its end if that is near and cached, and closed. Started by [`Ring::read_small`](crate::Ring::read_small).
pub struct ReadSmall {
    lane: Lane,
    ioprio: u16,
    /// The result of the read, once it is known not to be all.
    read: Option<i32>,
}

/// What came of it.
#[derive(Debug)]
pub enum Small {
    /// The whole file; it is closed again.
    All(Vec<u8>),
    /// It is open, and not read to its end: it is longer, not cached, or does not know of reads that do not wait.
    Begun {
        /// The open file, close-on-exec and with `O_NONBLOCK`.
        fd: OwnedFd,
        /// The beginning of it.
        bytes: Vec<u8>,
        /// The error of the read.
        error: Option<io::Error>,
    },
    /// It was not opened: the name is not cached, nothing has it, …
    Unopened,
}

impl ReadSmall {
    pub(crate) fn new(lane: Lane, ioprio: u16) -> Self {
        Self {
            lane,
            ioprio,
            read: None,
        }
    }

    pub(crate) fn lane(&self) -> &Lane {
        &self.lane
    }

    /// A completion has arrived.
    pub(crate) fn step(&mut self, result: i32) -> Step {
        match self.read {
            None if result == -libc::EBADF => Step::Ends { is_open: false },
            None if is_all(result) => Step::Ends { is_open: true },
            None => {
                self.read = Some(result);
                Step::GoesOn
            }
            Some(_) => Step::Ends { is_open: true },
        }
    }
}

/// Is it the result of a read that has seen the end of the file? What is not cached begins with a page: a read that is cut short within one is cut short by the end.
fn is_all(result: i32) -> bool {
    usize::try_from(result)
        .is_ok_and(|count| count == 0 || (count < ROOM && !count.is_multiple_of(SMALLEST_PAGE)))
}

// SAFETY: what the entries point to lies in the lane, which does not move.
unsafe impl Operation for ReadSmall {
    const FOREIGN: bool = false;

    type Output = Small;

    fn entry(&mut self) -> Entry {
        match self.read {
            None => self.lane.reading(self.ioprio),
            Some(_) => self.lane.installing(),
        }
    }

    fn complete(self, result: i32, _flags: u32) -> Small {
        let read = self.read.unwrap_or(result);
        let count = usize::try_from(read).unwrap_or(0);
        // SAFETY: the kernel says that it has read so many.
        let bytes = || unsafe { self.lane.bytes(count) };
        match self.read {
            None if result >= 0 => Small::All(bytes()),
            Some(_) if result >= 0 => Small::Begun {
                // SAFETY: the kernel made this descriptor for us, and it is known here only.
                fd: unsafe { OwnedFd::from_raw_fd(result) },
                bytes: bytes(),
                error: (read < 0).then(|| io::Error::from_raw_os_error(-read)),
            },
            _ => Small::Unopened,
        }
    }
}
