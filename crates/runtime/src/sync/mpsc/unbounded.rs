//! The unbounded channel: sending never waits, memory is the only limit.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::bounded::Recv;
use super::chan::Chan;
use super::error::{SendError, TryRecvError};
use super::receiving::receiving;
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
    /// The caller has counted it.
    pub(super) fn of(chan: Arc<Chan<T>>) -> UnboundedSender<T> {
        UnboundedSender { chan }
    }

    /// Puts the value in.
    ///
    /// # Errors
    /// [`SendError`] with the value when the receiver is closed or gone.
    pub fn send(&self, value: T) -> Result<(), SendError<T>> {
        self.chan
            .try_send(value)
            .map_err(|error| SendError(error.into_inner()))
    }

    /// Waits until the receiver is closed or gone.
    pub async fn closed(&self) {
        self.chan.closed().await;
    }

    /// Is the receiver closed or gone?
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.chan.is_closed()
    }

    /// Are both of one channel?
    #[must_use]
    pub fn same_channel(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.chan, &other.chan)
    }

    /// A sender that does not keep the channel open.
    #[must_use]
    pub fn downgrade(&self) -> WeakUnboundedSender<T> {
        WeakUnboundedSender::new(&self.chan)
    }

    /// How many senders the channel has.
    #[must_use]
    pub fn strong_count(&self) -> usize {
        self.chan.counts().0
    }

    /// How many weak ones it has.
    #[must_use]
    pub fn weak_count(&self) -> usize {
        self.chan.counts().1
    }
}

impl<T> Clone for UnboundedSender<T> {
    fn clone(&self) -> UnboundedSender<T> {
        self.chan.add_sender();
        UnboundedSender {
            chan: self.chan.clone(),
        }
    }
}

impl<T> Drop for UnboundedSender<T> {
    fn drop(&mut self) {
        self.chan.remove_sender();
    }
}

impl<T> fmt::Debug for UnboundedSender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnboundedSender").finish_non_exhaustive()
    }
}

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
