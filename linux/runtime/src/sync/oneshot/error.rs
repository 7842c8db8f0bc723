//! Errors of a oneshot channel.

use super::super::error_text::error_text;

/// The error of a [`Receiver`](super::Receiver): the sender was dropped without sending a value.
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let (sender, receiver) = upshift::sync::oneshot::channel::<u32>();
/// upshift::task::spawn(async move { drop(sender) }).detach();
/// let error = receiver.await.unwrap_err();
/// assert!(error.to_string().contains("without sending a value"));
/// # });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvError(pub(super) ());

error_text!([] RecvError {
    RecvError(()) => "the sender was dropped without sending a value: check why the sender ended",
});

/// The error of [`Receiver::try_recv`](super::Receiver::try_recv).
///
/// ```
/// use upshift::sync::oneshot::{self, error::TryRecvError};
///
/// let (sender, mut receiver) = oneshot::channel::<u32>();
/// assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
/// drop(sender);
/// assert_eq!(receiver.try_recv(), Err(TryRecvError::Closed));
/// ```
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
