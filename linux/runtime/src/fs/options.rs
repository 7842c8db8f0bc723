//! Options for opening a file.

use std::future::poll_fn;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use upshift_ring::op;

use super::attempt_history::AttemptHistory;
use super::cached::{self, Attempt};
use super::{File, invalid};
use crate::context;
use crate::coroutine::coop;
use crate::net::start;

thread_local! {
    /// History of the attempts to open names without the ring on this thread.
    static NAMES: AttemptHistory = const { AttemptHistory::new() };
}

/// Largest number of attempts to open a name beneath a directory whose names change meanwhile.
const MAX_BENEATH_TRIES: u32 = 100;

/// Opens a file without the ring, if that is worth a try and possible without waiting.
async fn open_cached(path: &Path, flags: i32) -> Option<OwnedFd> {
    if !cached::is_openable(path, flags) || !NAMES.with(|names| names.is_due(None)) {
        return None;
    }
    poll_fn(coop::poll_proceed).await;
    context::with_open(|_| ())?;
    match cached::open(path, flags) {
        Attempt::Done(fd) => {
            NAMES.with(AttemptHistory::record_hit);
            Some(fd)
        }
        // This includes the cases where `openat2` is not permitted, and where the name does not
        // exist.
        Attempt::WouldBlock | Attempt::Unsupported => {
            NAMES.with(AttemptHistory::record_miss);
            None
        }
    }
}

/// An open file that may still have the mark of [`cached::open`].
pub(super) struct Opened {
    pub(super) fd: OwnedFd,
    /// The flags that the file is to have.
    flags: i32,
    /// Set if the file was opened without the ring, with `O_NONBLOCK` as a mark that must be
    /// removed; see [`cached::open`].
    pub(super) is_marked: bool,
}

impl Opened {
    pub(super) fn unmarked(fd: OwnedFd, flags: i32) -> Opened {
        Opened {
            fd,
            flags,
            is_marked: false,
        }
    }

    pub(super) fn marked(fd: OwnedFd, flags: i32) -> Opened {
        Opened {
            fd,
            flags,
            is_marked: flags & libc::O_NONBLOCK == 0,
        }
    }

    /// Removes the mark, and returns the file.
    pub(super) fn into_file(self, history: AttemptHistory) -> io::Result<File> {
        if self.is_marked {
            // SAFETY: `F_SETFL` takes no pointer.
            match unsafe { libc::fcntl(self.fd.as_raw_fd(), libc::F_SETFL, self.flags) } {
                0 => {}
                _ => return Err(io::Error::last_os_error()),
            }
        }
        Ok(File::new(self.fd, history))
    }
}

/// Options for opening a file, like [`std::fs::OpenOptions`].
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// # let path = std::env::temp_dir().join(format!("upshift-options-{}", std::process::id()));
/// use upshift::fs::{self, OpenOptions};
///
/// fs::write(&path, "one ").await?;
/// let log = OpenOptions::new().append(true).open(&path).await?;
/// log.write_all_at("two", 0).await.0?;
/// assert_eq!(fs::read_to_string(&path).await?, "one two");
/// # std::fs::remove_file(&path)?;
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
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
    /// Creates options that allow nothing yet.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use upshift::fs::OpenOptions;
    ///
    /// // Neither reading nor writing is allowed yet.
    /// let error = OpenOptions::new().open("/dev/null").await.unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    /// assert!(OpenOptions::new().read(true).open("/dev/null").await.is_ok());
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    #[must_use]
    pub fn new() -> OpenOptions {
        OpenOptions::default()
    }

    /// Allows reading.
    pub fn read(&mut self, read: bool) -> &mut OpenOptions {
        self.read = read;
        self
    }

    /// Allows writing.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// # let path = std::env::temp_dir().join(format!("upshift-write-{}", std::process::id()));
    /// use upshift::fs::{self, OpenOptions};
    ///
    /// fs::write(&path, "hello").await?;
    /// // The file is neither created nor truncated.
    /// let file = OpenOptions::new().write(true).open(&path).await?;
    /// file.write_all_at("J", 0).await.0?;
    /// assert_eq!(fs::read(&path).await?, b"Jello");
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn write(&mut self, write: bool) -> &mut OpenOptions {
        self.write = write;
        self
    }

    /// Appends, that is, all writes go to the end of the file, and their positions are ignored.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// # let path = std::env::temp_dir().join(format!("upshift-append-{}", std::process::id()));
    /// use upshift::fs::{self, OpenOptions};
    ///
    /// let log = OpenOptions::new().append(true).create(true).open(&path).await?;
    /// log.write_all_at("one ", 0).await.0?;
    /// log.write_all_at("two", 0).await.0?;
    /// assert_eq!(fs::read(&path).await?, b"one two");
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn append(&mut self, append: bool) -> &mut OpenOptions {
        self.append = append;
        self
    }

    /// Truncates the file.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// # let path = std::env::temp_dir().join(format!("upshift-truncate-{}", std::process::id()));
    /// use upshift::fs::{self, OpenOptions};
    ///
    /// fs::write(&path, "old contents").await?;
    /// let file = OpenOptions::new().write(true).truncate(true).open(&path).await?;
    /// assert_eq!(file.len().await?, 0);
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn truncate(&mut self, truncate: bool) -> &mut OpenOptions {
        self.truncate = truncate;
        self
    }

    /// Creates the file if it does not exist.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// # let path = std::env::temp_dir().join(format!("upshift-creat-{}", std::process::id()));
    /// use upshift::fs::OpenOptions;
    ///
    /// let mut options = OpenOptions::new();
    /// assert!(options.write(true).open(&path).await.is_err());
    /// assert!(options.create(true).open(&path).await.is_ok());
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn create(&mut self, create: bool) -> &mut OpenOptions {
        self.create = create;
        self
    }

    /// Creates the file, which must not exist.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// # let path = std::env::temp_dir().join(format!("upshift-excl-{}", std::process::id()));
    /// use upshift::fs::OpenOptions;
    ///
    /// let mut options = OpenOptions::new();
    /// options.write(true).create_new(true);
    /// assert!(options.open(&path).await.is_ok());
    /// let error = options.open(&path).await.unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists);
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn create_new(&mut self, create_new: bool) -> &mut OpenOptions {
        self.create_new = create_new;
        self
    }

    /// Sets further flags of `open(2)`, such as `O_DIRECT`.
    pub fn custom_flags(&mut self, flags: i32) -> &mut OpenOptions {
        self.flags = flags;
        self
    }

    /// Sets the permissions of a file that is created (default 0o666, less the umask).
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// # let path = std::env::temp_dir().join(format!("upshift-private-{}", std::process::id()));
    /// use upshift::fs::OpenOptions;
    ///
    /// let mut options = OpenOptions::new();
    /// let file = options.write(true).create_new(true).mode(0o600).open(&path).await?;
    /// assert_eq!(file.metadata().await?.mode() & 0o777, 0o600);
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn mode(&mut self, mode: u32) -> &mut OpenOptions {
        self.mode = Some(mode);
        self
    }

    /// Opens a file.
    ///
    /// # Cancellation safety
    /// If the future is dropped, the file may have been created or truncated; it is closed.
    ///
    /// # Errors
    /// `NotFound`, `PermissionDenied`, …; `InvalidInput` for a combination of options that has no
    /// meaning; also fails outside a runtime.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// # let path = std::env::temp_dir().join(format!("upshift-opts-{}", std::process::id()));
    /// use upshift::fs::OpenOptions;
    ///
    /// let mut options = OpenOptions::new();
    /// let file = options.read(true).write(true).create(true).open(&path).await?;
    /// file.write_all_at("hello", 0).await.0?;
    /// let (count, buffer) = file.read_at(vec![0; 16], 0).await;
    /// assert_eq!(&buffer[..count?], b"hello");
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub async fn open(&self, path: impl AsRef<Path>) -> io::Result<File> {
        let opened = self.open_marked(path.as_ref()).await?;
        let history = AttemptHistory::with_flags(opened.flags);
        opened.into_file(history)
    }

    /// Like [`open`](OpenOptions::open), but leaves the mark on a file that was opened without the
    /// ring.
    pub(super) async fn open_marked(&self, path: &Path) -> io::Result<Opened> {
        let flags = self.flags()?;
        if let Some(fd) = open_cached(path, flags).await {
            return Ok(Opened::marked(fd, flags));
        }
        let open = op::OpenAt::new(None, path, flags, self.mode.unwrap_or(0o666))?;
        Ok(Opened::unmarked(start(open)?.await?, flags))
    }

    /// Opens a file beneath a directory. `path` is relative to the directory. The call fails if a
    /// part of the path (`..`, an absolute path, a symbolic link, a magic link of procfs) leads out
    /// of the directory, even if the directory changes meanwhile.
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
    /// The errors of [`open`](OpenOptions::open); `CrossesDevices` (EXDEV) if the path leads out.
    pub async fn open_beneath(&self, directory: &File, path: impl AsRef<Path>) -> io::Result<File> {
        let flags = self.flags()?;
        let mut tries = 1..MAX_BENEATH_TRIES;
        loop {
            let open = op::OpenAt2::new(
                Some(directory.fd().clone()),
                path.as_ref(),
                flags,
                self.mode.unwrap_or(0o666),
                libc::RESOLVE_BENEATH | libc::RESOLVE_NO_MAGICLINKS,
            )?;
            match start(open)?.await {
                // A name changed during the lookup, so that the kernel cannot be sure that the path
                // stays beneath the directory, or no thread was available.
                Err(error)
                    if error.raw_os_error() == Some(libc::EAGAIN) && tries.next().is_some() => {}
                result => return Ok(File::new(result?, AttemptHistory::with_flags(flags))),
            }
        }
    }

    fn flags(&self) -> io::Result<i32> {
        let access = match (self.read, self.write || self.append) {
            (true, false) => libc::O_RDONLY,
            (false, true) => libc::O_WRONLY,
            (true, true) => libc::O_RDWR,
            (false, false) => {
                return Err(invalid(
                    "choose `read`, `write` or `append`: the options allow no access",
                ));
            }
        };
        let creates = self.create || self.create_new;
        if (self.truncate || creates) && access == libc::O_RDONLY {
            return Err(invalid("a file is created or truncated only for writing"));
        }
        if self.truncate && self.append {
            return Err(invalid("a file can be truncated or appended to, not both"));
        }
        let flag = |is_set: bool, flag: i32| if is_set { flag } else { 0 };
        Ok(access
            | self.flags
            | flag(self.append, libc::O_APPEND)
            | flag(self.truncate, libc::O_TRUNC)
            | flag(creates, libc::O_CREAT)
            | flag(self.create_new, libc::O_EXCL))
    }
}
