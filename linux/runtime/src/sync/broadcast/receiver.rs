//! The receiver of a broadcast channel: a position in the ring buffer of the channel.

use std::fmt;
use std::sync::{Arc, PoisonError};

use super::error::{RecvError, TryRecvError};
use super::{DROP_BATCH, Shared, into_value, park, proceed};

/// A receiver of every message that is sent while the receiver lives.
///
/// ```
/// use upshift::sync::broadcast;
///
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let (sender, mut first) = broadcast::channel(4);
/// sender.send("one").unwrap();
/// let mut late = sender.subscribe();
/// sender.send("two").unwrap();
/// assert_eq!(first.recv().await, Ok("one"));
/// assert_eq!(first.recv().await, Ok("two"));
/// assert_eq!(late.recv().await, Ok("two"));
/// # });
/// ```
pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
    /// Position of the next message.
    next: u64,
}

impl<T> Receiver<T> {
    pub(super) fn new(shared: &Arc<Shared<T>>) -> Receiver<T> {
        let mut state = shared.state.lock();
        state.receivers += 1;
        let next = state.tail;
        drop(state);
        Receiver {
            shared: shared.clone(),
            next,
        }
    }

    /// Returns the number of messages not received yet, including messages that the receiver has
    /// missed.
    ///
    /// ```
    /// let (sender, receiver) = upshift::sync::broadcast::channel(2);
    /// sender.send(1).unwrap();
    /// assert_eq!(receiver.len(), 1);
    /// ```
    #[must_use]
    pub fn len(&self) -> usize {
        (self.shared.state.lock().tail - self.next) as usize
    }

    /// Returns true if every message has been received.
    ///
    /// ```
    /// let (sender, mut receiver) = upshift::sync::broadcast::channel(2);
    /// sender.send(1).unwrap();
    /// assert!(!receiver.is_empty());
    /// receiver.try_recv().unwrap();
    /// assert!(receiver.is_empty());
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns true if both are receivers of one channel.
    ///
    /// ```
    /// let (sender, receiver) = upshift::sync::broadcast::channel::<u32>(1);
    /// assert!(receiver.same_channel(&sender.subscribe()));
    /// ```
    #[must_use]
    pub fn same_channel(&self, other: &Receiver<T>) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Returns true if all senders are gone.
    ///
    /// ```
    /// let (sender, mut receiver) = upshift::sync::broadcast::channel(1);
    /// sender.send(1).unwrap();
    /// drop(sender);
    /// assert!(receiver.is_closed());
    /// assert_eq!(receiver.try_recv(), Ok(1)); // Messages inside can still be received.
    /// ```
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.sender_strong_count() == 0
    }

    /// Returns the number of senders.
    #[must_use]
    pub fn sender_strong_count(&self) -> usize {
        self.shared.state.lock().senders
    }

    /// Returns the number of weak senders.
    #[must_use]
    pub fn sender_weak_count(&self) -> usize {
        self.shared.state.lock().weak
    }

    /// Creates a receiver of the messages sent from now on.
    ///
    /// ```
    /// use upshift::sync::broadcast;
    ///
    /// let (sender, mut first) = broadcast::channel(4);
    /// sender.send(1).unwrap();
    /// let mut second = first.resubscribe();
    /// sender.send(2).unwrap();
    /// assert_eq!(first.try_recv(), Ok(1));
    /// assert_eq!(second.try_recv(), Ok(2));
    /// ```
    #[must_use]
    pub fn resubscribe(&self) -> Receiver<T> {
        Receiver::new(&self.shared)
    }
}

impl<T: Clone> Receiver<T> {
    /// Receives the next message.
    ///
    /// # Cancellation safety
    /// The future may be dropped at any time without losing a message.
    ///
    /// # Errors
    /// [`RecvError::Lagged`] if messages were missed, [`RecvError::Closed`] if there will be no
    /// further message.
    ///
    /// ```
    /// use upshift::sync::broadcast::{self, error::RecvError};
    ///
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let (sender, mut receiver) = broadcast::channel(2);
    /// for n in 0..3 {
    ///     sender.send(n).unwrap();
    /// }
    /// drop(sender);
    /// assert_eq!(receiver.recv().await, Err(RecvError::Lagged(1)));
    /// assert_eq!(receiver.recv().await, Ok(1));
    /// assert_eq!(receiver.recv().await, Ok(2));
    /// assert_eq!(receiver.recv().await, Err(RecvError::Closed));
    /// # });
    /// ```
    pub async fn recv(&mut self) -> Result<T, RecvError> {
        proceed().await;
        loop {
            // The future is created before the buffer is read, so that no message is missed.
            let Receiver { shared, next } = &mut *self;
            let sent = shared.sent.notified();
            match shared.try_recv(next) {
                Ok(value) => return Ok(value),
                Err(TryRecvError::Closed) => return Err(RecvError::Closed),
                Err(TryRecvError::Lagged(missed)) => return Err(RecvError::Lagged(missed)),
                Err(TryRecvError::Empty) => sent.await,
            }
        }
    }

    /// Receives the next message if there is one.
    ///
    /// # Errors
    /// [`TryRecvError`] if there is no message now, messages were missed, or there will be no
    /// further message.
    ///
    /// # Panics
    /// If the clone of the message panics; the message counts as received.
    ///
    /// ```
    /// use upshift::sync::broadcast::{self, error::TryRecvError};
    ///
    /// let (sender, mut receiver) = broadcast::channel(1);
    /// assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
    /// sender.send(1).unwrap();
    /// assert_eq!(receiver.try_recv(), Ok(1));
    /// ```
    pub fn try_recv(&mut self) -> Result<T, TryRecvError> {
        self.shared.try_recv(&mut self.next)
    }

    /// Receives like [`recv`](Receiver::recv), but blocks the calling thread.
    ///
    /// # Errors
    /// The errors of [`recv`](Receiver::recv).
    ///
    /// # Panics
    /// When called in a coroutine, because the call would stop its vCPU.
    ///
    /// ```
    /// let (sender, mut receiver) = upshift::sync::broadcast::channel(2);
    /// std::thread::spawn(move || sender.send("from a thread"));
    /// assert_eq!(receiver.blocking_recv(), Ok("from a thread"));
    /// ```
    #[track_caller]
    pub fn blocking_recv(&mut self) -> Result<T, RecvError> {
        park::block_on(self.recv())
    }
}

impl<T: Clone> Shared<T> {
    /// Receives the message at position `next`, and advances `next`.
    fn try_recv(&self, next: &mut u64) -> Result<T, TryRecvError> {
        let mut state = self.state.lock();
        if *next == state.tail {
            return Err(match state.senders {
                0 => TryRecvError::Closed,
                _ => TryRecvError::Empty,
            });
        }
        let head = state.head();
        if *next < head {
            let missed = head - *next;
            *next = head;
            return Err(TryRecvError::Lagged(missed));
        }
        let (message, is_last) = state.pass(*next);
        drop(state);
        *next += 1;
        let mut message = message.expect("a message stays until its last receiver passes it");
        // The last receiver takes the value, unless another receiver is still cloning it.
        if is_last && let Some(value) = Arc::get_mut(&mut message) {
            let value = value.get_mut().unwrap_or_else(PoisonError::into_inner);
            return Ok(value.take().expect("only the last receiver takes it"));
        }
        let value = message.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(value.clone().expect("only the last receiver takes it"))
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        loop {
            let mut messages = Vec::new();
            let mut state = self.shared.state.lock();
            self.next = self.next.max(state.head());
            let end = state.tail.min(self.next + DROP_BATCH);
            while self.next < end {
                if let (message, true) = state.pass(self.next) {
                    messages.extend(message);
                }
                self.next += 1;
            }
            let is_done = self.next == state.tail;
            let mut no_receivers = false;
            if is_done {
                state.receivers -= 1;
                no_receivers = state.receivers == 0;
            }
            drop(state);
            if no_receivers {
                self.shared.no_receivers.notify_waiters();
            }
            messages
                .into_iter()
                .for_each(|message| drop(into_value(message)));
            if is_done {
                return;
            }
        }
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").finish_non_exhaustive()
    }
}
