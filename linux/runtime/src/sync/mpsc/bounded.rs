//! The bounded channel: a full one makes its senders wait.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::chan::Chan;
use super::error::{SendError, SendTimeoutError, TryRecvError, TrySendError};
use super::permit::{OwnedPermit, Permit, PermitIterator, Reserve};
use super::receiving::receiving;
use super::sending::sending;
use super::weak::WeakSender;
use crate::sync::park;
use crate::sync::wait_queue::Key;

/// A channel with room for `capacity` messages.
///
/// # Panics
/// Without room for one.
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
#[track_caller]
pub fn channel<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    assert!(capacity > 0, "a bounded channel needs room for a message");
    // `usize::MAX` stands for no limit; one less does not fit into memory either.
    let chan = Chan::new(capacity.min(usize::MAX - 1));
    (Sender { chan: chan.clone() }, Receiver { chan })
}

/// Puts messages into a [`channel`]. Clone it for more senders.
pub struct Sender<T> {
    chan: Arc<Chan<T>>,
}

impl<T> Sender<T> {
    pub(super) fn chan(&self) -> &Arc<Chan<T>> {
        &self.chan
    }

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

    /// [`send`](Sender::send), for a duration at most.
    ///
    /// # Errors
    /// [`SendTimeoutError`] with the value: no room in time, or closed.
    ///
    /// # Panics
    /// As [`sleep`](crate::time::sleep), if there is no room at once.
    #[cfg(not(loom))]
    pub async fn send_timeout(
        &self,
        value: T,
        timeout: std::time::Duration,
    ) -> Result<(), SendTimeoutError<T>> {
        match crate::time::timeout(timeout, self.reserve()).await {
            Ok(Ok(permit)) => {
                permit.send(value);
                Ok(())
            }
            Ok(Err(_)) => Err(SendTimeoutError::Closed(value)),
            Err(_) => Err(SendTimeoutError::Timeout(value)),
        }
    }

    /// Waits for room, as [`send`](Sender::send) does, before there is a value.
    ///
    /// # Errors
    /// [`SendError`] (from the future) when the receiver is closed or gone.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let (sender, mut receiver) = upshift::sync::mpsc::channel(1);
    /// let permit = sender.reserve().await.unwrap();
    /// assert!(sender.try_send(1).is_err());
    /// permit.send(2);
    /// assert_eq!(receiver.recv().await, Some(2));
    /// # });
    /// ```
    pub fn reserve(&self) -> Reserve<'_, T> {
        Reserve::new(&self.chan, 1)
    }

    /// Waits for room for so many messages at once.
    ///
    /// # Errors
    /// [`SendError`] when the receiver is closed or gone, and for more than there is room
    /// for in all.
    pub async fn reserve_many(
        &self,
        messages: usize,
    ) -> Result<PermitIterator<'_, T>, SendError<()>> {
        let mut reserve = Reserve::new(&self.chan, messages);
        poll_fn(|cx| reserve.poll_room(cx)).await?;
        Ok(PermitIterator::new(&self.chan, messages))
    }

    /// [`reserve`](Sender::reserve) with a permit that can be moved into another coroutine.
    ///
    /// # Errors
    /// As [`reserve`](Sender::reserve).
    pub async fn reserve_owned(self) -> Result<OwnedPermit<T>, SendError<()>> {
        {
            let mut reserve = Reserve::new(&self.chan, 1);
            poll_fn(|cx| reserve.poll_room(cx)).await?;
        }
        Ok(OwnedPermit::new(self))
    }

    /// Room for a message, if there is some.
    ///
    /// # Errors
    /// [`TrySendError`]: full, or closed.
    pub fn try_reserve(&self) -> Result<Permit<'_, T>, TrySendError<()>> {
        self.chan.try_reserve(1)?;
        Ok(Permit::new(&self.chan))
    }

    /// Room for so many messages, if there is as much.
    ///
    /// # Errors
    /// As [`try_reserve`](Sender::try_reserve).
    pub fn try_reserve_many(
        &self,
        messages: usize,
    ) -> Result<PermitIterator<'_, T>, TrySendError<()>> {
        self.chan.try_reserve(messages)?;
        Ok(PermitIterator::new(&self.chan, messages))
    }

    /// [`try_reserve`](Sender::try_reserve) with a permit that can be moved into another
    /// coroutine.
    ///
    /// # Errors
    /// As [`try_reserve`](Sender::try_reserve), with the sender.
    pub fn try_reserve_owned(self) -> Result<OwnedPermit<T>, TrySendError<Self>> {
        match self.chan.try_reserve(1) {
            Ok(()) => Ok(OwnedPermit::new(self)),
            Err(TrySendError::Full(())) => Err(TrySendError::Full(self)),
            Err(TrySendError::Closed(())) => Err(TrySendError::Closed(self)),
        }
    }

    /// For how many messages there is room now.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.chan.room()
    }

    /// For how many messages there is room in all.
    #[must_use]
    pub fn max_capacity(&self) -> usize {
        self.chan.limit()
    }
}

sending!(Sender, WeakSender);

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
            self.sender.chan.cancel_reserve(key);
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

    /// For how many messages there is room now.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.chan.room()
    }

    /// For how many messages there is room in all.
    #[must_use]
    pub fn max_capacity(&self) -> usize {
        self.chan.limit()
    }
}

receiving!(Receiver);

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
