//! Inspecting, creating, moving and removing names of files.

use std::fs::Permissions;
use std::io;
use std::path::{Path, PathBuf};

use upshift_ring::op;

use super::Metadata;
use crate::blocking;
use crate::net::start;

/// Returns the metadata of the file at a path; symbolic links are followed.
///
/// # Errors
/// `NotFound`, `PermissionDenied`, …; and outside a runtime.
pub async fn metadata(path: impl AsRef<Path>) -> io::Result<Metadata> {
    let statx = op::Statx::new(None, path, 0)?;
    Ok(Metadata::new(*start(statx)?.await?))
}

/// Returns the metadata of the file at a path; a symbolic link is not followed.
///
/// # Errors
/// The errors of [`metadata`].
pub async fn symlink_metadata(path: impl AsRef<Path>) -> io::Result<Metadata> {
    let statx = op::Statx::new(None, path, libc::AT_SYMLINK_NOFOLLOW)?;
    Ok(Metadata::new(*start(statx)?.await?))
}

/// Returns true if there is a file at a path; symbolic links are followed.
///
/// # Errors
/// If the answer cannot be known, for instance `PermissionDenied`.
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// assert!(upshift::fs::try_exists("/").await?);
/// assert!(!upshift::fs::try_exists("/no/such/file").await?);
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
pub async fn try_exists(path: impl AsRef<Path>) -> io::Result<bool> {
    match metadata(path).await {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Moves a file or directory within its file system; a file at `to` is replaced.
///
/// # Errors
/// `NotFound`, `CrossesDevices` (copy it instead), …; and outside a runtime.
pub async fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
    start(op::RenameAt::new(None, from, None, to)?)?.await
}

/// Removes a file (strictly, one of its names).
///
/// # Errors
/// `NotFound`, `IsADirectory`, `PermissionDenied`, …; and outside a runtime.
pub async fn remove_file(path: impl AsRef<Path>) -> io::Result<()> {
    start(op::UnlinkAt::file(None, path)?)?.await
}

/// Creates a second name for the file at `original`.
///
/// # Errors
/// `NotFound`, `AlreadyExists`, `CrossesDevices`, …; and outside a runtime.
pub async fn hard_link(original: impl AsRef<Path>, link: impl AsRef<Path>) -> io::Result<()> {
    start(op::LinkAt::new(None, original, None, link)?)?.await
}

/// Creates a symbolic link at `link` that points to `original`.
///
/// # Errors
/// `AlreadyExists`, …; and outside a runtime.
pub async fn symlink(original: impl AsRef<Path>, link: impl AsRef<Path>) -> io::Result<()> {
    start(op::SymlinkAt::new(original, None, link)?)?.await
}

/// Returns the target of a symbolic link.
///
/// # Errors
/// `NotFound`, `InvalidInput` if the file is no symbolic link, …; and outside a runtime.
pub async fn read_link(path: impl AsRef<Path>) -> io::Result<PathBuf> {
    let path = path.as_ref().to_owned();
    blocking::run(move || std::fs::read_link(path)).await
}

/// Returns the absolute path without links, `.` and `..`.
///
/// # Errors
/// `NotFound`, …; and outside a runtime.
pub async fn canonicalize(path: impl AsRef<Path>) -> io::Result<PathBuf> {
    let path = path.as_ref().to_owned();
    blocking::run(move || std::fs::canonicalize(path)).await
}

/// Changes the permissions of a file.
///
/// # Errors
/// `NotFound`, `PermissionDenied`, …; and outside a runtime.
pub async fn set_permissions(path: impl AsRef<Path>, permissions: Permissions) -> io::Result<()> {
    let path = path.as_ref().to_owned();
    blocking::run(move || std::fs::set_permissions(path, permissions)).await
}
