//! Directories: creating, listing and removing them.
//!
//! A listing is read on a thread for blocking calls, [`BATCH`] entries at a time, so that a thread
//! is woken once for many entries.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;

use upshift_ring::op;

use super::{FileType, Metadata, symlink_metadata};
use crate::blocking;
use crate::net::start;

/// Largest number of entries that are read at a time.
const BATCH: usize = 128;

/// Creates a directory, whose parent must exist.
///
/// # Errors
/// `AlreadyExists`, `NotFound`, `PermissionDenied`, …; also fails outside a runtime.
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// # let dir = std::env::temp_dir().join(format!("upshift-mkdir-{}", std::process::id()));
/// # std::fs::create_dir(&dir)?;
/// use upshift::fs;
///
/// fs::create_dir(dir.join("new")).await?;
/// assert!(fs::metadata(dir.join("new")).await?.is_dir());
/// assert!(fs::create_dir(dir.join("new")).await.is_err()); // The directory exists.
/// # std::fs::remove_dir_all(&dir)?;
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
pub async fn create_dir(path: impl AsRef<Path>) -> io::Result<()> {
    start(op::MkDirAt::new(None, path, 0o777)?)?.await
}

/// Creates a directory and those of its parents that do not exist. The directory may exist too.
///
/// # Errors
/// `PermissionDenied`, `NotADirectory`, …; also fails outside a runtime.
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// # let dir = std::env::temp_dir().join(format!("upshift-mkdirs-{}", std::process::id()));
/// # std::fs::create_dir(&dir)?;
/// use upshift::fs;
///
/// let deep = dir.join("one/two/three");
/// fs::create_dir_all(&deep).await?;
/// fs::create_dir_all(&deep).await?; // An existing directory is not an error.
/// assert!(fs::metadata(&deep).await?.is_dir());
/// # std::fs::remove_dir_all(&dir)?;
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
pub async fn create_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
    let path = path.as_ref().to_owned();
    blocking::run(move || std::fs::create_dir_all(path)).await
}

/// Removes an empty directory.
///
/// # Errors
/// `NotFound`, `DirectoryNotEmpty`, …; also fails outside a runtime.
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// # let dir = std::env::temp_dir().join(format!("upshift-rmdir-{}", std::process::id()));
/// # std::fs::create_dir(&dir)?;
/// use upshift::fs;
///
/// let empty = dir.join("empty");
/// fs::create_dir(&empty).await?;
/// fs::remove_dir(&empty).await?;
/// assert!(!fs::try_exists(&empty).await?);
/// # std::fs::remove_dir_all(&dir)?;
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
pub async fn remove_dir(path: impl AsRef<Path>) -> io::Result<()> {
    start(op::UnlinkAt::directory(None, path)?)?.await
}

/// Removes a directory with all its contents; symbolic links are removed, not followed.
///
/// # Errors
/// `NotFound`, `PermissionDenied`, …; a part may have been removed. Also fails outside a runtime.
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// # let dir = std::env::temp_dir().join(format!("upshift-rmdirs-{}", std::process::id()));
/// # std::fs::create_dir(&dir)?;
/// use upshift::fs;
///
/// let full = dir.join("full");
/// fs::create_dir(&full).await?;
/// fs::write(full.join("file"), "contents").await?;
/// fs::remove_dir_all(&full).await?;
/// assert!(!fs::try_exists(&full).await?);
/// # std::fs::remove_dir_all(&dir)?;
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
pub async fn remove_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
    let path = path.as_ref().to_owned();
    blocking::run(move || std::fs::remove_dir_all(path)).await
}

/// Begins to list a directory, without `.` and `..`, in no particular order.
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let mut entries = upshift::fs::read_dir("/").await?;
/// while let Some(entry) = entries.next_entry().await? {
///     println!("{:?} is a {:?}", entry.file_name(), entry.file_type().await?);
/// }
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
///
/// # Errors
/// `NotFound`, `NotADirectory`, `PermissionDenied`, …; also fails outside a runtime.
pub async fn read_dir(path: impl AsRef<Path>) -> io::Result<ReadDir> {
    let path = path.as_ref().to_owned();
    let (batch, listing) = blocking::run(move || Ok(take(std::fs::read_dir(path)?))).await?;
    Ok(ReadDir {
        batch,
        listing,
        reading: None,
    })
}

type Batch = VecDeque<io::Result<DirEntry>>;

/// Takes the next entries, and returns the listing too if it may have more entries.
fn take(mut entries: std::fs::ReadDir) -> (Batch, Option<std::fs::ReadDir>) {
    let mut batch = Batch::new();
    for entry in entries.by_ref().take(BATCH) {
        batch.push_back(entry.map(|entry| DirEntry {
            // On most file systems the listing itself contains the kind.
            kind: entry.file_type().ok().map(FileType::from),
            path: entry.path(),
        }));
    }
    let listing = (batch.len() == BATCH).then_some(entries);
    (batch, listing)
}

/// The entries of a directory; created by [`read_dir`].
pub struct ReadDir {
    batch: Batch,
    /// The listing, if it may have more entries.
    listing: Option<std::fs::ReadDir>,
    /// The next batch, while it is being read; the next caller waits for it.
    reading: Option<Reading>,
}

type Reading = Pin<Box<dyn Future<Output = io::Result<(Batch, Option<std::fs::ReadDir>)>> + Send>>;

impl ReadDir {
    /// Returns the next entry, or `None` after the last.
    ///
    /// # Cancellation safety
    /// The future may be dropped at any time without losing an entry.
    ///
    /// # Errors
    /// Errors of reading the directory; the next call continues.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// # let dir = std::env::temp_dir().join(format!("upshift-list-{}", std::process::id()));
    /// # std::fs::create_dir(&dir)?;
    /// use upshift::fs;
    ///
    /// for name in ["b", "a"] {
    ///     fs::write(dir.join(name), "").await?;
    /// }
    /// let mut names = Vec::new();
    /// let mut entries = fs::read_dir(&dir).await?;
    /// while let Some(entry) = entries.next_entry().await? {
    ///     names.push(entry.file_name());
    /// }
    /// names.sort();
    /// assert_eq!(names, ["a", "b"]);
    /// # std::fs::remove_dir_all(&dir)?;
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub async fn next_entry(&mut self) -> io::Result<Option<DirEntry>> {
        if self.batch.is_empty()
            && let Some(listing) = self.listing.take()
        {
            self.reading = Some(Box::pin(blocking::run(move || Ok(take(listing)))));
        }
        if let Some(reading) = &mut self.reading {
            let read = reading.as_mut().await;
            self.reading = None;
            (self.batch, self.listing) = read?;
        }
        self.batch.pop_front().transpose()
    }
}

impl fmt::Debug for ReadDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadDir").finish_non_exhaustive()
    }
}

/// An entry of a directory.
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// # let dir = std::env::temp_dir().join(format!("upshift-entry-{}", std::process::id()));
/// # std::fs::create_dir(&dir)?;
/// use upshift::fs;
///
/// fs::write(dir.join("name"), "contents").await?;
/// let entry = fs::read_dir(&dir).await?.next_entry().await?.expect("one file");
/// assert_eq!(entry.file_name(), "name");
/// assert_eq!(entry.path(), dir.join("name"));
/// assert!(entry.file_type().await?.is_file());
/// assert_eq!(entry.metadata().await?.len(), 8);
/// # std::fs::remove_dir_all(&dir)?;
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct DirEntry {
    path: PathBuf,
    kind: Option<FileType>,
}

impl DirEntry {
    /// Returns the path of the directory joined with the name.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// Returns the name.
    #[must_use]
    pub fn file_name(&self) -> OsString {
        self.path.file_name().unwrap_or_default().to_owned()
    }

    /// Returns the kind; a symbolic link is not followed. Costs no system call on most file
    /// systems.
    ///
    /// # Errors
    /// The errors of [`metadata`](DirEntry::metadata).
    pub async fn file_type(&self) -> io::Result<FileType> {
        match self.kind {
            Some(kind) => Ok(kind),
            None => Ok(self.metadata().await?.file_type()),
        }
    }

    /// Returns the metadata; a symbolic link is not followed.
    ///
    /// # Errors
    /// `NotFound` if the entry has been removed meanwhile, …
    pub async fn metadata(&self) -> io::Result<Metadata> {
        symlink_metadata(&self.path).await
    }
}
