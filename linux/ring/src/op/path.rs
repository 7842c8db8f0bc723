//! Operations that make, move and remove names in directories. The kernel executes them on a worker
//! thread.

use super::outcome;
use crate::fd::Fd;
use crate::operation::Operation;
use io_uring::{opcode, squeue::Entry, types};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

fn path_to_c(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            "a path must not contain a NUL byte",
        )
    })
}

#[derive(Debug)]
pub(super) struct PathAt {
    directory: Option<Fd>,
    pub(super) relative: CString,
}

impl PathAt {
    pub(super) fn new(directory: Option<Fd>, path: impl AsRef<Path>) -> io::Result<Self> {
        Ok(Self {
            directory,
            relative: path_to_c(path.as_ref())?,
        })
    }

    /// Creates a reference to an open file itself; the call needs AT_EMPTY_PATH.
    pub(super) fn from_fd(fd: Fd) -> Self {
        Self {
            directory: Some(fd),
            relative: CString::default(),
        }
    }

    pub(super) fn directory(&self) -> types::Fd {
        types::Fd(
            self.directory
                .as_ref()
                .map_or(libc::AT_FDCWD, |fd| fd.as_raw_fd()),
        )
    }
}

/// Opens a file with restrictions on how its path may be resolved (`openat2(2)`); resolves to its
/// descriptor, which is close-on-exec.
#[derive(Debug)]
pub struct OpenAt2 {
    path: PathAt,
    how: types::OpenHow,
}

impl OpenAt2 {
    /// Opens `path`, relative to `directory` or, if `None`, to the working directory. `flags` and
    /// `mode` are those of `openat(2)`, `resolve` is that of `openat2(2)`: `RESOLVE_BENEATH`,
    /// `RESOLVE_NO_SYMLINKS`, …
    ///
    /// # Errors
    ///
    /// `InvalidInput` if the path contains a NUL byte.
    pub fn new(
        directory: Option<Fd>,
        path: impl AsRef<Path>,
        flags: i32,
        mode: u32,
        resolve: u64,
    ) -> io::Result<Self> {
        // The kernel refuses a mode unless the call may create a file.
        let creates = flags & (libc::O_CREAT | libc::O_TMPFILE & !libc::O_DIRECTORY) != 0;
        let how = types::OpenHow::new()
            .flags((flags | libc::O_CLOEXEC) as u64)
            .mode(if creates { u64::from(mode) } else { 0 })
            .resolve(resolve);
        Ok(Self {
            path: PathAt::new(directory, path)?,
            how,
        })
    }
}

// SAFETY: the path is heap memory that the operation owns, and `how` lies in the operation, which
// does not move, so the pointers stay valid.
unsafe impl Operation for OpenAt2 {
    const DROP_RUNS_USER_CODE: bool = false;

    type Output = io::Result<OwnedFd>;

    fn entry(&mut self) -> Entry {
        let path = self.path.relative.as_ptr();
        opcode::OpenAt2::new(self.path.directory(), path, &raw const self.how).build()
    }

    fn complete(self, result: i32, _flags: u32) -> Self::Output {
        outcome(result)?;
        // SAFETY: the kernel made this descriptor for this operation and no other code knows it, so
        // the `OwnedFd` is its only owner.
        Ok(unsafe { OwnedFd::from_raw_fd(result) })
    }
}

/// Makes a directory.
#[derive(Debug)]
pub struct MkDirAt {
    path: PathAt,
    mode: u32,
}

impl MkDirAt {
    /// Makes `path`, relative to `directory` or, if `None`, to the working directory. The umask
    /// applies to `mode`.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if the path contains a NUL byte.
    pub fn new(directory: Option<Fd>, path: impl AsRef<Path>, mode: u32) -> io::Result<Self> {
        Ok(Self {
            path: PathAt::new(directory, path)?,
            mode,
        })
    }
}

// SAFETY: the path is heap memory that the operation owns, so the pointer stays valid.
unsafe impl Operation for MkDirAt {
    const DROP_RUNS_USER_CODE: bool = false;

    type Output = io::Result<()>;

    fn entry(&mut self) -> Entry {
        opcode::MkDirAt::new(self.path.directory(), self.path.relative.as_ptr())
            .mode(self.mode)
            .build()
    }

    fn complete(self, result: i32, _flags: u32) -> Self::Output {
        outcome(result).map(drop)
    }
}

/// Removes a name of a file, or an empty directory.
#[derive(Debug)]
pub struct UnlinkAt {
    path: PathAt,
    flags: i32,
}

impl UnlinkAt {
    /// Removes a name of a file, relative to `directory` or, if `None`, to the working directory.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if the path contains a NUL byte.
    pub fn file(directory: Option<Fd>, path: impl AsRef<Path>) -> io::Result<Self> {
        Ok(Self {
            path: PathAt::new(directory, path)?,
            flags: 0,
        })
    }

    /// Removes an empty directory; `path` is relative as in [`file`](Self::file).
    ///
    /// # Errors
    ///
    /// `InvalidInput` if the path contains a NUL byte.
    pub fn directory(directory: Option<Fd>, path: impl AsRef<Path>) -> io::Result<Self> {
        Ok(Self {
            flags: libc::AT_REMOVEDIR,
            ..Self::file(directory, path)?
        })
    }
}

// SAFETY: the path is heap memory that the operation owns, so the pointer stays valid.
unsafe impl Operation for UnlinkAt {
    const DROP_RUNS_USER_CODE: bool = false;

    type Output = io::Result<()>;

    fn entry(&mut self) -> Entry {
        opcode::UnlinkAt::new(self.path.directory(), self.path.relative.as_ptr())
            .flags(self.flags)
            .build()
    }

    fn complete(self, result: i32, _flags: u32) -> Self::Output {
        outcome(result).map(drop)
    }
}

macro_rules! two_paths {
    ($(#[$documentation:meta])* $name:ident, $code:ident) => {
        $(#[$documentation])*
        #[derive(Debug)]
        pub struct $name {
            from: PathAt,
            to: PathAt,
        }

        impl $name {
            /// Creates the operation. Each path is relative to the directory in the argument before
            /// it or, if that is `None`, to the working directory.
            ///
            /// # Errors
            ///
            /// `InvalidInput` if a path contains a NUL byte.
            pub fn new(
                old_directory: Option<Fd>,
                old: impl AsRef<Path>,
                new_directory: Option<Fd>,
                new: impl AsRef<Path>,
            ) -> io::Result<Self> {
                Ok(Self {
                    from: PathAt::new(old_directory, old)?,
                    to: PathAt::new(new_directory, new)?,
                })
            }
        }

        // SAFETY: the paths are heap memory that the operation owns, so the pointers stay valid.
        unsafe impl Operation for $name {
            const DROP_RUNS_USER_CODE: bool = false;

            type Output = io::Result<()>;

            fn entry(&mut self) -> Entry {
                opcode::$code::new(
                    self.from.directory(),
                    self.from.relative.as_ptr(),
                    self.to.directory(),
                    self.to.relative.as_ptr(),
                )
                .build()
            }

            fn complete(self, result: i32, _flags: u32) -> Self::Output {
                outcome(result).map(drop)
            }
        }
    };
}

two_paths! {
    /// Renames a file, and replaces the file that had the new name.
    RenameAt, RenameAt
}

two_paths! {
    /// Gives a file another name, which is a hard link.
    LinkAt, LinkAt
}

/// Makes a symbolic link.
#[derive(Debug)]
pub struct SymlinkAt {
    target: CString,
    link: PathAt,
}

impl SymlinkAt {
    /// Makes a link to `target`, which need not exist. The path of the link is `link`, relative to
    /// `directory` or, if `None`, to the working directory.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if a path contains a NUL byte.
    pub fn new(
        target: impl AsRef<Path>,
        directory: Option<Fd>,
        link: impl AsRef<Path>,
    ) -> io::Result<Self> {
        Ok(Self {
            target: path_to_c(target.as_ref())?,
            link: PathAt::new(directory, link)?,
        })
    }
}

// SAFETY: the paths are heap memory that the operation owns, so the pointers stay valid.
unsafe impl Operation for SymlinkAt {
    const DROP_RUNS_USER_CODE: bool = false;

    type Output = io::Result<()>;

    fn entry(&mut self) -> Entry {
        opcode::SymlinkAt::new(
            self.link.directory(),
            self.target.as_ptr(),
            self.link.relative.as_ptr(),
        )
        .build()
    }

    fn complete(self, result: i32, _flags: u32) -> Self::Output {
        outcome(result).map(drop)
    }
}
