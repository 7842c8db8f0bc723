//! Opens the listening socket of the daemon. The file has its permissions before a client can
//! connect. A daemon takes over the file of a daemon that has ended, but never that of a running
//! one. The file, and its lock file, are removed when the daemon ends.

use std::error::Error;
use std::fmt;
use std::fs::DirBuilder;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::path::{Path, PathBuf};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use upshift_elevate::sys::read_at_once;

use crate::admission::peer;
use crate::config::Config;
use upshift_units::socket_file::{self, Lock, SocketFile, check_directories};

/// Maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 128;

#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) socket: OwnedFd,
    /// Dropped before the lock, so that the removed file cannot belong to a successor.
    file: SocketFile,
    /// Prevents a second daemon from taking over the path.
    _lock: Lock,
}

/// The reason why the daemon cannot listen.
#[derive(Debug)]
#[non_exhaustive]
pub enum ListenError {
    /// Another process listens on the socket.
    InUse {
        /// Path of the socket.
        socket: PathBuf,
        /// Pid of the other process, if it is known.
        owner: Option<i32>,
    },
    /// A system call failed.
    Failed {
        /// The attempted action, as text.
        what: &'static str,
        /// The file that the call concerned.
        path: PathBuf,
        /// Error of the kernel.
        error: io::Error,
    },
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenError::InUse { socket, owner } => {
                write!(
                    f,
                    "{}: another daemon or program listens there",
                    socket.display()
                )?;
                if let Some(pid) = owner {
                    write!(f, " (pid {pid}, {})", command_of(*pid))?;
                }
                f.write_str(": stop it first, or give another path with --socket")
            }
            ListenError::Failed { what, path, error } => {
                write!(f, "cannot {what} {}: {error}", path.display())?;
                match error.kind() {
                    io::ErrorKind::PermissionDenied => {
                        f.write_str(": run as root, or give a path of your own with --socket")
                    }
                    io::ErrorKind::InvalidInput | io::ErrorKind::InvalidFilename => {
                        f.write_str(": a socket's path has at most 107 bytes")
                    }
                    _ => Ok(()),
                }
            }
        }
    }
}

impl Error for ListenError {}

pub(crate) fn command_of(pid: i32) -> String {
    read_at_once(format!("/proc/{pid}/comm"))
        .map_or_else(|_| "?".to_string(), |name| name.trim_end().to_string())
}

impl Listener {
    pub(crate) fn open(config: &Config) -> Result<Listener, ListenError> {
        let path = &config.socket;
        let failed = |what| {
            let path = path.clone();
            move |error: io::Error| ListenError::Failed { what, path, error }
        };
        check_directories(path).map_err(failed("listen at"))?;
        if let Some(directory) = path
            .parent()
            .filter(|directory| !directory.as_os_str().is_empty())
        {
            let mut builder = DirBuilder::new();
            let builder = builder.recursive(true).mode(0o755);
            builder
                .create(directory)
                .map_err(failed("make the directory of"))?;
        }
        let in_use = |error: io::Error| match error.kind() {
            io::ErrorKind::AddrInUse if is_socket(path) => ListenError::InUse {
                socket: path.clone(),
                owner: owner(path),
            },
            _ => failed("listen at")(error),
        };
        let lock = Lock::acquire(path).map_err(in_use)?;
        let flags = SocketFlags::NONBLOCK;
        let bound = socket_file::bind(path, SocketType::SEQPACKET, flags, Some(config.mode));
        let (socket, file) = bound.map_err(in_use)?;
        let listener = Listener {
            socket,
            file,
            _lock: lock,
        };
        // No client can connect before `listen`.
        listener.permit(config)?;
        rustix::net::listen(&listener.socket, BACKLOG)
            .map_err(|error| failed("listen at")(error.into()))?;
        Ok(listener)
    }

    /// Sets the group and the mode of the file, as configured.
    pub(crate) fn permit(&self, config: &Config) -> Result<(), ListenError> {
        let failed = |what| {
            let path = self.path().to_path_buf();
            move |error: io::Error| ListenError::Failed { what, path, error }
        };
        if let Some(group) = config.group {
            let result = self.file.set_group(group);
            result.map_err(failed("give the group to"))?;
        }
        let result = self.file.set_mode(config.mode);
        result.map_err(failed("set the mode of"))
    }

    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }
}

fn is_socket(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket())
}

/// Returns the pid of the process that listens at `path`, or holds the lock of this path.
fn owner(path: &Path) -> Option<i32> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let listening_pid = [SocketType::SEQPACKET, SocketType::STREAM]
        .iter()
        .find_map(|&kind| {
            let probe = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).ok()?;
            let address = SocketAddrUnix::new(path).ok()?;
            rustix::net::connect(&probe, &address).ok()?;
            Some(peer::credentials(probe.as_fd()).ok()?.0)
        });
    listening_pid.or_else(|| Lock::holder(path))
}
