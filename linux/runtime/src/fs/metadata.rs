//! Metadata of a file: kind, length, times, owner and permissions.

use std::fmt;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, SystemTime};

/// The kind of a file.
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// use upshift::fs;
///
/// let root = fs::metadata("/").await?.file_type();
/// assert!(root.is_dir() && !root.is_file());
/// assert!(fs::metadata("/dev/null").await?.file_type().is_device());
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileType {
    format: u32,
}

impl FileType {
    pub(super) fn from_mode(mode: u32) -> FileType {
        FileType {
            format: mode & libc::S_IFMT,
        }
    }

    /// Returns true for a regular file.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.format == libc::S_IFREG
    }

    /// Returns true for a directory.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.format == libc::S_IFDIR
    }

    /// Returns true for a symbolic link.
    #[must_use]
    pub fn is_symlink(&self) -> bool {
        self.format == libc::S_IFLNK
    }

    /// Returns true for a named pipe.
    #[must_use]
    pub fn is_fifo(&self) -> bool {
        self.format == libc::S_IFIFO
    }

    /// Returns true for a Unix socket.
    #[must_use]
    pub fn is_socket(&self) -> bool {
        self.format == libc::S_IFSOCK
    }

    /// Returns true for a block or character device.
    #[must_use]
    pub fn is_device(&self) -> bool {
        matches!(self.format, libc::S_IFBLK | libc::S_IFCHR)
    }
}

impl From<std::fs::FileType> for FileType {
    fn from(kind: std::fs::FileType) -> FileType {
        use std::os::unix::fs::FileTypeExt;
        let format = if kind.is_file() {
            libc::S_IFREG
        } else if kind.is_dir() {
            libc::S_IFDIR
        } else if kind.is_symlink() {
            libc::S_IFLNK
        } else if kind.is_fifo() {
            libc::S_IFIFO
        } else if kind.is_socket() {
            libc::S_IFSOCK
        } else if kind.is_block_device() {
            libc::S_IFBLK
        } else {
            libc::S_IFCHR
        };
        FileType { format }
    }
}

impl fmt::Debug for FileType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.format {
            libc::S_IFREG => "file",
            libc::S_IFDIR => "directory",
            libc::S_IFLNK => "symbolic link",
            libc::S_IFIFO => "named pipe",
            libc::S_IFSOCK => "socket",
            libc::S_IFBLK => "block device",
            _ => "character device",
        })
    }
}

/// Length, kind, times, owner and permissions of a file, as returned by `statx(2)`.
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let metadata = upshift::fs::metadata("/usr").await?;
/// assert!(metadata.is_dir());
/// assert!(metadata.modified()? <= std::time::SystemTime::now());
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct Metadata {
    stat: libc::statx,
}

fn time(stamp: &libc::statx_timestamp) -> SystemTime {
    let seconds = Duration::from_secs(stamp.tv_sec.unsigned_abs());
    let nanos = Duration::from_nanos(u64::from(stamp.tv_nsec));
    let whole_seconds = match stamp.tv_sec {
        0.. => SystemTime::UNIX_EPOCH.checked_add(seconds),
        _ => SystemTime::UNIX_EPOCH.checked_sub(seconds),
    };
    // `SystemTime` represents every time of the kernel.
    whole_seconds.map_or(SystemTime::UNIX_EPOCH, |time| time + nanos)
}

impl Metadata {
    pub(super) fn new(stat: libc::statx) -> Metadata {
        Metadata { stat }
    }

    /// Returns the length in bytes.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// # let path = std::env::temp_dir().join(format!("upshift-size-{}", std::process::id()));
    /// use upshift::fs;
    ///
    /// fs::write(&path, "hello").await?;
    /// assert_eq!(fs::metadata(&path).await?.len(), 5);
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    #[expect(clippy::len_without_is_empty, reason = "as in the standard library")]
    #[must_use]
    pub fn len(&self) -> u64 {
        self.stat.stx_size
    }

    /// Returns the kind of the file.
    #[must_use]
    pub fn file_type(&self) -> FileType {
        FileType::from_mode(u32::from(self.stat.stx_mode))
    }

    /// Returns true for a regular file.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.file_type().is_file()
    }

    /// Returns true for a directory.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.file_type().is_dir()
    }

    /// Returns true for a symbolic link.
    #[must_use]
    pub fn is_symlink(&self) -> bool {
        self.file_type().is_symlink()
    }

    /// Returns the permissions.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// # let path = std::env::temp_dir().join(format!("upshift-perms-{}", std::process::id()));
    /// use upshift::fs;
    ///
    /// fs::write(&path, "hello").await?;
    /// let mut permissions = fs::metadata(&path).await?.permissions();
    /// permissions.set_readonly(true);
    /// fs::set_permissions(&path, permissions).await?;
    /// assert!(fs::metadata(&path).await?.permissions().readonly());
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    #[must_use]
    pub fn permissions(&self) -> Permissions {
        Permissions::from_mode(self.mode())
    }

    /// Returns kind and permissions, packed like in `stat(2)`.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// # let path = std::env::temp_dir().join(format!("upshift-mode-{}", std::process::id()));
    /// use upshift::fs::{self, OpenOptions};
    ///
    /// OpenOptions::new().write(true).create(true).mode(0o600).open(&path).await?;
    /// assert_eq!(fs::metadata(&path).await?.mode() & 0o777, 0o600);
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    #[must_use]
    pub fn mode(&self) -> u32 {
        u32::from(self.stat.stx_mode)
    }

    /// Returns the time of the last change of the contents.
    ///
    /// # Errors
    /// None on Linux; a `Result` like that of the standard library.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// # let path = std::env::temp_dir().join(format!("upshift-mtime-{}", std::process::id()));
    /// use upshift::fs;
    ///
    /// fs::write(&path, "first").await?;
    /// let before = fs::metadata(&path).await?.modified()?;
    /// fs::write(&path, "second").await?;
    /// assert!(fs::metadata(&path).await?.modified()? >= before);
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn modified(&self) -> io::Result<SystemTime> {
        Ok(time(&self.stat.stx_mtime))
    }

    /// Returns the time of the last read that the file system has recorded.
    ///
    /// # Errors
    /// None on Linux; a `Result` like that of the standard library.
    pub fn accessed(&self) -> io::Result<SystemTime> {
        Ok(time(&self.stat.stx_atime))
    }

    /// Returns the time of creation.
    ///
    /// # Errors
    /// `Unsupported` where the file system does not record it.
    pub fn created(&self) -> io::Result<SystemTime> {
        if self.stat.stx_mask & libc::STATX_BTIME == 0 {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "this file system does not keep the time of creation",
            ));
        }
        Ok(time(&self.stat.stx_btime))
    }

    /// Returns the id of the owner.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.stat.stx_uid
    }

    /// Returns the id of the group.
    #[must_use]
    pub fn gid(&self) -> u32 {
        self.stat.stx_gid
    }

    /// Returns the number of the file within its file system.
    #[must_use]
    pub fn ino(&self) -> u64 {
        self.stat.stx_ino
    }

    /// Returns the device number of the file system.
    #[must_use]
    pub fn dev(&self) -> u64 {
        libc::makedev(self.stat.stx_dev_major, self.stat.stx_dev_minor)
    }

    /// Returns the number of names (hard links).
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// # let dir = std::env::temp_dir().join(format!("upshift-nlink-{}", std::process::id()));
    /// # std::fs::create_dir(&dir)?;
    /// use upshift::fs;
    ///
    /// fs::write(dir.join("one"), "contents").await?;
    /// fs::hard_link(dir.join("one"), dir.join("other")).await?;
    /// assert_eq!(fs::metadata(dir.join("one")).await?.nlink(), 2);
    /// # std::fs::remove_dir_all(&dir)?;
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    #[must_use]
    pub fn nlink(&self) -> u64 {
        u64::from(self.stat.stx_nlink)
    }

    /// Returns the allocated space, in units of 512 bytes.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.stat.stx_blocks
    }
}

impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metadata")
            .field("file_type", &self.file_type())
            .field("len", &self.len())
            .field("permissions", &format_args!("{:o}", self.mode() & 0o7777))
            .field("modified", &time(&self.stat.stx_mtime))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negative_timestamps_are_before_1970() {
        // SAFETY: all zeroes is a valid value.
        let mut stamp: libc::statx_timestamp = unsafe { std::mem::zeroed() };
        stamp.tv_sec = -2;
        stamp.tv_nsec = 500_000_000;
        let before = SystemTime::UNIX_EPOCH.duration_since(time(&stamp)).unwrap();
        assert_eq!(before, Duration::from_millis(1500));
    }
}
