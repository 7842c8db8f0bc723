//! Reasons for which the daemon refuses a request, and reasons why bytes are not a message.

use core::fmt;

use crate::layout::VERSION;

/// The reason why the daemon refused a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The message could not be decoded.
    Malformed,
    /// The protocol versions differ.
    Version,
    /// Too many registrations, threads or requests.
    Limit,
    /// The configuration excludes this user.
    Forbidden,
    /// A thread does not belong to the caller's process, or is not pinned to the CPU of its vCPU.
    Thread,
    /// The page is not a sealed memory file of the right size.
    Page,
    /// There is no such CPU.
    Cpu,
    /// The request does not fit the state, because the process is registered already, or not at
    /// all.
    State,
    /// A system call of the daemon failed.
    Failed,
    /// A reason that this version of the crate does not know.
    Other(u16),
}

impl Reason {
    pub(super) fn number(self) -> u16 {
        match self {
            Reason::Malformed => 1,
            Reason::Version => 2,
            Reason::Limit => 3,
            Reason::Forbidden => 4,
            Reason::Thread => 5,
            Reason::Page => 6,
            Reason::Cpu => 7,
            Reason::State => 8,
            Reason::Failed => 9,
            Reason::Other(number) => number,
        }
    }

    pub(super) fn from_number(number: u16) -> Reason {
        match number {
            1 => Reason::Malformed,
            2 => Reason::Version,
            3 => Reason::Limit,
            4 => Reason::Forbidden,
            5 => Reason::Thread,
            6 => Reason::Page,
            7 => Reason::Cpu,
            8 => Reason::State,
            9 => Reason::Failed,
            other => Reason::Other(other),
        }
    }
}

/// The reason why bytes are not a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WireError {
    /// The magic number is wrong.
    Magic,
    /// The message has another protocol version.
    Version(u16),
    /// The kind does not exist in this direction.
    Kind(u16),
    /// The body is too short or too long, or has an invalid value.
    Body,
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WireError::Magic => f.write_str("the bytes are not a message of the board's protocol"),
            WireError::Version(theirs) => write!(
                f,
                "the other side uses protocol version {theirs}, and this side version {VERSION}: use a daemon and a library of the same release"
            ),
            WireError::Kind(kind) => write!(f, "no message in this direction has kind {kind}"),
            WireError::Body => f.write_str("the message's length or a value in it is invalid"),
        }
    }
}

impl core::error::Error for WireError {}
