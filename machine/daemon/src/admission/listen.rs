//! The socket: made with its permissions before a client can connect, taken over from a daemon that died, never from one that
//! lives. A daemon that ends leaves neither the socket nor the lock beside it.

use std::error::Error;
use std::fmt;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use upshift_elevate::sys::read_at_once;

use crate::admission::peer;
use crate::config::Config;
use crate::socket_file::{SocketFile, check_directories, is_at};

/// Connections the kernel holds until they are accepted.
const BACKLOG: i32 = 128;

/// A listening socket. Its file goes when this is dropped.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) socket: OwnedFd,
    /// Before the lock: the file goes first, so that it cannot be a successor's.
    file: SocketFile,
    /// Keeps a second daemon from taking the path over while this one lives.
    _lock: Lock,
}

/// The lock file beside the socket, held. The file goes when this is dropped.
#[derive(Debug)]
struct Lock {
    _file: File,
    path: PathBuf,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // While it is held, so that it cannot be a successor's.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Why the daemon cannot listen.
#[derive(Debug)]
#[non_exhaustive]
pub enum ListenError {
    /// Another daemon does.
    InUse {
        /// Where.
        socket: PathBuf,
        /// The other one, if it is known.
        owner: Option<i32>,
    },
    /// The kernel said no.
    Failed {
        /// What was tried.
        what: &'static str,
        /// With which file.
        path: PathBuf,
        /// What it said.
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

/// The name of a process's program.
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
        if let Some(directory) = path.parent().filter(|it| !it.as_os_str().is_empty()) {
            let mut builder = DirBuilder::new();
            let builder = builder.recursive(true).mode(0o755);
            builder
                .create(directory)
                .map_err(failed("make the directory of"))?;
        }
        let lock = lock(path)?;
        let address =
            SocketAddrUnix::new(path).map_err(|error| failed("listen at")(error.into()))?;
        let socket = || {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        };
        // The holder of the lock is the only daemon; what is left at the path is a dead one's, unless it answers.
        let probe = socket().map_err(|error| failed("open a socket for")(error.into()))?;
        use rustix::io::Errno;
        match rustix::net::connect(&probe, &address) {
            Err(Errno::CONNREFUSED | Errno::NOENT) => {}
            // Or of another kind, or too busy to answer: a program listens.
            Ok(()) | Err(Errno::PROTOTYPE | Errno::AGAIN) => {
                return Err(ListenError::InUse {
                    socket: path.clone(),
                    owner: peer::credentials(probe.as_fd()).ok().map(|it| it.0),
                });
            }
            Err(error) => return Err(failed("look at")(error.into())),
        }
        match std::fs::symlink_metadata(path) {
            Ok(found) => {
                use std::os::unix::fs::FileTypeExt;
                if !found.file_type().is_socket() {
                    let error = io::Error::other("there is a file that is no socket: remove it");
                    return Err(failed("listen at")(error));
                }
                std::fs::remove_file(path).map_err(failed("replace"))?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed("look at")(error)),
        }
        let socket = socket().map_err(|error| failed("open a socket for")(error.into()))?;
        rustix::net::bind(&socket, &address).map_err(|error| failed("listen at")(error.into()))?;
        let listener = Listener {
            socket,
            file: SocketFile::bound_to(path).map_err(failed("look at"))?,
            _lock: lock,
        };
        // No client can connect before `listen`.
        listener.permit(config)?;
        rustix::net::listen(&listener.socket, BACKLOG)
            .map_err(|error| failed("listen at")(error.into()))?;
        Ok(listener)
    }

    /// Sets group and mode of the socket's file.
    pub(crate) fn permit(&self, config: &Config) -> Result<(), ListenError> {
        let failed = |what| {
            let path = self.path().to_path_buf();
            move |error: io::Error| ListenError::Failed { what, path, error }
        };
        if let Some(group) = config.group {
            let set = self.file.set_group(group);
            set.map_err(failed("give the group to"))?;
        }
        let set = self.file.set_mode(config.mode);
        set.map_err(failed("set the mode of"))
    }

    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }
}

/// Times that a lock is tried which its holder removes at that moment, or which is held by what a daemon that has ended has forked.
const LOCK_ATTEMPTS: usize = 100;

/// Time between two attempts in the latter case: one second in all.
const PAUSE: Duration = Duration::from_millis(10);

/// Takes the lock file beside the socket; its holder is the daemon.
fn lock(socket: &Path) -> Result<Lock, ListenError> {
    let mut path = socket.as_os_str().to_os_string();
    path.push(".lock");
    let path = PathBuf::from(path);
    let failed = |error: io::Error| ListenError::Failed {
        what: "lock",
        path: path.clone(),
        error,
    };
    let mut owner = None;
    for _ in 0..LOCK_ATTEMPTS {
        let mut options = OpenOptions::new();
        let options = options.create(true).truncate(false).write(true).read(true);
        let options = options.mode(0o600).custom_flags(libc::O_NOFOLLOW);
        let mut file = options.open(&path).map_err(failed)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) if is_at(&file, &path).map_err(failed)? => {
                use std::io::Write;
                let _ = file.set_len(0);
                let _ = writeln!(file, "{}", std::process::id());
                return Ok(Lock { _file: file, path });
            }
            // Its holder has ended and removed it since it was opened: the next one may be another daemon's.
            Ok(()) => {}
            Err(rustix::io::Errno::AGAIN) => {
                let text = std::fs::read_to_string(&path).unwrap_or_default();
                owner = text.trim().parse().ok();
                // A guardian that was forked a moment before its daemon was killed has the daemon's files until it runs for the first time.
                if owner.is_some_and(has_ended) {
                    std::thread::sleep(PAUSE);
                    continue;
                }
                break;
            }
            Err(error) => return Err(failed(error.into())),
        }
    }
    let socket = socket.to_path_buf();
    Err(ListenError::InUse { socket, owner })
}

/// Whether there is no process `pid`.
fn has_ended(pid: i32) -> bool {
    let process = rustix::process::Pid::from_raw(pid);
    let found = process.map(rustix::process::test_kill_process);
    matches!(found, Some(Err(rustix::io::Errno::SRCH)))
}
