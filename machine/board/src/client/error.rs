//! [`JoinError`] is the reason why a process has not joined the daemon, or has lost it.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::string::String;

use crate::wire::{Reason, WireError};

/// Error of joining the daemon, or of a request. After a failed join the process is alone. After a
/// failed request it is joined as before, unless [`Board::update`](super::Board::update) returned
/// [`JoinError::Lost`].
#[derive(Debug)]
#[non_exhaustive]
pub enum JoinError {
    /// Nothing listens on the socket, or this user may not connect to it.
    NoDaemon {
        /// The socket.
        socket: PathBuf,
        /// Error of the connection attempt.
        error: io::Error,
    },
    /// The daemon refused the request.
    Refused {
        /// Category of the reason.
        reason: Reason,
        /// The reason as text, with a remedy.
        text: String,
    },
    /// The reply is not a message of this protocol.
    Protocol(WireError),
    /// The reply does not fit the request, or its descriptors are wrong.
    Unexpected(&'static str),
    /// The daemon did not reply within two seconds, or has ended.
    Lost(io::Error),
    /// There is no connection.
    NotJoined,
    /// [`Board::rejoin`](super::Board::rejoin) was called without a [`join`](super::Board::join).
    NeverJoined,
    /// The registration has no vCPUs, or more vCPUs or threads than [`VCPUS`](crate::layout::VCPUS)
    /// and [`THREADS`](crate::wire::THREADS).
    TooMany,
    /// A system call of this process failed.
    Local(io::Error),
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JoinError::NoDaemon { socket, error } => {
                write!(f, "no daemon at {}: {error}", socket.display())?;
                f.write_str(match error.kind() {
                    io::ErrorKind::PermissionDenied => {
                        "; join the group that owns the socket (`ls -l` shows it)"
                    }
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                        "; start one with `upshift daemon`"
                    }
                    _ => "",
                })
            }
            JoinError::Refused { text, .. } => write!(f, "the daemon refused: {text}"),
            JoinError::Protocol(error) => write!(f, "cannot read the daemon's reply: {error}"),
            JoinError::Unexpected(answer) => write!(
                f,
                "the daemon answered {answer}: use a daemon and a library of the same release"
            ),
            JoinError::Lost(error) => write!(f, "the daemon does not answer: {error}"),
            JoinError::NotJoined => f.write_str("this process is not joined: call `join` first"),
            JoinError::NeverJoined => {
                f.write_str("there is no earlier `join` to repeat: call `join` first")
            }
            JoinError::TooMany => write!(
                f,
                "a registration has 1 to {} vCPUs and at most {} threads",
                crate::layout::VCPUS,
                crate::wire::THREADS
            ),
            JoinError::Local(error) => write!(f, "joining failed in this process: {error}"),
        }
    }
}

// The texts already contain the kernel's error; with `source` it would be printed twice.
impl Error for JoinError {}

impl From<JoinError> for io::Error {
    fn from(error: JoinError) -> io::Error {
        let kind = match &error {
            JoinError::NoDaemon { error, .. }
            | JoinError::Lost(error)
            | JoinError::Local(error) => error.kind(),
            JoinError::Refused { .. } => io::ErrorKind::PermissionDenied,
            JoinError::Protocol(_) | JoinError::Unexpected(_) => io::ErrorKind::InvalidData,
            JoinError::NotJoined | JoinError::NeverJoined => io::ErrorKind::NotConnected,
            JoinError::TooMany => io::ErrorKind::InvalidInput,
        };
        io::Error::new(kind, error)
    }
}
