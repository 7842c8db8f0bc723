//! The bounded channel, whose senders wait while it is full.

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

/// Creates a channel with room for `capacity` messages.
///
/// # Panics
/// If `capacity` is 0.
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
    // `usize::MAX` stands for no limit. The next lower limit serves as well, because that many
    // messages do not fit into memory.
    let chan = Chan::new(capacity.min(usize::MAX - 1));
    (Sender { chan: chan.clone() }, Receiver { chan })
}

/// A sender of messages into a [`channel`]. Clone it for more senders.
///
/// ```
/// use upshift::{Priority, sync::mpsc};
///
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let (sender, mut receiver) = mpsc::channel(2);
/// let second = sender.clone();
/// let task = async move { second.send("from a coroutine").await };
/// upshift::spawn(task, Priority::Inherit).detach();
/// assert_eq!(receiver.recv().await, Some("from a coroutine"));
/// drop(sender);
/// assert_eq!(receiver.recv().await, None);
/// # });
/// ```
pub struct Sender<T> {
    chan: Arc<Chan<T>>,
}

impl<T> Sender<T> {
    pub(super) fn chan(&self) -> &Arc<Chan<T>> {
        &self.chan
    }

    /// Sends a value, waiting for room if the channel is full. Room goes to the most
    /// urgent waiting sender, first come first served within a level.
    ///
    /// # Cancellation safety
    /// The future may be dropped at any time. The value is then dropped, not sent, and the sender
    /// loses its place in the queue. To keep the value, [`reserve`](Sender::reserve) first and send
    /// with the permit.
    ///
    /// # Errors
    /// [`SendError`] with the value (from the future) when the receiver is closed or dropped.
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
    pub fn send(&self, value: T) -> SendFuture<'_, T> {
        SendFuture {
            sender: self,
            value: Some(value),
            key: None,
        }
    }

    /// Sends a value if there is room.
    ///
    /// # Errors
    /// [`TrySendError`] with the value if the channel is full or closed.
    ///
    /// ```
    /// use upshift::sync::mpsc::{self, TrySendError};
    ///
    /// let (sender, receiver) = mpsc::channel(1);
    /// sender.try_send(1)?;
    /// assert_eq!(sender.try_send(2), Err(TrySendError::Full(2)));
    /// drop(receiver);
    /// assert_eq!(sender.try_send(3), Err(TrySendError::Closed(3)));
    /// # Ok::<(), TrySendError<i32>>(())
    /// ```
    pub fn try_send(&self, value: T) -> Result<(), TrySendError<T>> {
        self.chan.try_send(value)
    }

    /// Sends like [`send`](Sender::send), but blocks the calling thread.
    ///
    /// # Errors
    /// The errors of [`send`](Sender::send).
    ///
    /// # Panics
    /// When called in a coroutine, because the call would stop its vCPU.
    ///
    /// ```
    /// let (sender, mut receiver) = upshift::sync::mpsc::channel(1);
    /// let producer = std::thread::spawn(move || {
    ///     for n in 0..3 {
    ///         sender.blocking_send(n).unwrap();
    ///     }
    /// });
    /// let mut sum = 0;
    /// while let Some(n) = receiver.blocking_recv() {
    ///     sum += n;
    /// }
    /// producer.join().unwrap();
    /// assert_eq!(sum, 3);
    /// ```
    #[track_caller]
    pub fn blocking_send(&self, value: T) -> Result<(), SendError<T>> {
        park::block_on(self.send(value))
    }

    /// Sends like [`send`](Sender::send), but gives up after a duration.
    ///
    /// # Cancellation safety
    /// If the future is dropped, the value is dropped and not sent.
    ///
    /// # Errors
    /// [`SendTimeoutError`] with the value if there was no room in time or the channel is
    /// closed.
    ///
    /// # Panics
    /// Like [`sleep`](crate::time::sleep), if there is no room at once.
    ///
    /// ```
    /// use std::time::Duration;
    /// use upshift::sync::mpsc::{self, SendTimeoutError};
    ///
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let (sender, _receiver) = mpsc::channel(1);
    /// let limit = Duration::from_millis(1);
    /// sender.send_timeout(1, limit).await.unwrap();
    /// let full = sender.send_timeout(2, limit).await.unwrap_err();
    /// assert_eq!(full, SendTimeoutError::Timeout(2));
    /// # });
    /// ```
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

    /// Reserves room for one message, waiting like [`send`](Sender::send).
    ///
    /// # Cancellation safety
    /// The future may be dropped at any time. The sender then loses its place in the queue, and
    /// room that it had been given goes to the next sender.
    ///
    /// # Errors
    /// [`SendError`] (from the future) when the receiver is closed or dropped.
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

    /// Reserves room for several messages at once, waiting like [`send`](Sender::send).
    ///
    /// # Cancellation safety
    /// Like that of [`reserve`](Sender::reserve).
    ///
    /// # Errors
    /// [`SendError`] when the receiver is closed or dropped, or if `messages` is above
    /// [`max_capacity`](Sender::max_capacity).
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let (sender, mut receiver) = upshift::sync::mpsc::channel(4);
    /// for (permit, word) in sender.reserve_many(2).await.unwrap().zip(["one", "two"]) {
    ///     permit.send(word);
    /// }
    /// assert_eq!(receiver.recv().await, Some("one"));
    /// assert_eq!(receiver.recv().await, Some("two"));
    /// # });
    /// ```
    pub async fn reserve_many(
        &self,
        messages: usize,
    ) -> Result<PermitIterator<'_, T>, SendError<()>> {
        let mut reserve = Reserve::new(&self.chan, messages);
        poll_fn(|cx| reserve.poll_room(cx)).await?;
        Ok(PermitIterator::new(&self.chan, messages))
    }

    /// Reserves room like [`reserve`](Sender::reserve), with a permit that can be moved into
    /// another coroutine.
    ///
    /// # Cancellation safety
    /// If the future is dropped, the sender is dropped with it, so clone the sender first to keep
    /// it.
    ///
    /// # Errors
    /// The errors of [`reserve`](Sender::reserve).
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let (sender, mut receiver) = upshift::sync::mpsc::channel(1);
    /// let permit = sender.clone().reserve_owned().await.unwrap();
    /// let task = async move { permit.send(7) };
    /// upshift::spawn(task, upshift::Priority::Inherit).detach();
    /// assert_eq!(receiver.recv().await, Some(7));
    /// # });
    /// ```
    pub async fn reserve_owned(self) -> Result<OwnedPermit<T>, SendError<()>> {
        {
            let mut reserve = Reserve::new(&self.chan, 1);
            poll_fn(|cx| reserve.poll_room(cx)).await?;
        }
        Ok(OwnedPermit::new(self))
    }

    /// Reserves room for one message if the channel is not full.
    ///
    /// # Errors
    /// [`TrySendError`] if the channel is full or closed.
    ///
    /// ```
    /// let (sender, mut receiver) = upshift::sync::mpsc::channel(1);
    /// let permit = sender.try_reserve()?;
    /// assert!(sender.try_reserve().is_err());
    /// permit.send(1);
    /// assert_eq!(receiver.try_recv(), Ok(1));
    /// # Ok::<(), upshift::sync::mpsc::TrySendError<()>>(())
    /// ```
    pub fn try_reserve(&self) -> Result<Permit<'_, T>, TrySendError<()>> {
        self.chan.try_reserve(1)?;
        Ok(Permit::new(&self.chan))
    }

    /// Reserves room for several messages if there is enough.
    ///
    /// # Errors
    /// The errors of [`try_reserve`](Sender::try_reserve).
    ///
    /// ```
    /// let (sender, _receiver) = upshift::sync::mpsc::channel::<u8>(2);
    /// let permits = sender.try_reserve_many(2)?;
    /// assert_eq!((permits.len(), sender.capacity()), (2, 0));
    /// assert!(sender.try_reserve_many(1).is_err());
    /// # Ok::<(), upshift::sync::mpsc::TrySendError<()>>(())
    /// ```
    pub fn try_reserve_many(
        &self,
        messages: usize,
    ) -> Result<PermitIterator<'_, T>, TrySendError<()>> {
        self.chan.try_reserve(messages)?;
        Ok(PermitIterator::new(&self.chan, messages))
    }

    /// Reserves room like [`try_reserve`](Sender::try_reserve), with a permit that can be moved
    /// into another coroutine.
    ///
    /// # Errors
    /// The errors of [`try_reserve`](Sender::try_reserve), with the sender.
    ///
    /// ```
    /// let (sender, mut receiver) = upshift::sync::mpsc::channel(1);
    /// let permit = sender.try_reserve_owned().unwrap();
    /// let sender = permit.send(1);
    /// assert!(sender.try_reserve_owned().is_err());
    /// assert_eq!(receiver.try_recv(), Ok(1));
    /// ```
    pub fn try_reserve_owned(self) -> Result<OwnedPermit<T>, TrySendError<Self>> {
        match self.chan.try_reserve(1) {
            Ok(()) => Ok(OwnedPermit::new(self)),
            Err(TrySendError::Full(())) => Err(TrySendError::Full(self)),
            Err(TrySendError::Closed(())) => Err(TrySendError::Closed(self)),
        }
    }

    /// Returns the number of messages for which there is room now.
    ///
    /// ```
    /// let (sender, _receiver) = upshift::sync::mpsc::channel(5);
    /// sender.try_send(1)?;
    /// assert_eq!((sender.capacity(), sender.max_capacity()), (4, 5));
    /// # Ok::<(), upshift::sync::mpsc::TrySendError<i32>>(())
    /// ```
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.chan.room()
    }

    /// Returns the number of messages for which there is room in an empty channel.
    ///
    /// ```
    /// let (sender, _receiver) = upshift::sync::mpsc::channel(5);
    /// sender.try_send(1)?;
    /// assert_eq!((sender.max_capacity(), sender.capacity()), (5, 4));
    /// # Ok::<(), upshift::sync::mpsc::TrySendError<i32>>(())
    /// ```
    #[must_use]
    pub fn max_capacity(&self) -> usize {
        self.chan.limit()
    }
}

sending!(Sender, WeakSender);

/// The future of [`Sender::send`].
#[must_use = "futures do nothing unless awaited"]
pub struct SendFuture<'a, T> {
    sender: &'a Sender<T>,
    value: Option<T>,
    key: Option<Key>,
}

/// The value is moved out, never pinned.
impl<T> Unpin for SendFuture<'_, T> {}

impl<T> Future for SendFuture<'_, T> {
    type Output = Result<(), SendError<T>>;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let SendFuture { sender, value, key } = self.get_mut();
        sender.chan.poll_send(value, key, cx)
    }
}

impl<T> Drop for SendFuture<'_, T> {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.sender.chan.cancel_reserve(key);
        }
    }
}

impl<T> fmt::Debug for SendFuture<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendFuture").finish_non_exhaustive()
    }
}

/// The receiver of a [`channel`].
///
/// When it is dropped, the channel is closed, and the messages inside are dropped.
///
/// ```
/// use upshift::sync::mpsc;
///
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let (sender, mut receiver) = mpsc::channel(2);
/// upshift::task::spawn(async move {
///     for n in 1..=3 {
///         sender.send(n).await.unwrap(); // Waits while the channel is full.
///     }
/// })
/// .detach();
/// let mut sum = 0;
/// while let Some(n) = receiver.recv().await {
///     sum += n;
/// }
/// assert_eq!(sum, 6);
/// # });
/// ```
pub struct Receiver<T> {
    chan: Arc<Chan<T>>,
}

impl<T> Receiver<T> {
    /// Receives the next message. Returns `None` when the channel is empty and all senders are
    /// gone or the receiver is [closed](Receiver::close).
    ///
    /// # Cancellation safety
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

    /// Closes the channel. Senders fail from now on; messages inside can still be received.
    ///
    /// A [`Permit`] that is held may still be used. To receive everything, call
    /// [`recv`](Receiver::recv) until it returns `None`.
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

    /// Returns the number of messages for which there is room now.
    ///
    /// ```
    /// let (sender, receiver) = upshift::sync::mpsc::channel(5);
    /// sender.try_send(1)?;
    /// assert_eq!((receiver.capacity(), receiver.max_capacity()), (4, 5));
    /// # Ok::<(), upshift::sync::mpsc::TrySendError<i32>>(())
    /// ```
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.chan.room()
    }

    /// Returns the number of messages for which there is room in an empty channel.
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
