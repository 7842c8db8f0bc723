//! What can go wrong with a watch channel.

use std::error::Error;
use std::fmt;

/// There is no receiver; here is the value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SendError<T>(pub T);

impl<T> fmt::Debug for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendError").finish_non_exhaustive()
    }
}

impl<T> fmt::Display for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the channel has no receiver: stop sending, or use `send_replace`")
    }
}

impl<T> Error for SendError<T> {}

/// All senders are gone: there will be no other value.
#[derive(Clone, Debug)]
pub struct RecvError(pub(super) ());

impl fmt::Display for RecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the channel's senders are gone: the value stays as it is")
    }
}

impl Error for RecvError {}
