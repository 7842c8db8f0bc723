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
/// `NotFound`, `PermissionDenied`, …; also fails outside a runtime.
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// # let path = std::env::temp_dir().join(format!("upshift-stat-{}", std::process::id()));
/// use upshift::fs;
///
/// fs::write(&path, "hello").await?;
/// let metadata = fs::metadata(&path).await?;
/// assert!(metadata.is_file() && metadata.len() == 5);
/// # std::fs::remove_file(&path)?;
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
pub async fn metadata(path: impl AsRef<Path>) -> io::Result<Metadata> {
    let statx = op::Statx::new(None, path, 0)?;
    Ok(Metadata::new(*start(statx)?.await?))
}

/// Returns the metadata of the file at a path; a symbolic link is not followed.
///
/// # Errors
/// The errors of [`metadata`].
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// # let path = std::env::temp_dir().join(format!("upshift-lstat-{}", std::process::id()));
/// use upshift::fs;
///
/// fs::symlink("/", &path).await?;
/// assert!(fs::symlink_metadata(&path).await?.is_symlink());
/// assert!(fs::metadata(&path).await?.is_dir());
/// # std::fs::remove_file(&path)?;
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
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
/// `NotFound`, `CrossesDevices` (copy it instead), …; also fails outside a runtime.
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// # let dir = std::env::temp_dir().join(format!("upshift-rename-{}", std::process::id()));
/// # std::fs::create_dir(&dir)?;
/// use upshift::fs;
///
/// // Readers of `config` see the old or the new contents, nothing in between.
/// fs::write(dir.join("config"), "old").await?;
/// fs::write(dir.join("config.new"), "new").await?;
/// fs::rename(dir.join("config.new"), dir.join("config")).await?;
/// assert_eq!(fs::read(dir.join("config")).await?, b"new");
/// # std::fs::remove_dir_all(&dir)?;
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
pub async fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
    start(op::RenameAt::new(None, from, None, to)?)?.await
}

/// Removes a file (strictly, one of its names).
///
/// # Errors
/// `NotFound`, `IsADirectory`, `PermissionDenied`, …; also fails outside a runtime.
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// # let path = std::env::temp_dir().join(format!("upshift-rm-{}", std::process::id()));
/// use upshift::fs;
///
/// fs::write(&path, "hello").await?;
/// fs::remove_file(&path).await?;
/// assert!(!fs::try_exists(&path).await?);
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
pub async fn remove_file(path: impl AsRef<Path>) -> io::Result<()> {
    start(op::UnlinkAt::file(None, path)?)?.await
}

/// Creates a second name for the file at `original`.
///
/// # Errors
/// `NotFound`, `AlreadyExists`, `CrossesDevices`, …; also fails outside a runtime.
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// # let dir = std::env::temp_dir().join(format!("upshift-link-{}", std::process::id()));
/// # std::fs::create_dir(&dir)?;
/// use upshift::fs;
///
/// fs::write(dir.join("one"), "contents").await?;
/// fs::hard_link(dir.join("one"), dir.join("other")).await?;
/// fs::remove_file(dir.join("one")).await?;
/// assert_eq!(fs::read(dir.join("other")).await?, b"contents");
/// # std::fs::remove_dir_all(&dir)?;
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
pub async fn hard_link(original: impl AsRef<Path>, link: impl AsRef<Path>) -> io::Result<()> {
    start(op::LinkAt::new(None, original, None, link)?)?.await
}

/// Creates a symbolic link at `link` that points to `original`.
///
/// # Errors
/// `AlreadyExists`, …; also fails outside a runtime.
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// # let dir = std::env::temp_dir().join(format!("upshift-symlink-{}", std::process::id()));
/// # std::fs::create_dir(&dir)?;
/// use upshift::fs;
///
/// fs::write(dir.join("v2"), "contents").await?;
/// fs::symlink("v2", dir.join("current")).await?;
/// assert_eq!(fs::read(dir.join("current")).await?, b"contents");
/// # std::fs::remove_dir_all(&dir)?;
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
pub async fn symlink(original: impl AsRef<Path>, link: impl AsRef<Path>) -> io::Result<()> {
    start(op::SymlinkAt::new(original, None, link)?)?.await
}

/// Returns the target of a symbolic link.
///
/// # Errors
/// `NotFound`, `InvalidInput` if the file is not a symbolic link, …; also fails outside a runtime.
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// # let path = std::env::temp_dir().join(format!("upshift-readlink-{}", std::process::id()));
/// use upshift::fs;
///
/// fs::symlink("/usr/bin", &path).await?;
/// assert_eq!(fs::read_link(&path).await?.to_str(), Some("/usr/bin"));
/// # std::fs::remove_file(&path)?;
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
pub async fn read_link(path: impl AsRef<Path>) -> io::Result<PathBuf> {
    let path = path.as_ref().to_owned();
    blocking::run(move || std::fs::read_link(path)).await
}

/// Returns the absolute path without links, `.` and `..`.
///
/// # Errors
/// `NotFound`, …; also fails outside a runtime.
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let path = upshift::fs::canonicalize("/usr/../usr/.").await?;
/// assert_eq!(path.to_str(), Some("/usr"));
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
pub async fn canonicalize(path: impl AsRef<Path>) -> io::Result<PathBuf> {
    let path = path.as_ref().to_owned();
    blocking::run(move || std::fs::canonicalize(path)).await
}

/// Changes the permissions of a file.
///
/// # Errors
/// `NotFound`, `PermissionDenied`, …; also fails outside a runtime.
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// # let path = std::env::temp_dir().join(format!("upshift-chmod-{}", std::process::id()));
/// use std::{fs::Permissions, os::unix::fs::PermissionsExt};
/// use upshift::fs;
///
/// fs::write(&path, "secret").await?;
/// fs::set_permissions(&path, Permissions::from_mode(0o600)).await?;
/// assert_eq!(fs::metadata(&path).await?.mode() & 0o777, 0o600);
/// # std::fs::remove_file(&path)?;
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
pub async fn set_permissions(path: impl AsRef<Path>, permissions: Permissions) -> io::Result<()> {
    let path = path.as_ref().to_owned();
    blocking::run(move || std::fs::set_permissions(path, permissions)).await
}
