//! What sender and receiver share: the queue, and the waiters at its ends.
//!
//! Invariants, under the lock:
//!
//! * messages + reserved room ≤ limit;
//! * senders wait only while there is no room: the one that makes room reserves it for
//!   the first of them at once, so none that comes later can take it;
//! * a receiver's waker is kept only while there is nothing to receive; whoever
//!   puts something in takes it out and wakes it, after the lock is given back.
//!
//! Messages and wakers are dropped without the lock.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::error::{SendError, TryRecvError, TrySendError};
use crate::sync::spare::Spare;
use crate::sync::wait_queue::{Key, WaitQueue};
use crate::sync::{Lock, may_proceed, waiting_level};

/// Messages for which a bounded channel has room from the start, at most.
const PREALLOCATED: usize = 1024;
/// An empty queue with more room than this gives its memory back.
const KEPT: usize = 4096;

pub(super) struct Chan<T> {
    state: Lock<State<T>>,
}

struct State<T> {
    messages: VecDeque<T>,
    limit: usize,
    /// Room of senders that have been woken for it.
    reserved: usize,
    senders: usize,
    closed: bool,
    receiver: Option<Waker>,
    waiting: WaitQueue<()>,
}

impl<T> State<T> {
    fn has_room(&self) -> bool {
        self.messages.len() + self.reserved < self.limit
    }

    fn put(&mut self, value: T) -> Option<Waker> {
        self.messages.push_back(value);
        self.receiver.take()
    }

    /// Gives room to the first sender that waits for it.
    fn grant(&mut self) -> Option<Waker> {
        if self.waiting.is_empty() || !self.has_room() {
            return None;
        }
        self.reserved += 1;
        self.waiting.pop(|()| ())
    }

    fn take(&mut self) -> Option<(T, Option<Waker>)> {
        let value = self.messages.pop_front()?;
        if self.limit == usize::MAX && self.messages.is_empty() && self.messages.capacity() > KEPT {
            self.messages = VecDeque::new();
        }
        Some((value, self.grant()))
    }

    fn is_over(&self) -> bool {
        self.senders == 0 || self.closed
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl<T> Chan<T> {
    /// With one sender and one receiver; `usize::MAX` is no limit.
    pub(super) fn new(limit: usize) -> Arc<Chan<T>> {
        let messages = if limit == usize::MAX {
            VecDeque::new()
        } else {
            VecDeque::with_capacity(limit.min(PREALLOCATED))
        };
        Arc::new(Chan {
            state: Lock::new(State {
                messages,
                limit,
                reserved: 0,
                senders: 1,
                closed: false,
                receiver: None,
                waiting: WaitQueue::new(),
            }),
        })
    }

    pub(super) fn add_sender(&self) {
        self.state.lock().senders += 1;
    }

    pub(super) fn remove_sender(&self) {
        let mut state = self.state.lock();
        state.senders -= 1;
        let receiver = if state.senders == 0 {
            state.receiver.take()
        } else {
            None
        };
        drop(state);
        wake(receiver);
    }

    pub(super) fn try_send(&self, value: T) -> Result<(), TrySendError<T>> {
        let mut state = self.state.lock();
        if state.closed {
            drop(state);
            return Err(TrySendError::Closed(value));
        }
        if !state.has_room() {
            drop(state);
            return Err(TrySendError::Full(value));
        }
        let receiver = state.put(value);
        drop(state);
        wake(receiver);
        Ok(())
    }

    /// Puts the value in, or makes the sender wait. `value` is `Some` until the
    /// result is ready, `key` is the sender's node while it waits.
    pub(super) fn poll_send(
        &self,
        value: &mut Option<T>,
        key: &mut Option<Key>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), SendError<T>>> {
        let before;
        let mut waker = Spare::of(cx.waker());
        let mut state = self.state.lock();
        let granted = key.is_some_and(|key| state.waiting.granted(key));
        let here = granted || state.closed || (key.is_none() && state.has_room());
        if here {
            if !may_proceed() {
                drop(state);
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if let Some(key) = key.take() {
                before = state.waiting.release(key).waker;
                state.reserved -= usize::from(granted);
            } else {
                before = None;
            }
            let closed = state.closed;
            let receiver = match value.take() {
                Some(value) if closed => {
                    drop(state);
                    drop(before);
                    return Poll::Ready(Err(SendError(value)));
                }
                Some(value) => state.put(value),
                // Polled after its end.
                None => None,
            };
            drop(state);
            wake(receiver);
            drop(before);
            return Poll::Ready(Ok(()));
        }
        match *key {
            Some(key) => {
                before = state.waiting.refresh(key, waiting_level(), &mut waker);
                drop(state);
                drop(before);
            }
            None => {
                let waker = waker.take();
                *key = Some(state.waiting.insert(waiting_level(), (), waker));
            }
        }
        Poll::Pending
    }

    /// A sender gives up waiting; room that was kept for it goes to the next.
    pub(super) fn cancel_send(&self, key: Key) {
        let mut state = self.state.lock();
        let released = state.waiting.release(key);
        if released.granted.is_some() {
            state.reserved -= 1;
        }
        let next = state.grant();
        drop(state);
        wake(next);
    }

    pub(super) fn try_recv(&self) -> Result<T, TryRecvError> {
        let mut state = self.state.lock();
        match state.take() {
            Some((value, sender)) => {
                drop(state);
                wake(sender);
                Ok(value)
            }
            None if state.is_over() => Err(TryRecvError::Disconnected),
            None => Err(TryRecvError::Empty),
        }
    }

    pub(super) fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut waker = Spare::of(cx.waker());
        let mut state = self.state.lock();
        if !state.messages.is_empty() && !may_proceed() {
            drop(state);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if let Some((value, sender)) = state.take() {
            drop(state);
            wake(sender);
            return Poll::Ready(Some(value));
        }
        if state.is_over() {
            return Poll::Ready(None);
        }
        let before = match &state.receiver {
            Some(before) if before.will_wake(&waker) => None,
            _ => state.receiver.replace(waker.take()),
        };
        drop(state);
        drop(before);
        Poll::Pending
    }

    /// No more messages are let in. `discard`: those inside will not be received.
    pub(super) fn close(&self, discard: bool) {
        let mut state = self.state.lock();
        state.closed = true;
        let messages = if discard {
            mem::take(&mut state.messages)
        } else {
            VecDeque::new()
        };
        // Room they get with this is given back when they see `closed`.
        let mut woken = Vec::new();
        while let Some(waker) = state.waiting.pop(|()| ()) {
            state.reserved += 1;
            woken.push(waker);
        }
        // A receiver that waits (its future may be elsewhere) sees the end.
        woken.extend(state.receiver.take());
        drop(state);
        woken.into_iter().for_each(Waker::wake);
        drop(messages);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    pub(super) fn len(&self) -> usize {
        self.state.lock().messages.len()
    }

    pub(super) fn limit(&self) -> usize {
        self.state.lock().limit
    }
}
