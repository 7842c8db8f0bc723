//! Why a process is not, or no longer, joined.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::string::String;

use crate::wire::{Reason, WireError};

/// Why joining, or asking, failed. The process is as it was, or alone.
#[derive(Debug)]
#[non_exhaustive]
pub enum JoinError {
    /// No daemon listens there, or not for this user.
    NoDaemon {
        /// The socket.
        socket: PathBuf,
        /// What the kernel said.
        error: io::Error,
    },
    /// The daemon said no.
    Refused {
        /// Why.
        reason: Reason,
        /// Why, for people.
        text: String,
    },
    /// The answer was not understood.
    Protocol(WireError),
    /// The answer does not fit the question, or its descriptors are not what they should be.
    Unexpected(&'static str),
    /// No answer within two seconds, or the daemon went away.
    Lost(io::Error),
    /// There is no connection.
    NotJoined,
    /// There has been none that could be renewed.
    NeverJoined,
    /// More vCPUs or threads than a registration can have.
    TooMany,
    /// This process could not do its part.
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
            JoinError::Protocol(error) => write!(f, "the daemon was not understood: {error}"),
            JoinError::Unexpected(what) => write!(
                f,
                "the daemon answered {what}: use a daemon and a library of the same release"
            ),
            JoinError::Lost(error) => write!(f, "the daemon does not answer: {error}"),
            JoinError::NotJoined => f.write_str("this process is not joined: call `join` first"),
            JoinError::NeverJoined => {
                f.write_str("there is nothing to renew: call `join` before `rejoin`")
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

// The texts hold the kernel's word already: no `source`, or it would be printed twice.
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
