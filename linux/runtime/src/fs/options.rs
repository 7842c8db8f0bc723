//! How a file is opened.

use std::future::poll_fn;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use upshift_ring::op;

use super::at_once::{self, Now};
use super::tries::Tries;
use super::{File, invalid};
use crate::context;
use crate::coroutine::coop;
use crate::net::start;

thread_local! {
    /// Tries on the names that this thread opens.
    static NAMES: Tries = const { Tries::new() };
}

/// How often the kernel is asked for a name beneath a directory in which names change meanwhile.
const BENEATH: u32 = 100;

/// Opens a file at once if that is worth a try and goes without waiting.
async fn open_cached(path: &Path, flags: i32) -> Option<OwnedFd> {
    if !at_once::is_openable(path, flags) || !NAMES.with(|names| names.is_due(None)) {
        return None;
    }
    poll_fn(coop::poll_proceed).await;
    context::with_open(|_| ())?;
    match at_once::open(path, flags) {
        Now::Done(fd) => {
            NAMES.with(Tries::hit);
            Some(fd)
        }
        // Also where `openat2` is forbidden, or there is no such name.
        Now::Waits | Now::Cannot => {
            NAMES.with(Tries::missed);
            None
        }
    }
}

/// A file that has just been opened.
pub(super) struct Opened {
    pub(super) fd: OwnedFd,
    /// The flags that the file is to have.
    flags: i32,
    /// Set if it was opened without the ring, and has `O_NONBLOCK`, which it is not to have; see
    /// [`at_once::open`].
    pub(super) is_marked: bool,
}

impl Opened {
    /// Opened with these flags, as they are.
    pub(super) fn unmarked(fd: OwnedFd, flags: i32) -> Opened {
        Opened {
            fd,
            flags,
            is_marked: false,
        }
    }

    /// Opened with these flags and the mark.
    pub(super) fn marked(fd: OwnedFd, flags: i32) -> Opened {
        Opened {
            fd,
            flags,
            is_marked: flags & libc::O_NONBLOCK == 0,
        }
    }

    /// Takes the mark back.
    pub(super) fn into_file(self, tries: Tries) -> io::Result<File> {
        if self.is_marked {
            // SAFETY: no pointers.
            match unsafe { libc::fcntl(self.fd.as_raw_fd(), libc::F_SETFL, self.flags) } {
                0 => {}
                _ => return Err(io::Error::last_os_error()),
            }
        }
        Ok(File::new(self.fd, tries))
    }
}

/// How to open a file, as [`std::fs::OpenOptions`].
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    read: bool,
    write: bool,
    append: bool,
    truncate: bool,
    create: bool,
    create_new: bool,
    flags: i32,
    mode: Option<u32>,
}

impl OpenOptions {
    /// Nothing allowed yet.
    #[must_use]
    pub fn new() -> OpenOptions {
        OpenOptions::default()
    }

    /// May it be read?
    pub fn read(&mut self, read: bool) -> &mut OpenOptions {
        self.read = read;
        self
    }

    /// May it be written?
    pub fn write(&mut self, write: bool) -> &mut OpenOptions {
        self.write = write;
        self
    }

    /// Do writes go to the end, wherever they are addressed to?
    pub fn append(&mut self, append: bool) -> &mut OpenOptions {
        self.append = append;
        self
    }

    /// Is what it contains thrown away?
    pub fn truncate(&mut self, truncate: bool) -> &mut OpenOptions {
        self.truncate = truncate;
        self
    }

    /// Is it created if it is not there?
    pub fn create(&mut self, create: bool) -> &mut OpenOptions {
        self.create = create;
        self
    }

    /// Must it not be there yet?
    pub fn create_new(&mut self, create_new: bool) -> &mut OpenOptions {
        self.create_new = create_new;
        self
    }

    /// Further flags of `open(2)`, such as `O_DIRECT`.
    pub fn custom_flags(&mut self, flags: i32) -> &mut OpenOptions {
        self.flags = flags;
        self
    }

    /// The permissions of a file that is created (default 0o666, less the umask).
    pub fn mode(&mut self, mode: u32) -> &mut OpenOptions {
        self.mode = Some(mode);
        self
    }

    /// Opens a file.
    ///
    /// # Errors
    /// `NotFound`, `PermissionDenied`, …; `InvalidInput` for a combination that
    /// means nothing; and outside a runtime.
    pub async fn open(&self, path: impl AsRef<Path>) -> io::Result<File> {
        let opened = self.open_marked(path.as_ref()).await?;
        let tries = Tries::with_flags(opened.flags);
        opened.into_file(tries)
    }

    /// As [`open`](OpenOptions::open), but a file that was opened at once is still marked.
    pub(super) async fn open_marked(&self, path: &Path) -> io::Result<Opened> {
        let flags = self.flags()?;
        if let Some(fd) = open_cached(path, flags).await {
            return Ok(Opened::marked(fd, flags));
        }
        let open = op::OpenAt::new(None, path, flags, self.mode.unwrap_or(0o666))?;
        Ok(Opened::unmarked(start(open)?.await?, flags))
    }

    /// Opens a file beneath a directory: `path` is relative to it, and nothing in
    /// it (`..`, an absolute path, a symbolic link, a magic link of procfs) leads out
    /// of it, whatever is done to the directory meanwhile.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use upshift::fs::{File, OpenOptions};
    ///
    /// let root = File::open("/usr").await?;
    /// let mut options = OpenOptions::new();
    /// let leading_out = options.read(true).open_beneath(&root, "../etc/passwd");
    /// assert!(leading_out.await.is_err());
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`open`](OpenOptions::open); `CrossesDevices` (EXDEV) if the path leads out.
    pub async fn open_beneath(&self, directory: &File, path: impl AsRef<Path>) -> io::Result<File> {
        let flags = self.flags()?;
        let mut tries = 1..BENEATH;
        loop {
            let open = op::OpenAt2::new(
                Some(directory.fd().clone()),
                path.as_ref(),
                flags,
                self.mode.unwrap_or(0o666),
                libc::RESOLVE_BENEATH | libc::RESOLVE_NO_MAGICLINKS,
            )?;
            match start(open)?.await {
                // Something was renamed on the way: the kernel cannot be sure. Or no thread can be had for it.
                Err(error)
                    if error.raw_os_error() == Some(libc::EAGAIN) && tries.next().is_some() => {}
                result => return Ok(File::new(result?, Tries::with_flags(flags))),
            }
        }
    }

    /// What `open(2)` is told.
    fn flags(&self) -> io::Result<i32> {
        let access = match (self.read, self.write || self.append) {
            (true, false) => libc::O_RDONLY,
            (false, true) => libc::O_WRONLY,
            (true, true) => libc::O_RDWR,
            (false, false) => return Err(invalid("open a file for reading or writing")),
        };
        let creates = self.create || self.create_new;
        if (self.truncate || creates) && access == libc::O_RDONLY {
            return Err(invalid("a file is created or truncated for writing only"));
        }
        if self.truncate && self.append {
            return Err(invalid("a file is either truncated or appended to"));
        }
        let flag = |on: bool, flag: i32| if on { flag } else { 0 };
        Ok(access
            | self.flags
            | flag(self.append, libc::O_APPEND)
            | flag(self.truncate, libc::O_TRUNC)
            | flag(creates, libc::O_CREAT)
            | flag(self.create_new, libc::O_EXCL))
    }
}
