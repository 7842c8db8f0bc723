//! Every message to every receiver.
//!
//! The last messages lie in a ring; a receiver is a position in it. Invariants, under the
//! lock:
//!
//! * the ring holds the messages of the positions `tail - ring.len() .. tail`;
//! * a message counts the receivers that have not passed it; at zero it is gone from the ring.
//!   As receivers pass in order, those that are gone are the oldest ones.
//!
//! A message is cloned without the lock, under one of its own: for clones of users may take
//! long. The last receiver gets the message itself. An allocation per message. A receiver that
//! goes passes what it has not received, a few messages per lock.

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

/// Messages that a receiver passes in one go when it is dropped.
const PASSED_AT_ONCE: u64 = 32;

struct Shared<T> {
    state: Lock<State<T>>,
    /// Told at each message, and when the last sender goes.
    sent: Notify,
    /// Told when the last receiver goes.
    deserted: Notify,
}

struct State<T> {
    ring: VecDeque<Entry<T>>,
    capacity: usize,
    /// The position of the next message.
    tail: u64,
    senders: usize,
    weak: usize,
    receivers: usize,
}

struct Entry<T> {
    message: Option<Arc<Message<T>>>,
    /// Receivers that have not passed it.
    awaited: usize,
}

/// `Mutex` so that receivers of several threads may clone what is not `Sync`.
type Message<T> = Mutex<Option<T>>;

impl<T> State<T> {
    fn head(&self) -> u64 {
        self.tail - self.ring.len() as u64
    }

    /// The message of a position in the ring, of which a receiver passes it; true: as the last.
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

/// A channel on which every receiver gets every message sent after it came.
///
/// It keeps `capacity` messages, rounded up to a power of two. A receiver that is slower
/// misses the oldest ones, and is told how many.
///
/// # Panics
/// Without room for a message, and with room for more than `usize::MAX / 2`.
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

/// Sends messages. Clone it for more senders.
pub struct Sender<T> {
    shared: Arc<Shared<T>>,
}

impl<T> Sender<T> {
    /// A channel without receivers.
    ///
    /// # Panics
    /// As [`channel`].
    #[must_use]
    #[track_caller]
    pub fn new(capacity: usize) -> Sender<T> {
        assert!(capacity > 0, "a broadcast channel needs room for a message");
        assert!(
            capacity <= usize::MAX >> 1,
            "a broadcast channel cannot have so much room"
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
                deserted: Notify::new(),
            }),
        }
    }

    /// Sends to all receivers there are; how many. They are woken most urgent first.
    ///
    /// # Errors
    /// [`SendError`] with the message when there is none.
    pub fn send(&self, value: T) -> Result<usize, SendError<T>> {
        let mut message = Some(Arc::new(Mutex::new(Some(value))));
        let mut state = self.shared.state.lock();
        let receivers = state.receivers;
        if receivers == 0 {
            drop(state);
            let value = message.take().and_then(taken);
            return match value {
                Some(value) => Err(SendError(value)),
                None => unreachable!("it is the only reference"),
            };
        }
        let oldest = match state.ring.len() == state.capacity {
            true => state.ring.pop_front(),
            false => None,
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

    /// One more receiver: of what is sent from now on.
    #[must_use]
    pub fn subscribe(&self) -> Receiver<T> {
        Receiver::new(&self.shared)
    }

    /// A sender that does not keep the channel open.
    #[must_use]
    pub fn downgrade(&self) -> WeakSender<T> {
        WeakSender::new(&self.shared)
    }

    /// How many messages some receiver has not received yet.
    #[must_use]
    pub fn len(&self) -> usize {
        let state = self.shared.state.lock();
        let gone = state.ring.partition_point(|entry| entry.awaited == 0);
        state.ring.len() - gone
    }

    /// Has every receiver received everything?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many receivers there are.
    #[must_use]
    pub fn receiver_count(&self) -> usize {
        self.shared.state.lock().receivers
    }

    /// Waits until there is no receiver.
    pub async fn closed(&self) {
        proceed().await;
        loop {
            let deserted = self.shared.deserted.notified();
            if self.receiver_count() == 0 {
                return;
            }
            deserted.await;
        }
    }

    /// Are both of one channel?
    #[must_use]
    pub fn same_channel(&self, other: &Sender<T>) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// How many senders there are.
    #[must_use]
    pub fn strong_count(&self) -> usize {
        self.shared.state.lock().senders
    }

    /// How many weak ones there are.
    #[must_use]
    pub fn weak_count(&self) -> usize {
        self.shared.state.lock().weak
    }
}

/// The value of a message to which this is the only reference.
fn taken<T>(message: Arc<Message<T>>) -> Option<T> {
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
        let last = state.senders == 0;
        drop(state);
        if last {
            self.shared.sent.notify_waiters();
        }
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").finish_non_exhaustive()
    }
}
