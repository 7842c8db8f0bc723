//! Reading a small file.

use crate::lanes::{Lane, ROOM, Step};
use crate::operation::Operation;
use io_uring::squeue::Entry;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// Pages are of this size, or of multiples of it.
const SMALLEST_PAGE: usize = 4096;

/// A file opened, read to its end if that is near, and closed. Started by [`Ring::read_small`](crate::Ring::read_small).
pub struct ReadSmall {
    lane: Lane,
    stage: Stage,
    waits: bool,
    /// How often it has been cancelled in vain since the last completion.
    cancels: u8,
    /// The result of the read, once it is known not to be all.
    read: i32,
    /// The result of the read behind it.
    behind: i32,
}

/// Cancellations of a stage of a chain.
const CANCELS: u8 = 16;

/// What completes next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The read of what is cached.
    Cached,
    /// The open that waits, and the reads behind it.
    Open,
    First,
    Second,
    /// What makes a descriptor of it.
    Install,
}

/// What came of it.
#[derive(Debug)]
pub enum Small {
    /// The whole file; it is closed again.
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

impl ReadSmall {
    pub(crate) fn new(lane: Lane, waits: bool) -> Self {
        Self {
            lane,
            stage: if waits { Stage::Open } else { Stage::Cached },
            waits,
            cancels: 0,
            read: 0,
            behind: 0,
        }
    }

    pub(crate) fn lane(&self) -> &Lane {
        &self.lane
    }

    pub(crate) fn waits(&self) -> bool {
        self.waits
    }

    /// A cancellation has found nothing.
    pub(crate) fn is_worth_another_cancel(&mut self) -> bool {
        self.cancels = self.cancels.saturating_add(1);
        self.cancels < CANCELS
    }

    /// A completion has arrived.
    pub(crate) fn step(&mut self, result: i32) -> Step {
        self.cancels = 0;
        match self.stage {
            Stage::Cached if result == -libc::EBADF => return Step::Ends { is_open: false },
            Stage::Cached => {
                self.read = result;
                if is_all(result) {
                    return Step::Ends { is_open: true };
                }
            }
            Stage::Open => {
                self.stage = Stage::First;
                return Step::Waits;
            }
            Stage::First => {
                self.stage = Stage::Second;
                self.read = result;
                return Step::Waits;
            }
            Stage::Second => {
                self.behind = if self.read < 0 { 0 } else { result };
                // A read that was cancelled may have been so because nothing was opened.
                if self.is_all() || self.read == -libc::ECANCELED {
                    return Step::Ends { is_open: true };
                }
            }
            Stage::Install => return Step::Ends { is_open: true },
        }
        self.stage = Stage::Install;
        Step::GoesOn
    }

    /// Has a read behind the others seen that there is nothing?
    fn is_all(&self) -> bool {
        self.read >= 0 && self.behind == 0
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

    /// The others are queued together.
    fn entry(&mut self) -> Entry {
        self.lane.installing()
    }

    fn complete(self, result: i32, _flags: u32) -> Small {
        let [read, behind] = [self.read, self.behind].map(|n| usize::try_from(n).unwrap_or(0));
        // SAFETY: the kernel says that it has read so many.
        let bytes = || unsafe { self.lane.bytes(read, behind) };
        match self.stage {
            Stage::Cached if result >= 0 => Small::All(bytes()),
            Stage::Second if self.is_all() => Small::All(bytes()),
            Stage::Install if result >= 0 => Small::Begun {
                // SAFETY: the kernel made this descriptor for us, and it is known here only.
                fd: unsafe { OwnedFd::from_raw_fd(result) },
                bytes: bytes(),
                error: [self.read, self.behind]
                    .into_iter()
                    .find(|&result| result < 0)
                    .map(|errno| io::Error::from_raw_os_error(-errno)),
            },
            _ => Small::Unopened,
        }
    }
}
