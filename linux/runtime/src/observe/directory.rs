//! Finds and names the sockets through which `upshift top` observes runtimes (the live view). Each
//! user has a directory, which contains a socket for each runtime, named by process id.
//!
//! The directory is `$XDG_RUNTIME_DIR/upshift`, or `/tmp/upshift-UID` if that variable does not
//! name a directory of this user (under `sudo -E` it names the caller's). Another user with write
//! access to the directory could pretend to be a process of this user, so a directory that other
//! users may write is refused. They may enter the directory, as they may enter that of `upshift
//! daemon`, because the credentials of each client that connects are checked.
//!
//! Root looks into the directory of the user to whom the requested process belongs.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// A socket of the live view.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct SocketName {
    /// Id of the process.
    pub pid: u32,
    /// Number of the runtime in its process, from 1.
    pub runtime: u32,
    /// Path of the socket.
    pub path: PathBuf,
}

pub(super) fn effective_uid() -> u32 {
    // SAFETY: the call takes no pointers and cannot fail.
    unsafe { libc::geteuid() }
}

/// Returns the directory of this user's sockets. It need not exist.
#[must_use]
pub fn socket_dir() -> PathBuf {
    let is_own = |dir: &PathBuf| {
        let metadata = fs::metadata(dir);
        dir.is_absolute()
            && metadata.is_ok_and(|metadata| metadata.is_dir() && metadata.uid() == effective_uid())
    };
    match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from) {
        Some(dir) if is_own(&dir) => dir.join("upshift"),
        _ => PathBuf::from(format!("/tmp/upshift-{}", effective_uid())),
    }
}

/// Returns the sockets of this user, by process id. Removes the sockets of processes that have
/// ended.
///
/// # Errors
/// The kernel's error, or `PermissionDenied` for a directory that other users may write. A
/// directory that does not exist counts as empty.
pub fn sockets() -> io::Result<Vec<SocketName>> {
    let mut sockets = sockets_in(&socket_dir(), effective_uid())?;
    sockets.retain(|name| {
        let is_stale = is_stale(name);
        if is_stale {
            // An error is ignored, because another viewer may have removed the socket.
            let _ = fs::remove_file(&name.path);
        }
        !is_stale
    });
    sockets.sort();
    Ok(sockets)
}

/// Returns whether the process has ended and nobody listens at the socket. Both are checked,
/// because a process in another pid namespace that shares the directory seems to have ended, but
/// listens.
fn is_stale(name: &SocketName) -> bool {
    let refused = || {
        UnixStream::connect(&name.path)
            .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    };
    !Path::new(&format!("/proc/{}", name.pid)).exists() && refused()
}

/// Returns the sockets of another user's process; empty unless the caller is root.
///
/// A socket is returned only if its directory is one that only that user may write.
#[must_use]
pub fn sockets_of(pid: u32) -> Vec<SocketName> {
    let Ok(process) = fs::metadata(format!("/proc/{pid}")) else {
        return Vec::new();
    };
    let owner = process.uid();
    if effective_uid() != 0 || owner == 0 {
        return Vec::new();
    }
    let dirs = [
        format!("/run/user/{owner}/upshift"),
        format!("/tmp/upshift-{owner}"),
    ];
    let sockets = dirs
        .iter()
        .filter_map(|dir| sockets_in(Path::new(dir), owner).ok());
    let sockets = sockets.flatten();
    let mut sockets: Vec<_> = sockets.filter(|name| name.pid == pid).collect();
    sockets.sort();
    sockets
}

fn sockets_in(dir: &Path, owner: u32) -> io::Result<Vec<SocketName>> {
    match check_dir(dir, owner) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        result => result?,
    }
    let mut sockets = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let is_socket = entry.file_type().is_ok_and(|kind| kind.is_socket());
        if let (true, Some((pid, runtime))) = (is_socket, parse(&entry.file_name())) {
            sockets.push(SocketName {
                pid,
                runtime,
                path: entry.path(),
            });
        }
    }
    Ok(sockets)
}

fn parse(name: &OsStr) -> Option<(u32, u32)> {
    let name = name.to_str()?.strip_suffix(".sock")?;
    match name.split_once('-') {
        Some((pid, runtime)) => Some((pid.parse().ok()?, runtime.parse().ok()?)),
        None => Some((name.parse().ok()?, 1)),
    }
}

/// Returns the path of the socket for a runtime of this process. Creates the directory if
/// necessary.
pub(super) fn socket_path(runtime: u32) -> io::Result<PathBuf> {
    let dir = socket_dir();
    match DirBuilder::new().mode(0o700).create(&dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => check_dir(&dir, effective_uid())?,
    }
    let pid = std::process::id();
    Ok(match runtime {
        1 => dir.join(format!("{pid}.sock")),
        n => dir.join(format!("{pid}-{n}.sock")),
    })
}

fn check_dir(dir: &Path, owner: u32) -> io::Result<()> {
    let metadata = fs::symlink_metadata(dir)?;
    if metadata.is_dir() && metadata.uid() == owner && metadata.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!(
            "{} is not a directory that only this user may write: remove it or set XDG_RUNTIME_DIR",
            dir.display()
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        assert_eq!(parse(OsStr::new("12.sock")), Some((12, 1)));
        assert_eq!(parse(OsStr::new("12-3.sock")), Some((12, 3)));
        for invalid_name in ["12", "x.sock", "12-.sock", "-3.sock", "1-2-3.sock", ".sock"] {
            assert_eq!(parse(OsStr::new(invalid_name)), None, "{invalid_name}");
        }
    }

    #[test]
    fn a_socket_is_stale_if_its_process_has_ended_and_nobody_listens() {
        use std::os::unix::net::UnixListener;
        let path = std::env::temp_dir().join(format!("upshift-stale-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let socket_name = |pid| SocketName {
            pid,
            runtime: 1,
            path: path.clone(),
        };
        // The second id is above the largest process id, so no process has it.
        let (alive, ended) = (socket_name(std::process::id()), socket_name(1 << 30));
        assert!(!is_stale(&alive) && !is_stale(&ended));
        drop(listener);
        assert!(!is_stale(&alive) && is_stale(&ended));
        fs::remove_file(&path).unwrap();
        assert!(!is_stale(&ended));
    }

    #[test]
    fn a_directory_that_others_may_write_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let dir = std::env::temp_dir().join(format!("upshift-check-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        for (mode, is_accepted) in [(0o700, true), (0o755, true), (0o770, false), (0o777, false)] {
            fs::set_permissions(&dir, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(
                check_dir(&dir, effective_uid()).is_ok(),
                is_accepted,
                "{mode:o}"
            );
        }
        assert!(
            check_dir(&dir, effective_uid() + 1).is_err(),
            "another user's"
        );
        fs::remove_dir(&dir).unwrap();
    }
}
