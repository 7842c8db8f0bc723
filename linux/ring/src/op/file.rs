//! Operations that open, inspect, sync and close files.

use super::outcome;
use super::path::PathAt;
use crate::fd::Fd;
use crate::operation::Operation;
use io_uring::{opcode, squeue::Entry, types};
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;
use std::{fmt, io, mem};

/// Opens a file; resolves to its descriptor, which is close-on-exec.
#[derive(Debug)]
pub struct OpenAt {
    path: PathAt,
    flags: i32,
    mode: libc::mode_t,
}

impl OpenAt {
    /// Opens `path`, relative to `directory` or, if `None`, to the working directory. `flags` and
    /// `mode` are those of `openat(2)`.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if the path contains a NUL byte.
    pub fn new(
        directory: Option<Fd>,
        path: impl AsRef<Path>,
        flags: i32,
        mode: u32,
    ) -> io::Result<Self> {
        Ok(Self {
            path: PathAt::new(directory, path)?,
            flags: flags | libc::O_CLOEXEC,
            mode,
        })
    }
}

// SAFETY: the path is heap memory that the operation owns, so the pointer stays valid.
unsafe impl Operation for OpenAt {
    const DROP_RUNS_USER_CODE: bool = false;

    type Output = io::Result<OwnedFd>;

    fn entry(&mut self) -> Entry {
        opcode::OpenAt::new(self.path.directory(), self.path.relative.as_ptr())
            .flags(self.flags)
            .mode(self.mode)
            .build()
    }

    fn complete(self, result: i32, _flags: u32) -> Self::Output {
        outcome(result)?;
        // SAFETY: the kernel made this descriptor for this operation and no other code knows it, so
        // the `OwnedFd` is its only owner.
        Ok(unsafe { OwnedFd::from_raw_fd(result) })
    }
}

/// Reads the attributes of a file.
pub struct Statx {
    path: PathAt,
    flags: i32,
    answer: Box<libc::statx>,
}

impl Statx {
    /// Reads the attributes of a path, relative to `directory` or, if `None`, to the working
    /// directory. `flags` are those of `statx(2)`.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if the path contains a NUL byte.
    pub fn new(directory: Option<Fd>, path: impl AsRef<Path>, flags: i32) -> io::Result<Self> {
        Ok(Self {
            path: PathAt::new(directory, path)?,
            flags,
            // SAFETY: all zeroes is a valid value.
            answer: Box::new(unsafe { mem::zeroed() }),
        })
    }

    /// Reads the attributes of an open file.
    pub fn from_fd(fd: Fd) -> Self {
        Self {
            path: PathAt::from_fd(fd),
            flags: libc::AT_EMPTY_PATH,
            // SAFETY: all zeroes is a valid value.
            answer: Box::new(unsafe { mem::zeroed() }),
        }
    }
}

// SAFETY: path and answer are heap memory that the operation owns, so the pointers stay valid.
unsafe impl Operation for Statx {
    const DROP_RUNS_USER_CODE: bool = false;

    type Output = io::Result<Box<libc::statx>>;

    fn entry(&mut self) -> Entry {
        let answer: *mut libc::statx = &raw mut *self.answer;
        opcode::Statx::new(
            self.path.directory(),
            self.path.relative.as_ptr(),
            answer.cast(),
        )
        .flags(self.flags)
        .mask(libc::STATX_BASIC_STATS | libc::STATX_BTIME)
        .build()
    }

    fn complete(self, result: i32, _flags: u32) -> Self::Output {
        outcome(result).map(|_| self.answer)
    }
}

impl fmt::Debug for Statx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Statx")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// Writes a file's data and attributes, or only its data, to the device.
#[derive(Debug)]
pub struct Fsync {
    fd: Fd,
    flags: types::FsyncFlags,
}

impl Fsync {
    /// Writes data and attributes (`fsync`).
    pub fn new(fd: Fd) -> Self {
        Self {
            fd,
            flags: types::FsyncFlags::empty(),
        }
    }

    /// Writes data only (`fdatasync`).
    pub fn data(fd: Fd) -> Self {
        Self {
            fd,
            flags: types::FsyncFlags::DATASYNC,
        }
    }
}

// SAFETY: the entry has no pointers, so no memory must stay valid.
unsafe impl Operation for Fsync {
    const DROP_RUNS_USER_CODE: bool = false;

    type Output = io::Result<()>;

    fn entry(&mut self) -> Entry {
        opcode::Fsync::new(self.fd.target())
            .flags(self.flags)
            .build()
    }

    fn complete(self, result: i32, _flags: u32) -> Self::Output {
        outcome(result).map(drop)
    }
}

/// Truncates a file, or extends it by a hole. Needs Linux 6.9; older kernels answer EINVAL.
#[derive(Debug)]
pub struct Ftruncate {
    fd: Fd,
    length: u64,
}

impl Ftruncate {
    /// Sets the length to `length` bytes.
    pub fn new(fd: Fd, length: u64) -> Self {
        Self { fd, length }
    }
}

// SAFETY: the entry has no pointers, so no memory must stay valid.
unsafe impl Operation for Ftruncate {
    const DROP_RUNS_USER_CODE: bool = false;

    type Output = io::Result<()>;

    fn entry(&mut self) -> Entry {
        opcode::Ftruncate::new(self.fd.target(), self.length).build()
    }

    fn complete(self, result: i32, _flags: u32) -> Self::Output {
        outcome(result).map(drop)
    }
}
