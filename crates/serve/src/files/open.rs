//! Opening names below the root.
//!
//! `openat2(2)` with `RESOLVE_BENEATH`: the kernel follows symbolic links, but no step of the
//! resolution may leave the root, whatever the name, the links and renames of folders
//! meanwhile. First with `RESOLVE_CACHED`, which does not wait for a disk and so may be done in a
//! poll; if the kernel would have to wait, on a thread for blocking calls.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Stat, fstat, open, openat2};
use rustix::io::Errno;

/// The folder that is served.
#[derive(Debug)]
pub(crate) struct Root {
    folder: OwnedFd,
}

/// What a name stands for.
pub(super) struct Found {
    pub(super) file: File,
    pub(super) kind: FileType,
    pub(super) size: u64,
    /// Seconds since 1970, and nanoseconds.
    pub(super) modified: (i64, u64),
}

impl Root {
    /// Opens the folder.
    pub(crate) fn open(path: &Path) -> io::Result<Arc<Root>> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = open(path, flags, Mode::empty())?;
        Ok(Arc::new(Root { folder }))
    }

    /// Opens a name below it for reading; `None` if there is nothing that may be served.
    pub(super) async fn find(self: &Arc<Root>, name: &str) -> io::Result<Option<Found>> {
        let found = match self.find_now(name, ResolveFlags::CACHED) {
            // Not in the cache; or a kernel before 5.12, which does not know this flag.
            Err(Errno::AGAIN | Errno::INVAL) => {
                let (root, name) = (self.clone(), name.to_owned());
                let found =
                    upshift::spawn_blocking(move || root.find_now(&name, ResolveFlags::empty()));
                found
                    .await
                    .map_err(|ended| io::Error::other(ended.to_string()))?
            }
            found => found,
        };
        match found {
            Ok(found) => Ok(Some(found)),
            Err(
                Errno::NOENT
                | Errno::NOTDIR
                | Errno::XDEV
                | Errno::LOOP
                | Errno::ACCESS
                | Errno::PERM
                | Errno::NAMETOOLONG
                | Errno::NXIO
                | Errno::NODEV,
            ) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Kind and size of a name below the root. May wait for a disk.
    pub(super) fn look_at(&self, name: &str) -> Result<(FileType, u64), Errno> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let stat = fstat(openat2(&self.folder, name, flags, Mode::empty(), how)?)?;
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        Ok((FileType::from_raw_mode(stat.st_mode), size))
    }

    fn find_now(&self, name: &str, how: ResolveFlags) -> Result<Found, Errno> {
        // A FIFO must not make this wait, nor a terminal become ours.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let how = how | ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let file = openat2(&self.folder, name, flags, Mode::empty(), how)?;
        let stat = fstat(&file)?;
        Ok(Found {
            kind: FileType::from_raw_mode(stat.st_mode),
            size: u64::try_from(stat.st_size).unwrap_or(0),
            modified: modified(&stat),
            file: File::from(file),
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
