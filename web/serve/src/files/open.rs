//! Opens files below the root, which is the folder that is served.
//!
//! No step of a name's resolution can leave the root, regardless of the name, its links and
//! concurrent renames of folders. The kernel ensures this and follows symbolic links, because names
//! are opened by `openat2(2)` with `RESOLVE_BENEATH`. The first attempt uses `RESOLVE_CACHED`,
//! which does not wait for a disk and therefore may be made in a poll. If the kernel would have to
//! wait, a thread for blocking calls opens the file.
//!
//! The operator chooses the path of the root, so all its links are followed. The path is resolved
//! again for the first request after [`MAX_FOLDER_AGE`]. So a new folder in place of the old one (a
//! link to the next release, a folder created anew) is served without a reload.

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
use super::recent::RecentFiles;
use crate::clock;

/// Time after which the path of a root is resolved again.
const MAX_FOLDER_AGE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Root {
    path: PathBuf,
    folder: RwLock<Folder>,
}

/// The folder to which a root's path was resolved, at a time of the [`clock`].
#[derive(Debug)]
struct Folder {
    fd: Arc<OwnedFd>,
    resolved_at: u64,
}

impl Folder {
    fn open(path: &Path, resolve: ResolveFlags) -> Result<Folder, Errno> {
        let resolved_at = clock::nanos();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let result = if resolve.is_empty() {
            open(path, flags, Mode::empty())
        } else {
            openat2(CWD, path, flags, Mode::empty(), resolve)
        };
        let fd = Arc::new(result?);
        Ok(Folder { fd, resolved_at })
    }

    fn is_fresh(&self) -> bool {
        let age = clock::nanos().saturating_sub(self.resolved_at);
        u128::from(age) < MAX_FOLDER_AGE.as_nanos()
    }
}

/// An opened file or folder, which several requests may share.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) file: Arc<File>,
    pub(super) kind: FileType,
    pub(super) size: u64,
    /// Modification time: seconds since 1970, and nanoseconds.
    pub(super) modified: (i64, u64),
    /// Header fields of the uncompressed file, under the name by which it was found.
    pub(super) fields: OnceLock<Fields>,
    /// Whole content, if the file is small and was in the page cache.
    pub(super) whole: OnceLock<Option<Bytes>>,
}

#[derive(Clone, Copy)]
pub(crate) struct Lookup<'a> {
    pub(crate) root: &'a Arc<Root>,
    pub(crate) recent_files: &'a RecentFiles,
    /// Arrival of the request, in ns of the [`clock`]. Cached files that were opened before this
    /// time are not used.
    pub(crate) since: u64,
}

impl Lookup<'_> {
    /// Opens a name below the root for reading. Returns `None` if no file of this name may be
    /// served.
    pub(super) async fn find(self, name: &str) -> io::Result<Option<Arc<Found>>> {
        let Lookup {
            root,
            recent_files,
            since,
        } = self;
        if let Some(found) = recent_files.find(root, name, since) {
            return Ok(found);
        }
        let now = clock::nanos();
        let found = root.find(name).await?.map(Arc::new);
        // Only files and folders are cached, because an open FIFO, for example, affects the writer
        // at its other end.
        let is_cacheable = |found: &Arc<Found>| found.kind.is_file() || found.kind.is_dir();
        if found.as_ref().is_none_or(is_cacheable) {
            recent_files.insert(root, name, now, found.as_ref());
        }
        Ok(found)
    }
}

impl Root {
    pub(crate) fn open(path: &Path) -> io::Result<Arc<Root>> {
        let path = std::path::absolute(path)?;
        let folder = Folder::open(&path, ResolveFlags::empty())?;
        Ok(Arc::new(Root {
            path,
            folder: RwLock::new(folder),
        }))
    }

    /// Returns the folder that the path named within the last [`MAX_FOLDER_AGE`]. Waits for a disk
    /// unless `resolve` forbids it.
    ///
    /// # Errors
    /// The kernel's error if the path names no folder. No file is then served until the path names
    /// a folder again.
    fn folder(&self, resolve: ResolveFlags) -> Result<Arc<OwnedFd>, Errno> {
        {
            let folder = self.folder.read().unwrap_or_else(PoisonError::into_inner);
            if folder.is_fresh() {
                return Ok(folder.fd.clone());
            }
        }
        let new_folder = Folder::open(&self.path, resolve)?;
        let fd = new_folder.fd.clone();
        let mut folder = self.folder.write().unwrap_or_else(PoisonError::into_inner);
        // Another request may have resolved the path later.
        if folder.resolved_at < new_folder.resolved_at {
            let old_folder = std::mem::replace(&mut *folder, new_folder);
            drop(folder);
            drop(old_folder);
        }
        Ok(fd)
    }

    /// Opens a name below the root for reading. Returns `None` if no file of this name may be
    /// served. A name that this process may not read is an error with the path.
    async fn find(self: &Arc<Root>, name: &str) -> io::Result<Option<Found>> {
        let found = match self.open_now(name, ResolveFlags::CACHED) {
            // The name is not in the kernel's cache, or the kernel is older than 5.12 and lacks
            // this flag.
            Err(Errno::AGAIN | Errno::INVAL) => {
                let (root, name) = (self.clone(), name.to_owned());
                let found =
                    upshift::spawn_blocking(move || root.open_now(&name, ResolveFlags::empty()));
                found
                    .await
                    .map_err(|error| io::Error::other(error.to_string()))?
            }
            found => found,
        };
        self.absent_if_missing(name, found)
    }

    #[cfg(test)]
    pub(super) fn find_now(&self, name: &str) -> io::Result<Option<Found>> {
        self.absent_if_missing(name, self.open_now(name, ResolveFlags::empty()))
    }

    /// Converts an error that means "no such file" to `None`, and adds the path to a permission
    /// error.
    fn absent_if_missing(
        &self,
        name: &str,
        found: Result<Found, Errno>,
    ) -> io::Result<Option<Found>> {
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
                // Removes the dot that represents the folder itself.
                let path: PathBuf = self.path.join(name).components().collect();
                let text = format!("{}: {error}", path.display());
                Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the type and the size in bytes of a file. May wait for a disk.
    pub(super) fn stat(&self, name: &str) -> Result<(FileType, u64), Errno> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let folder = self.folder(ResolveFlags::empty())?;
        let stat = fstat(openat2(folder, name, flags, Mode::empty(), resolve)?)?;
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        Ok((FileType::from_raw_mode(stat.st_mode), size))
    }

    /// Opens a name in the calling thread. Waits for a disk unless `resolve` forbids it.
    fn open_now(&self, name: &str, resolve: ResolveFlags) -> Result<Found, Errno> {
        // A FIFO must not block the opening, and a terminal must not become the controlling
        // terminal.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let folder = self.folder(resolve)?;
        let resolve = resolve | ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let file = openat2(folder, name, flags, Mode::empty(), resolve)?;
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
