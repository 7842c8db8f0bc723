//! Opening names below the root.
//!
//! `openat2(2)` with `RESOLVE_BENEATH`: the kernel follows symbolic links, but no step of the
//! resolution may leave the root, whatever the name, the links and renames of folders
//! meanwhile. First with `RESOLVE_CACHED`, which does not wait for a disk and so may be done in a
//! poll; if the kernel would have to wait, on a thread for blocking calls.
//!
//! The root's own path is the operator's, so all links in it are followed. The path is resolved
//! again for the first request after [`FRESH`]: another folder in its place (a link to the next
//! release, a folder made anew) is served without a reload.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, open, openat2};
use rustix::io::Errno;

use super::fields::Fields;
use super::lately::Lately;
use crate::clock;

/// The longest that requests are answered from a folder after its path has been resolved.
const FRESH: Duration = Duration::from_secs(1);

/// The folder that is served.
#[derive(Debug)]
pub(crate) struct Root {
    path: PathBuf,
    folder: RwLock<Folder>,
}

/// The folder that a root's path named at a time of the [`clock`].
#[derive(Debug)]
struct Folder {
    fd: Arc<OwnedFd>,
    at: u64,
}

impl Folder {
    fn open(path: &Path, how: ResolveFlags) -> Result<Folder, Errno> {
        let at = clock::nanos();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = if how.is_empty() {
            open(path, flags, Mode::empty())
        } else {
            openat2(CWD, path, flags, Mode::empty(), how)
        };
        let fd = Arc::new(opened?);
        Ok(Folder { fd, at })
    }

    fn is_fresh(&self) -> bool {
        let age = clock::nanos().saturating_sub(self.at);
        u128::from(age) < FRESH.as_nanos()
    }
}

/// What a name stands for: several requests may have it.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) file: Arc<File>,
    pub(super) kind: FileType,
    pub(super) size: u64,
    /// Seconds since 1970, and nanoseconds.
    pub(super) modified: (i64, u64),
    /// Of the file as it is, under the name by which it was found.
    pub(super) fields: OnceLock<Fields>,
    /// All of it, if it is small and was in the page cache.
    pub(super) whole: OnceLock<Option<Bytes>>,
}

/// Where a request looks for files: what it finds is not older than the request.
#[derive(Clone, Copy)]
pub(crate) struct Looking<'a> {
    pub(crate) root: &'a Arc<Root>,
    pub(crate) lately: &'a Lately,
    /// When it had come, in time of the [`clock`].
    pub(crate) since: u64,
}

impl Looking<'_> {
    /// Opens a name below the root for reading; `None` if there is nothing that may be served.
    pub(super) async fn find(self, name: &str) -> io::Result<Option<Arc<Found>>> {
        let Looking {
            root,
            lately,
            since,
        } = self;
        if let Some(found) = lately.find(root, name, since) {
            return Ok(found);
        }
        let now = clock::nanos();
        let found = root.find(name).await?.map(Arc::new);
        // What is no file may mind being open: a FIFO has a writer at its other end.
        let is_kept = |found: &Arc<Found>| found.kind.is_file() || found.kind.is_dir();
        if found.as_ref().is_none_or(is_kept) {
            lately.keep(root, name, now, found.as_ref());
        }
        Ok(found)
    }
}

impl Root {
    /// Opens the folder.
    pub(crate) fn open(path: &Path) -> io::Result<Arc<Root>> {
        let path = std::path::absolute(path)?;
        let folder = Folder::open(&path, ResolveFlags::empty())?;
        Ok(Arc::new(Root {
            path,
            folder: RwLock::new(folder),
        }))
    }

    /// Returns the folder that the path named within the last [`FRESH`]. Waits for a disk unless
    /// `how` forbids it.
    ///
    /// # Errors
    /// That of the kernel if the path names no folder: nothing is served until it does.
    fn folder(&self, how: ResolveFlags) -> Result<Arc<OwnedFd>, Errno> {
        {
            let folder = self.folder.read().unwrap_or_else(PoisonError::into_inner);
            if folder.is_fresh() {
                return Ok(folder.fd.clone());
            }
        }
        let opened = Folder::open(&self.path, how)?;
        let fd = opened.fd.clone();
        let mut folder = self.folder.write().unwrap_or_else(PoisonError::into_inner);
        // Another request may have resolved it later.
        if folder.at < opened.at {
            let before = std::mem::replace(&mut *folder, opened);
            drop(folder);
            drop(before);
        }
        Ok(fd)
    }

    /// Opens a name below it for reading; `None` if there is nothing that may be served. A name
    /// that this process may not read is an error, which says the path.
    async fn find(self: &Arc<Root>, name: &str) -> io::Result<Option<Found>> {
        let found = match self.open_now(name, ResolveFlags::CACHED) {
            // Not in the cache; or a kernel before 5.12, which does not know this flag.
            Err(Errno::AGAIN | Errno::INVAL) => {
                let (root, name) = (self.clone(), name.to_owned());
                let found =
                    upshift::spawn_blocking(move || root.open_now(&name, ResolveFlags::empty()));
                found
                    .await
                    .map_err(|ended| io::Error::other(ended.to_string()))?
            }
            found => found,
        };
        self.served(name, found)
    }

    /// As [`find`](Root::find); may wait for a disk.
    #[cfg(test)]
    pub(super) fn find_now(&self, name: &str) -> io::Result<Option<Found>> {
        self.served(name, self.open_now(name, ResolveFlags::empty()))
    }

    fn served(&self, name: &str, found: Result<Found, Errno>) -> io::Result<Option<Found>> {
        match found {
            Ok(found) => Ok(Some(found)),
            Err(
                Errno::NOENT
                | Errno::NOTDIR
                | Errno::XDEV
                | Errno::LOOP
                | Errno::NAMETOOLONG
                | Errno::NXIO
                | Errno::NODEV,
            ) => Ok(None),
            Err(error @ (Errno::ACCESS | Errno::PERM)) => {
                // Without the dot that stands for the folder itself.
                let path: PathBuf = self.path.join(name).components().collect();
                let text = format!("{}: {error}", path.display());
                Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Kind and size of a name below the root. May wait for a disk.
    pub(super) fn look_at(&self, name: &str) -> Result<(FileType, u64), Errno> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let folder = self.folder(ResolveFlags::empty())?;
        let stat = fstat(openat2(folder, name, flags, Mode::empty(), how)?)?;
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        Ok((FileType::from_raw_mode(stat.st_mode), size))
    }

    fn open_now(&self, name: &str, how: ResolveFlags) -> Result<Found, Errno> {
        // A FIFO must not make this wait, nor a terminal become ours.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let folder = self.folder(how)?;
        let how = how | ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let file = openat2(folder, name, flags, Mode::empty(), how)?;
        let stat = fstat(&file)?;
        Ok(Found {
            kind: FileType::from_raw_mode(stat.st_mode),
            size: u64::try_from(stat.st_size).unwrap_or(0),
            modified: modified(&stat),
            file: Arc::new(File::from(file)),
            fields: OnceLock::new(),
            whole: OnceLock::new(),
        })
    }
}

#[allow(
    clippy::unnecessary_cast,
    reason = "the types differ between architectures"
)]
fn modified(stat: &Stat) -> (i64, u64) {
    (stat.st_mtime as i64, stat.st_mtime_nsec as u64)
}
