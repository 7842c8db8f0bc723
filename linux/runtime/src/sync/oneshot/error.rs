//! What can go wrong with a oneshot channel.

use std::fmt;

/// There is and will be no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvError(pub(super) ());

impl fmt::Display for RecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the sender went without sending a value: look why it ended")
    }
}

impl std::error::Error for RecvError {}

/// Why [`Receiver::try_recv`](super::Receiver::try_recv) has no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TryRecvError {
    /// It has not been sent yet.
    Empty,
    /// The sender went without sending, or the value was taken before.
    Closed,
}

impl fmt::Display for TryRecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TryRecvError::Empty => "no value yet: try again later, or await the receiver",
            TryRecvError::Closed => "there will be no value: stop asking",
        })
    }
}

impl std::error::Error for TryRecvError {}
