//! The bounded channel: a full one makes its senders wait.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::chan::Chan;
use super::error::{SendError, TryRecvError, TrySendError};
use crate::sync::park;
use crate::sync::wait_queue::Key;

/// A channel with room for `capacity` messages; 0 counts as 1.
///
/// ```
/// use upshift::sync::mpsc;
///
/// let (sender, mut receiver) = mpsc::channel(1);
/// sender.try_send("first").unwrap();
/// assert!(sender.try_send("second").is_err());
/// assert_eq!(receiver.try_recv(), Ok("first"));
/// ```
#[must_use]
pub fn channel<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    // `usize::MAX` stands for no limit; one less does not fit into memory either.
    let chan = Chan::new(capacity.clamp(1, usize::MAX - 1));
    (Sender { chan: chan.clone() }, Receiver { chan })
}

/// Puts messages into a [`channel`]. Clone it for more senders.
pub struct Sender<T> {
    chan: Arc<Chan<T>>,
}

impl<T> Sender<T> {
    /// Puts the value in, waiting for room if there is none. Room goes to the most
    /// urgent waiting sender, first come first served within a level.
    ///
    /// The future may be dropped at any time: until it is ready the value has not
    /// been sent.
    ///
    /// # Errors
    /// [`SendError`] with the value (from the future) when the receiver is closed
    /// or gone.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let (sender, mut receiver) = upshift::sync::mpsc::channel(4);
    /// sender.send(7).await.unwrap();
    /// assert_eq!(receiver.recv().await, Some(7));
    /// drop(receiver);
    /// assert_eq!(sender.send(8).await.unwrap_err().0, 8);
    /// # });
    /// ```
    pub fn send(&self, value: T) -> Sending<'_, T> {
        Sending {
            sender: self,
            value: Some(value),
            key: None,
        }
    }

    /// Puts the value in if there is room.
    ///
    /// # Errors
    /// [`TrySendError`] with the value: full, or closed.
    pub fn try_send(&self, value: T) -> Result<(), TrySendError<T>> {
        self.chan.try_send(value)
    }

    /// [`send`](Sender::send) for threads: blocks the calling one.
    ///
    /// # Errors
    /// As [`send`](Sender::send).
    ///
    /// # Panics
    /// In a coroutine, whose vCPU it would stop.
    #[track_caller]
    pub fn blocking_send(&self, value: T) -> Result<(), SendError<T>> {
        park::block_on(self.send(value))
    }

    /// Is the receiver closed or gone?
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.chan.is_closed()
    }

    /// For how many messages there is room in all.
    #[must_use]
    pub fn max_capacity(&self) -> usize {
        self.chan.limit()
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        self.chan.add_sender();
        Sender {
            chan: self.chan.clone(),
        }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.chan.remove_sender();
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").finish_non_exhaustive()
    }
}

/// The future of [`Sender::send`].
#[must_use = "futures do nothing unless awaited"]
pub struct Sending<'a, T> {
    sender: &'a Sender<T>,
    value: Option<T>,
    key: Option<Key>,
}

/// The value is moved out, never pinned.
impl<T> Unpin for Sending<'_, T> {}

impl<T> Future for Sending<'_, T> {
    type Output = Result<(), SendError<T>>;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Sending { sender, value, key } = self.get_mut();
        sender.chan.poll_send(value, key, cx)
    }
}

impl<T> Drop for Sending<'_, T> {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.sender.chan.cancel_send(key);
        }
    }
}

impl<T> fmt::Debug for Sending<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sending").finish_non_exhaustive()
    }
}

/// Takes messages out of a [`channel`].
///
/// Dropping it closes the channel and drops the messages inside.
pub struct Receiver<T> {
    chan: Arc<Chan<T>>,
}

impl<T> Receiver<T> {
    /// The next message; `None` when the channel is empty and all senders are gone
    /// or the receiver is [closed](Receiver::close).
    ///
    /// The future may be dropped at any time without losing a message.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let (sender, mut receiver) = upshift::sync::mpsc::channel(4);
    /// sender.send(7).await.unwrap();
    /// drop(sender);
    /// assert_eq!(receiver.recv().await, Some(7));
    /// assert_eq!(receiver.recv().await, None);
    /// # });
    /// ```
    pub fn recv(&mut self) -> Recv<'_, T> {
        Recv { chan: &self.chan }
    }

    /// [`recv`](Receiver::recv) for hand-written futures. Only the last waker is
    /// woken.
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

    /// [`recv`](Receiver::recv) for threads: blocks the calling one.
    ///
    /// # Panics
    /// In a coroutine, whose vCPU it would stop.
    #[track_caller]
    pub fn blocking_recv(&mut self) -> Option<T> {
        park::block_on(self.recv())
    }

    /// Lets no more messages in; what is inside can still be received.
    ///
    /// ```
    /// let (sender, mut receiver) = upshift::sync::mpsc::channel(4);
    /// sender.try_send(1).unwrap();
    /// receiver.close();
    /// assert!(sender.try_send(2).is_err());
    /// assert_eq!(receiver.try_recv(), Ok(1));
    /// ```
    pub fn close(&mut self) {
        self.chan.close(false);
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

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.chan.close(true);
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").finish_non_exhaustive()
    }
}

/// The future of [`Receiver::recv`] and of `UnboundedReceiver::recv`.
#[must_use = "futures do nothing unless awaited"]
pub struct Recv<'a, T> {
    chan: &'a Chan<T>,
}

impl<'a, T> Recv<'a, T> {
    pub(super) fn new(chan: &'a Chan<T>) -> Recv<'a, T> {
        Recv { chan }
    }
}

impl<T> Future for Recv<'_, T> {
    type Output = Option<T>;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        self.chan.poll_recv(cx)
    }
}

impl<T> fmt::Debug for Recv<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recv").finish_non_exhaustive()
    }
}
