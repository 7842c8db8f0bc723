//! The unbounded channel: sending never waits, memory is the only limit.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::bounded::Recv;
use super::chan::Chan;
use super::error::{SendError, TryRecvError};
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

    /// [`recv`](UnboundedReceiver::recv) for hand-written futures. Only the last
    /// waker is woken.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        self.chan.poll_recv(cx)
    }

    /// The next message if there is one.
    ///
    /// # Errors
    /// [`TryRecvError`]: empty for now, or for ever.
    pub fn try_recv(&mut self) -> Result<T, TryRecvError> {
        self.chan.try_recv()
    }

    /// [`recv`](UnboundedReceiver::recv) for threads: blocks the calling one.
    ///
    /// # Panics
    /// In a coroutine, whose vCPU it would stop.
    #[track_caller]
    pub fn blocking_recv(&mut self) -> Option<T> {
        park::block_on(self.recv())
    }

    /// Lets no more messages in; what is inside can still be received.
    pub fn close(&mut self) {
        self.chan.close(false);
    }

    /// Up to `limit` messages at once, appended to `buffer`, as soon as there is one; how
    /// many. None: as [`recv`](UnboundedReceiver::recv), or `limit` is 0.
    ///
    /// The future may be dropped at any time without losing a message.
    pub async fn recv_many(&mut self, buffer: &mut Vec<T>, limit: usize) -> usize {
        poll_fn(|cx| self.poll_recv_many(cx, buffer, limit)).await
    }

    /// [`recv_many`](UnboundedReceiver::recv_many) for hand-written futures.
    pub fn poll_recv_many(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut Vec<T>,
        limit: usize,
    ) -> Poll<usize> {
        self.chan.poll_recv_many(cx, buffer, limit)
    }

    /// [`recv_many`](UnboundedReceiver::recv_many) for threads: blocks the calling one.
    ///
    /// # Panics
    /// In a coroutine, whose vCPU it would stop.
    #[track_caller]
    pub fn blocking_recv_many(&mut self, buffer: &mut Vec<T>, limit: usize) -> usize {
        park::block_on(self.recv_many(buffer, limit))
    }

    /// Has it been closed, or are all senders gone?
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.chan.is_shut()
    }

    /// How many senders the channel has.
    #[must_use]
    pub fn sender_strong_count(&self) -> usize {
        self.chan.counts().0
    }

    /// How many weak ones it has.
    #[must_use]
    pub fn sender_weak_count(&self) -> usize {
        self.chan.counts().1
    }

    /// How many messages are inside.
    #[must_use]
    pub fn len(&self) -> usize {
        self.chan.len()
    }

    /// Is no message inside?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> Drop for UnboundedReceiver<T> {
    fn drop(&mut self) {
        self.chan.close(true);
    }
}

impl<T> fmt::Debug for UnboundedReceiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnboundedReceiver").finish_non_exhaustive()
    }
}
