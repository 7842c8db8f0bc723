//! Reading a small file.

use crate::lanes::{Course, Lane, Outcome};
use crate::operation::Operation;
use io_uring::squeue::Entry;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// A file opened, read to its end if that is near, and closed. Started by [`Ring::read_small`](crate::Ring::read_small).
pub struct ReadSmall {
    pub(crate) lane: Lane,
    pub(crate) course: Course,
    /// How often it has been cancelled in vain since the last completion.
    pub(crate) cancels: u32,
}

/// What came of it.
#[derive(Debug)]
pub enum Small {
    /// The whole file; it is closed, or about to be.
    All(Vec<u8>),
    /// It is open, and not read to its end: it is longer, or not cached, or its kind does not know of reads that do not wait.
    Begun {
        /// The open file, close-on-exec; with `O_NONBLOCK` if it was to be read without waiting.
        fd: OwnedFd,
        /// The beginning of it.
        bytes: Vec<u8>,
        /// The error of the read.
        error: Option<io::Error>,
    },
    /// It was not opened: nothing has the name, or it is not cached, …
    Unopened,
}

// SAFETY: what the entries point to lies in the lane, which does not move.
unsafe impl Operation for ReadSmall {
    const FOREIGN: bool = false;

    type Output = Small;

    /// The others are queued together.
    fn entry(&mut self) -> Entry {
        self.lane.installing()
    }

    fn complete(self, _result: i32, _flags: u32) -> Small {
        let results = [self.course.read(), self.course.behind()];
        let [read, behind] = results.map(|n| usize::try_from(n).unwrap_or(0));
        // SAFETY: the kernel says that it has read so many.
        let bytes = || unsafe { self.lane.bytes(read, behind) };
        match self.course.outcome() {
            Outcome::All => Small::All(bytes()),
            Outcome::Begun(fd) => Small::Begun {
                // SAFETY: the kernel made this descriptor for us, and it is known here only.
                fd: unsafe { OwnedFd::from_raw_fd(fd) },
                bytes: bytes(),
                error: results
                    .into_iter()
                    .find(|&result| result < 0)
                    .map(|errno| io::Error::from_raw_os_error(-errno)),
            },
            Outcome::Unopened => Small::Unopened,
        }
    }
}
