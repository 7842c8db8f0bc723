//! The unbounded channel. Sending never waits, and memory is the only limit.

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

/// Creates a channel without a bound.
///
/// **Unbounded** means that the process runs out of memory if messages arrive faster than they are
/// received for long enough. Use [`channel`](super::channel) unless the program limits the number
/// of messages in another way.
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

/// Sends messages into an [`unbounded_channel`], from coroutines and threads. Clone it for more
/// senders.
///
/// ```
/// use upshift::sync::mpsc;
///
/// let (sender, mut receiver) = mpsc::unbounded_channel();
/// let second = sender.clone();
/// std::thread::spawn(move || second.send("from a thread")).join().unwrap().unwrap();
/// assert_eq!(receiver.try_recv(), Ok("from a thread"));
/// ```
pub struct UnboundedSender<T> {
    chan: Arc<Chan<T>>,
}

impl<T> UnboundedSender<T> {
    /// Sends a value. Never waits.
    ///
    /// # Errors
    /// [`SendError`] with the value when the receiver is closed or dropped.
    ///
    /// ```
    /// let (sender, receiver) = upshift::sync::mpsc::unbounded_channel();
    /// sender.send(1)?;
    /// drop(receiver);
    /// assert_eq!(sender.send(2).unwrap_err().0, 2);
    /// # Ok::<(), upshift::sync::mpsc::SendError<i32>>(())
    /// ```
    pub fn send(&self, value: T) -> Result<(), SendError<T>> {
        self.chan
            .try_send(value)
            .map_err(|error| SendError(error.into_inner()))
    }
}

sending!(UnboundedSender, WeakUnboundedSender);

/// Receives messages from an [`unbounded_channel`].
///
/// When it is dropped the channel is closed, and the messages inside are dropped.
///
/// ```
/// use upshift::sync::mpsc;
///
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let (sender, mut receiver) = mpsc::unbounded_channel();
/// for n in 1..=3 {
///     sender.send(n).unwrap(); // Never waits.
/// }
/// drop(sender);
/// let mut sum = 0;
/// while let Some(n) = receiver.recv().await {
///     sum += n;
/// }
/// assert_eq!(sum, 6);
/// # });
/// ```
pub struct UnboundedReceiver<T> {
    chan: Arc<Chan<T>>,
}

impl<T> UnboundedReceiver<T> {
    /// Receives the next message. Returns `None` when the channel is empty and all senders are
    /// gone or the receiver is [closed](UnboundedReceiver::close).
    ///
    /// # Cancellation safety
    /// The future may be dropped at any time without losing a message.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let (sender, mut receiver) = upshift::sync::mpsc::unbounded_channel();
    /// sender.send(7).unwrap();
    /// drop(sender);
    /// assert_eq!(receiver.recv().await, Some(7));
    /// assert_eq!(receiver.recv().await, None);
    /// # });
    /// ```
    pub fn recv(&mut self) -> Recv<'_, T> {
        Recv::new(&self.chan)
    }

    /// Closes the channel. Senders fail from now on; messages inside can still be received.
    ///
    /// ```
    /// let (sender, mut receiver) = upshift::sync::mpsc::unbounded_channel();
    /// sender.send(1).unwrap();
    /// receiver.close();
    /// assert!(sender.send(2).is_err());
    /// assert_eq!(receiver.try_recv(), Ok(1));
    /// ```
    pub fn close(&mut self) {
        self.chan.close(false);
    }
}

receiving!(UnboundedReceiver);
