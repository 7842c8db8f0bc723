//! The unbounded channel: sending never waits, memory is the only limit.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::bounded::Recv;
use super::chan::Chan;
use super::error::{SendError, TryRecvError};
use super::receiving::receiving;
use super::sending::sending;
use super::weak::WeakUnboundedSender;
use crate::sync::park;

/// A channel without a bound.
///
/// **Unbounded**: if messages come faster than they are received for long enough,
/// the process runs out of memory. Use [`channel`](super::channel) unless
/// something else limits the number of messages.
///
/// ```
/// let (sender, mut receiver) = upshift::sync::mpsc::unbounded_channel();
/// sender.send(1).unwrap();
/// assert_eq!(receiver.try_recv(), Ok(1));
/// ```
#[must_use]
pub fn unbounded_channel<T>() -> (UnboundedSender<T>, UnboundedReceiver<T>) {
    let chan = Chan::new(usize::MAX);
    (
        UnboundedSender { chan: chan.clone() },
        UnboundedReceiver { chan },
    )
}

/// Puts messages into an [`unbounded_channel`], from coroutines and threads.
/// Clone it for more senders.
pub struct UnboundedSender<T> {
    chan: Arc<Chan<T>>,
}

impl<T> UnboundedSender<T> {
    /// Puts the value in.
    ///
    /// # Errors
    /// [`SendError`] with the value when the receiver is closed or gone.
    pub fn send(&self, value: T) -> Result<(), SendError<T>> {
        self.chan
            .try_send(value)
            .map_err(|error| SendError(error.into_inner()))
    }
}

sending!(UnboundedSender, WeakUnboundedSender);

/// Takes messages out of an [`unbounded_channel`].
///
/// Dropping it closes the channel and drops the messages inside.
pub struct UnboundedReceiver<T> {
    chan: Arc<Chan<T>>,
}

impl<T> UnboundedReceiver<T> {
    /// The next message; `None` when the channel is empty and all senders are gone
    /// or the receiver is [closed](UnboundedReceiver::close).
    ///
    /// The future may be dropped at any time without losing a message.
    pub fn recv(&mut self) -> Recv<'_, T> {
        Recv::new(&self.chan)
    }

    /// Lets no more messages in; what is inside can still be received.
    pub fn close(&mut self) {
        self.chan.close(false);
    }
}

receiving!(UnboundedReceiver);
