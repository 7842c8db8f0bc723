//! Errors of a oneshot channel.

use super::super::error_text::error_text;

/// The error of a [`Receiver`](super::Receiver): the sender was dropped without sending a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvError(pub(super) ());

error_text!([] RecvError {
    RecvError(()) => "the sender went without sending a value: look why it ended",
});

/// The error of [`Receiver::try_recv`](super::Receiver::try_recv).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TryRecvError {
    /// The value has not been sent yet.
    Empty,
    /// The sender was dropped without sending, or the value has been taken.
    Closed,
}

error_text!([] TryRecvError {
    TryRecvError::Empty => "no value yet: try again later, or await the receiver",
    TryRecvError::Closed => "there will be no value: stop asking",
});
