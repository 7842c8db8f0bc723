//! What can go wrong with a oneshot channel.

use super::super::says::says;

/// There is and will be no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvError(pub(super) ());

says!([] RecvError {
    RecvError(()) => "the sender went without sending a value: look why it ended",
});

/// Why [`Receiver::try_recv`](super::Receiver::try_recv) has no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TryRecvError {
    /// It has not been sent yet.
    Empty,
    /// The sender went without sending, or the value was taken before.
    Closed,
}

says!([] TryRecvError {
    TryRecvError::Empty => "no value yet: try again later, or await the receiver",
    TryRecvError::Closed => "there will be no value: stop asking",
});
