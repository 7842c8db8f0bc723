//! The receiver of a broadcast channel: a position in its ring.

use std::fmt;
use std::sync::{Arc, PoisonError};

use super::error::{RecvError, TryRecvError};
use super::{PASSED_AT_ONCE, Shared, park, proceed, taken};

/// Gets every message that is sent while it lives.
pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
    /// The position of the message that it receives next.
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

    /// How many messages wait for it, with those that it has missed.
    #[must_use]
    pub fn len(&self) -> usize {
        (self.shared.state.lock().tail - self.next) as usize
    }

    /// Does no message wait for it?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Are both of one channel?
    #[must_use]
    pub fn same_channel(&self, other: &Receiver<T>) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Are all senders gone?
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.sender_strong_count() == 0
    }

    /// How many senders there are.
    #[must_use]
    pub fn sender_strong_count(&self) -> usize {
        self.shared.state.lock().senders
    }

    /// How many weak ones there are.
    #[must_use]
    pub fn sender_weak_count(&self) -> usize {
        self.shared.state.lock().weak
    }

    /// One more receiver of the channel: of what is sent from now on.
    #[must_use]
    pub fn resubscribe(&self) -> Receiver<T> {
        Receiver::new(&self.shared)
    }
}

impl<T: Clone> Receiver<T> {
    /// The next message. The future may be dropped at any time without losing one.
    ///
    /// # Errors
    /// [`RecvError`]: messages were missed, or there will be none.
    pub async fn recv(&mut self) -> Result<T, RecvError> {
        proceed().await;
        loop {
            // Asked for before the look, so that no message is missed.
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

    /// The next message if there is one.
    ///
    /// # Errors
    /// [`TryRecvError`]: there is none now, messages were missed, or there will be none.
    ///
    /// # Panics
    /// If the clone of the message does; it counts as received.
    pub fn try_recv(&mut self) -> Result<T, TryRecvError> {
        self.shared.try_recv(&mut self.next)
    }

    /// [`recv`](Receiver::recv) for threads: blocks the calling one.
    ///
    /// # Errors
    /// As [`recv`](Receiver::recv).
    ///
    /// # Panics
    /// In a coroutine, whose vCPU it would stop.
    #[track_caller]
    pub fn blocking_recv(&mut self) -> Result<T, RecvError> {
        park::block_on(self.recv())
    }
}

impl<T: Clone> Shared<T> {
    /// What the receiver at position `next` gets.
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
        let (message, last) = state.pass(*next);
        drop(state);
        *next += 1;
        let mut message = message.expect("there until the last receiver has passed it");
        // The last takes it, unless another one is at its clone still.
        if last && let Some(value) = Arc::get_mut(&mut message) {
            let value = value.get_mut().unwrap_or_else(PoisonError::into_inner);
            return Ok(value.take().expect("taken by the last only"));
        }
        let value = message.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(value.clone().expect("taken by the last only"))
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        loop {
            let mut dropped = Vec::new();
            let mut state = self.shared.state.lock();
            self.next = self.next.max(state.head());
            let end = state.tail.min(self.next + PASSED_AT_ONCE);
            while self.next < end {
                if let (message, true) = state.pass(self.next) {
                    dropped.extend(message);
                }
                self.next += 1;
            }
            let over = self.next == state.tail;
            let mut deserted = false;
            if over {
                state.receivers -= 1;
                deserted = state.receivers == 0;
            }
            drop(state);
            if deserted {
                self.shared.deserted.notify_waiters();
            }
            dropped.into_iter().for_each(|message| drop(taken(message)));
            if over {
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
