//! Permits: room in a bounded channel, reserved before there is a message.

use std::fmt;
use std::future::Future;
use std::iter::FusedIterator;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::bounded::Sender;
use super::chan::Chan;
use super::error::SendError;
use crate::sync::wait_queue::Key;

/// The future of [`Sender::reserve`]. When dropped, it leaves the queue or gives its room back.
#[must_use = "futures do nothing unless awaited"]
pub struct Reserve<'a, T> {
    chan: &'a Chan<T>,
    num_permits: usize,
    key: Option<Key>,
}

impl<'a, T> Reserve<'a, T> {
    pub(super) fn new(chan: &'a Chan<T>, num_permits: usize) -> Reserve<'a, T> {
        Reserve {
            chan,
            num_permits,
            key: None,
        }
    }

    /// Waits for the room and leaves it reserved, so that the caller can create a permit for it.
    pub(super) fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SendError<()>>> {
        self.chan.poll_reserve(self.num_permits, &mut self.key, cx)
    }
}

impl<'a, T> Future for Reserve<'a, T> {
    type Output = Result<Permit<'a, T>, SendError<()>>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let chan = self.chan;
        self.poll_room(cx).map_ok(|()| Permit { chan })
    }
}

impl<T> Drop for Reserve<'_, T> {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.chan.cancel_reserve(key);
        }
    }
}

impl<T> fmt::Debug for Reserve<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reserve").finish_non_exhaustive()
    }
}

/// Room for one message in a [`channel`](super::channel); given back if dropped unused.
///
/// ```
/// let (sender, mut receiver) = upshift::sync::mpsc::channel(1);
/// let permit = sender.try_reserve()?;
/// drop(permit);
/// sender.try_reserve()?.send("the room was given back");
/// assert!(receiver.try_recv().is_ok());
/// # Ok::<(), upshift::sync::mpsc::TrySendError<()>>(())
/// ```
#[must_use = "the room is given back when this is dropped"]
pub struct Permit<'a, T> {
    chan: &'a Chan<T>,
}

impl<'a, T> Permit<'a, T> {
    /// Creates the permit. The caller has reserved the room.
    pub(super) fn new(chan: &'a Chan<T>) -> Permit<'a, T> {
        Permit { chan }
    }

    /// Sends the message. If the receiver is gone the message is dropped.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let (sender, mut receiver) = upshift::sync::mpsc::channel(1);
    /// let permit = sender.reserve().await.unwrap();
    /// permit.send("the room was reserved");
    /// assert_eq!(receiver.recv().await, Some("the room was reserved"));
    /// # });
    /// ```
    pub fn send(self, value: T) {
        let chan = self.chan;
        // The message uses the room even if the wake of the receiver panics, so `drop` must not
        // give the room back.
        std::mem::forget(self);
        drop(chan.put_reserved(value));
    }
}

impl<T> Drop for Permit<'_, T> {
    fn drop(&mut self) {
        self.chan.unreserve(1);
    }
}

impl<T> fmt::Debug for Permit<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").finish_non_exhaustive()
    }
}

/// Room for several messages, as an iterator of [`Permit`]s. When dropped, it gives the unused room
/// back.
///
/// ```
/// let (sender, mut receiver) = upshift::sync::mpsc::channel(3);
/// let mut permits = sender.try_reserve_many(3)?;
/// permits.next().unwrap().send(1);
/// assert_eq!(permits.len(), 2);
/// drop(permits);
/// assert_eq!(sender.capacity(), 2);
/// assert_eq!(receiver.try_recv(), Ok(1));
/// # Ok::<(), upshift::sync::mpsc::TrySendError<()>>(())
/// ```
#[must_use = "the room is given back when this is dropped"]
pub struct PermitIterator<'a, T> {
    chan: &'a Chan<T>,
    left: usize,
}

impl<'a, T> PermitIterator<'a, T> {
    /// Creates the iterator. The caller has reserved the room.
    pub(super) fn new(chan: &'a Chan<T>, left: usize) -> PermitIterator<'a, T> {
        PermitIterator { chan, left }
    }
}

impl<'a, T> Iterator for PermitIterator<'a, T> {
    type Item = Permit<'a, T>;

    fn next(&mut self) -> Option<Permit<'a, T>> {
        self.left = self.left.checked_sub(1)?;
        Some(Permit { chan: self.chan })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<T> ExactSizeIterator for PermitIterator<'_, T> {}
impl<T> FusedIterator for PermitIterator<'_, T> {}

impl<T> Drop for PermitIterator<'_, T> {
    fn drop(&mut self) {
        if self.left > 0 {
            self.chan.unreserve(self.left);
        }
    }
}

impl<T> fmt::Debug for PermitIterator<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PermitIterator")
            .field("left", &self.left)
            .finish_non_exhaustive()
    }
}

/// [`Permit`] that owns a [`Sender`] and can be moved into another coroutine.
///
/// ```
/// use upshift::sync::mpsc;
///
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let (sender, mut receiver) = mpsc::channel(1);
/// let permit = sender.clone().reserve_owned().await.unwrap();
/// assert_eq!(sender.capacity(), 0);
/// upshift::task::spawn(async move { permit.send("from a coroutine") }).detach();
/// assert_eq!(receiver.recv().await, Some("from a coroutine"));
/// # });
/// ```
#[must_use = "the room is given back when this is dropped"]
pub struct OwnedPermit<T> {
    /// `None` once the permit has been used.
    sender: Option<Sender<T>>,
}

impl<T> OwnedPermit<T> {
    /// Creates the permit. The caller has reserved the room.
    pub(super) fn new(sender: Sender<T>) -> OwnedPermit<T> {
        OwnedPermit {
            sender: Some(sender),
        }
    }

    fn take(&mut self) -> Sender<T> {
        self.sender.take().expect("a permit is used once")
    }

    /// Sends the message and returns the sender. If the receiver is gone the message is dropped.
    ///
    /// ```
    /// let (sender, mut receiver) = upshift::sync::mpsc::channel(2);
    /// let sender = sender.try_reserve_owned().unwrap().send(1);
    /// sender.try_send(2).unwrap();
    /// assert_eq!((receiver.try_recv(), receiver.try_recv()), (Ok(1), Ok(2)));
    /// ```
    pub fn send(mut self, value: T) -> Sender<T> {
        let sender = self.take();
        drop(sender.chan().put_reserved(value));
        sender
    }

    /// Gives the room back and returns the sender.
    ///
    /// ```
    /// let (sender, _receiver) = upshift::sync::mpsc::channel::<u8>(1);
    /// let sender = sender.try_reserve_owned().unwrap().release();
    /// assert_eq!(sender.capacity(), 1);
    /// ```
    pub fn release(mut self) -> Sender<T> {
        let sender = self.take();
        sender.chan().unreserve(1);
        sender
    }

    /// Returns true if both are permits of one channel.
    ///
    /// ```
    /// let (sender, _receiver) = upshift::sync::mpsc::channel::<u32>(2);
    /// let first = sender.clone().try_reserve_owned().unwrap();
    /// let second = sender.try_reserve_owned().unwrap();
    /// assert!(first.same_channel(&second));
    /// ```
    #[must_use]
    pub fn same_channel(&self, other: &Self) -> bool {
        match &other.sender {
            Some(sender) => self.same_channel_as_sender(sender),
            None => false,
        }
    }

    /// Returns true if `sender` belongs to the channel of this permit.
    ///
    /// ```
    /// let (sender, _receiver) = upshift::sync::mpsc::channel::<u32>(1);
    /// let permit = sender.clone().try_reserve_owned().unwrap();
    /// assert!(permit.same_channel_as_sender(&sender));
    /// ```
    #[must_use]
    pub fn same_channel_as_sender(&self, sender: &Sender<T>) -> bool {
        self.sender
            .as_ref()
            .is_some_and(|own| own.same_channel(sender))
    }
}

impl<T> Drop for OwnedPermit<T> {
    fn drop(&mut self) {
        if let Some(sender) = self.sender.take() {
            sender.chan().unreserve(1);
        }
    }
}

impl<T> fmt::Debug for OwnedPermit<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedPermit").finish_non_exhaustive()
    }
}
