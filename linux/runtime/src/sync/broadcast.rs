//! A channel on which every receiver gets every message.
//!
//! The latest messages are kept in a ring buffer; a receiver is a position in the buffer. A
//! receiver *passes* a message when it receives it, or when it is dropped. Invariants, under the
//! lock:
//!
//! * the buffer has an entry for each of the positions `tail - ring.len() .. tail`;
//! * an entry counts the receivers that have not passed its message; at zero the message is taken
//!   out, and the empty entry stays. As receivers pass in order, the empty entries are the oldest.
//!
//! A message is cloned under a lock of its own, not under the channel's lock, because the user's
//! `clone` may take long. The last receiver gets the message itself. A message costs one
//! allocation. A dropped receiver passes the messages that it has not received, a few per
//! acquisition of the lock.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use super::lock::Lock;
use super::{Notify, park, proceed};

pub mod error;
mod receiver;
mod weak;

use error::SendError;
pub use receiver::Receiver;
pub use weak::WeakSender;

/// Number of messages that a dropped receiver passes per acquisition of the lock.
const DROP_BATCH: u64 = 32;

struct Shared<T> {
    state: Lock<State<T>>,
    /// Notified at each message, and when the last sender is dropped.
    sent: Notify,
    no_receivers: Notify,
}

struct State<T> {
    ring: VecDeque<Entry<T>>,
    capacity: usize,
    /// Position of the next message.
    tail: u64,
    senders: usize,
    /// Number of weak senders.
    weak: usize,
    receivers: usize,
}

struct Entry<T> {
    message: Option<Arc<Message<T>>>,
    /// Number of receivers that have not passed the message.
    awaited: usize,
}

/// A message. The `Mutex` lets receivers of several threads clone a value that is not `Sync`.
type Message<T> = Mutex<Option<T>>;

impl<T> State<T> {
    fn head(&self) -> u64 {
        self.tail - self.ring.len() as u64
    }

    /// Lets a receiver pass the message at a position. Returns the message, and true if this
    /// receiver was the last.
    fn pass(&mut self, position: u64) -> (Option<Arc<Message<T>>>, bool) {
        let index = (position - self.head()) as usize;
        let Some(entry) = self.ring.get_mut(index) else {
            return (None, false);
        };
        entry.awaited -= 1;
        match entry.awaited {
            0 => (entry.message.take(), true),
            _ => (entry.message.clone(), false),
        }
    }
}

/// Creates a channel on which every receiver gets every message sent after it subscribed.
///
/// The channel keeps `capacity` messages, rounded up to a power of two. A receiver that falls
/// further behind misses the oldest messages, and is told how many it missed.
///
/// # Panics
/// If `capacity` is 0 or above `usize::MAX / 2`.
///
/// ```
/// use upshift::sync::broadcast;
///
/// upshift::Runtime::new()?.block_on(async {
///     let (sender, mut first) = broadcast::channel(16);
///     let mut second = sender.subscribe();
///     sender.send("both get this").unwrap();
///     assert_eq!(first.recv().await, second.recv().await);
/// });
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use]
#[track_caller]
pub fn channel<T: Clone>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let sender = Sender::new(capacity);
    let receiver = sender.subscribe();
    (sender, receiver)
}

/// A sender of messages to all receivers. Clone it for more senders.
///
/// ```
/// use upshift::sync::broadcast;
///
/// let sender = broadcast::Sender::new(4);
/// assert!(sender.send("nobody listens").is_err());
/// let (mut first, mut second) = (sender.subscribe(), sender.subscribe());
/// assert_eq!(sender.send("hello"), Ok(2));
/// assert_eq!(first.try_recv(), Ok("hello"));
/// assert_eq!(second.try_recv(), Ok("hello"));
/// ```
pub struct Sender<T> {
    shared: Arc<Shared<T>>,
}

impl<T> Sender<T> {
    /// Creates a channel without receivers.
    ///
    /// # Panics
    /// If `capacity` is 0 or above `usize::MAX / 2`.
    ///
    /// ```
    /// let sender = upshift::sync::broadcast::Sender::<u32>::new(4);
    /// assert_eq!(sender.receiver_count(), 0);
    /// assert!(sender.send(1).is_err());
    /// ```
    #[must_use]
    #[track_caller]
    pub fn new(capacity: usize) -> Sender<T> {
        assert!(capacity > 0, "a broadcast channel needs room for a message");
        assert!(
            capacity <= usize::MAX >> 1,
            "the capacity of a broadcast channel is at most usize::MAX / 2"
        );
        Sender {
            shared: Arc::new(Shared {
                state: Lock::new(State {
                    ring: VecDeque::new(),
                    capacity: capacity.next_power_of_two(),
                    tail: 0,
                    senders: 1,
                    weak: 0,
                    receivers: 0,
                }),
                sent: Notify::new(),
                no_receivers: Notify::new(),
            }),
        }
    }

    /// Sends a message to all present receivers and returns their number. They are woken most
    /// urgent first. Never waits. If the channel is full, its oldest message is dropped.
    ///
    /// # Errors
    /// [`SendError`] with the message when there is no receiver.
    ///
    /// ```
    /// let (sender, mut receiver) = upshift::sync::broadcast::channel(2);
    /// assert_eq!(sender.send(1), Ok(1));
    /// assert_eq!(receiver.try_recv(), Ok(1));
    /// drop(receiver);
    /// assert!(sender.send(2).is_err());
    /// ```
    pub fn send(&self, value: T) -> Result<usize, SendError<T>> {
        let mut message = Some(Arc::new(Mutex::new(Some(value))));
        let mut state = self.shared.state.lock();
        let receivers = state.receivers;
        if receivers == 0 {
            drop(state);
            let value = message.take().and_then(into_value);
            return match value {
                Some(value) => Err(SendError(value)),
                None => unreachable!("the message was not shared"),
            };
        }
        let oldest = if state.ring.len() == state.capacity {
            state.ring.pop_front()
        } else {
            None
        };
        state.ring.push_back(Entry {
            message,
            awaited: receivers,
        });
        state.tail += 1;
        drop(state);
        self.shared.sent.notify_waiters();
        drop(oldest);
        Ok(receivers)
    }

    /// Creates a receiver of the messages sent from now on.
    ///
    /// ```
    /// let sender = upshift::sync::broadcast::Sender::new(2);
    /// let mut receiver = sender.subscribe();
    /// sender.send("news").unwrap();
    /// assert_eq!(receiver.try_recv(), Ok("news"));
    /// ```
    #[must_use]
    pub fn subscribe(&self) -> Receiver<T> {
        Receiver::new(&self.shared)
    }

    /// Creates a sender that does not keep the channel open.
    ///
    /// ```
    /// use upshift::sync::broadcast;
    ///
    /// let (sender, receiver) = broadcast::channel::<u8>(1);
    /// let weak = sender.downgrade();
    /// assert!(weak.upgrade().is_some());
    /// drop(sender);
    /// assert!(weak.upgrade().is_none() && receiver.is_closed());
    /// ```
    #[must_use]
    pub fn downgrade(&self) -> WeakSender<T> {
        WeakSender::new(&self.shared)
    }

    /// Returns the number of messages that some receiver has not received yet.
    ///
    /// ```
    /// let (sender, mut receiver) = upshift::sync::broadcast::channel(2);
    /// sender.send(1).unwrap();
    /// assert_eq!(sender.len(), 1);
    /// receiver.try_recv().unwrap();
    /// assert!(sender.is_empty());
    /// ```
    #[must_use]
    pub fn len(&self) -> usize {
        let state = self.shared.state.lock();
        let passed_count = state.ring.partition_point(|entry| entry.awaited == 0);
        state.ring.len() - passed_count
    }

    /// Returns true if every receiver has received every message.
    ///
    /// ```
    /// let (sender, mut receiver) = upshift::sync::broadcast::channel(2);
    /// assert!(sender.is_empty());
    /// sender.send(1).unwrap();
    /// assert!(!sender.is_empty());
    /// receiver.try_recv().unwrap();
    /// assert!(sender.is_empty());
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of receivers.
    ///
    /// ```
    /// let (sender, _first) = upshift::sync::broadcast::channel::<u8>(2);
    /// let _second = sender.subscribe();
    /// assert_eq!(sender.receiver_count(), 2);
    /// ```
    #[must_use]
    pub fn receiver_count(&self) -> usize {
        self.shared.state.lock().receivers
    }

    /// Waits until there is no receiver.
    ///
    /// # Cancellation safety
    /// The future may be dropped at any time.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let (sender, receiver) = upshift::sync::broadcast::channel::<u8>(1);
    /// drop(receiver);
    /// sender.closed().await;
    /// # });
    /// ```
    pub async fn closed(&self) {
        proceed().await;
        loop {
            let no_receivers = self.shared.no_receivers.notified();
            if self.receiver_count() == 0 {
                return;
            }
            no_receivers.await;
        }
    }

    /// Returns true if both are senders of one channel.
    ///
    /// ```
    /// use upshift::sync::broadcast::Sender;
    ///
    /// let sender = Sender::<u32>::new(1);
    /// assert!(sender.same_channel(&sender.clone()));
    /// assert!(!sender.same_channel(&Sender::new(1)));
    /// ```
    #[must_use]
    pub fn same_channel(&self, other: &Sender<T>) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Returns the number of senders.
    ///
    /// ```
    /// let (sender, receiver) = upshift::sync::broadcast::channel::<u32>(1);
    /// let _second = sender.clone();
    /// let _weak = sender.downgrade();
    /// assert_eq!((sender.strong_count(), sender.weak_count()), (2, 1));
    /// assert_eq!(receiver.sender_strong_count(), 2);
    /// ```
    #[must_use]
    pub fn strong_count(&self) -> usize {
        self.shared.state.lock().senders
    }

    /// Returns the number of weak senders.
    #[must_use]
    pub fn weak_count(&self) -> usize {
        self.shared.state.lock().weak
    }
}

fn into_value<T>(message: Arc<Message<T>>) -> Option<T> {
    Arc::into_inner(message)?
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner)
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        self.shared.state.lock().senders += 1;
        Sender {
            shared: self.shared.clone(),
        }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.senders -= 1;
        let is_last = state.senders == 0;
        drop(state);
        if is_last {
            self.shared.sent.notify_waiters();
        }
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").finish_non_exhaustive()
    }
}
