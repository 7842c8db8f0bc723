//! The state that the senders and the receiver of a channel share: the queue of messages, and the
//! waiters of both sides.
//!
//! Invariants, under the lock:
//!
//! * messages + reserved room ≤ limit;
//! * the free room does not suffice for the first waiting sender, because the thread that makes
//!   room reserves it for that sender at once. So no sender that comes later and is not more urgent
//!   can take the room;
//! * a receiver's waker is stored only while there is nothing to receive; the thread that puts a
//!   message in takes the waker out and wakes it, after the lock is released.
//!
//! The holder of reserved room may still send after the channel was closed; the receiver gets that
//! message before `None`. Messages and wakers are dropped without the lock.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use upshift_core::Level;

use super::error::{SendError, TryRecvError, TrySendError};
use crate::sync::lock::Guard;
use crate::sync::wait_queue::{Key, WaitQueue};
use crate::sync::waker::{self, LockSafeWaker, register};
use crate::sync::{Lock, Notify, may_proceed, waiting_level};

/// Largest number of messages for which a bounded channel allocates room at once.
const PREALLOCATED: usize = 1024;
/// Capacity, in messages, above which an emptied queue frees its memory.
const MAX_IDLE_CAPACITY: usize = 4096;

/// The shared state of a channel.
pub(super) struct Chan<T> {
    state: Lock<State<T>>,
    closing: Notify,
}

struct State<T> {
    messages: VecDeque<T>,
    limit: usize,
    /// Room held by permits, and room given to senders that have been woken to use it.
    reserved: usize,
    senders: usize,
    /// Number of weak senders.
    weak: usize,
    is_closed: bool,
    /// Set when the receiver is dropped, after which no message is put in any more.
    is_receiver_gone: bool,
    receiver_waker: Option<Waker>,
    waiters: WaitQueue<Claim>,
}

/// Number of messages for which a sender waits; once granted, the room got ([`CLOSED`] if none).
type Claim = usize;

/// The room of a sender whose wait has ended because the channel was closed.
const CLOSED: Claim = 0;

impl<T> State<T> {
    fn room(&self) -> usize {
        self.limit - self.messages.len() - self.reserved
    }

    /// Returns true if there is room for `wanted` messages, and the caller goes before all waiters.
    #[inline]
    fn suffices(&self, wanted: usize) -> bool {
        wanted <= self.room()
            && (self.waiters.is_empty() || self.waiters.first().is_none_or(goes_after_caller))
    }

    /// Puts a message into the queue. Returns the waker of the receiver, if the receiver waits.
    fn put(&mut self, value: T) -> Option<Waker> {
        self.messages.push_back(value);
        self.receiver_waker.take()
    }

    /// Gives room to the first waiting sender, if there is enough. The flag is true if the next
    /// sender may be served too.
    #[inline]
    fn grant(&mut self) -> Option<(Waker, bool)> {
        let (_, wanted) = self.waiters.first()?;
        let room_left = self.room().checked_sub(wanted)?;
        self.reserved += wanted;
        let waker = self.waiters.pop(|claim| claim)?;
        Some((waker, room_left > 0 && !self.waiters.is_empty()))
    }

    fn take(&mut self) -> Option<T> {
        let value = self.messages.pop_front()?;
        if self.limit == usize::MAX
            && self.messages.is_empty()
            && self.messages.capacity() > MAX_IDLE_CAPACITY
        {
            self.messages = VecDeque::new();
        }
        Some(value)
    }

    /// Returns true if no message will be put in any more.
    fn is_over(&self) -> bool {
        self.senders == 0 || (self.is_closed && self.reserved == 0)
    }
}

#[cold]
fn goes_after_caller((first, _): (Level, Claim)) -> bool {
    waiting_level() < first
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker::wake(waker);
    }
}

/// Wakes the receiver after a message was put in. If a foreign waker panics, the panic unwinds
/// through the sender, as in tokio; no other wake is lost by that.
#[inline]
fn announce(receiver: Option<Waker>) {
    if let Some(receiver) = receiver {
        receiver.wake();
    }
}

impl<T> Chan<T> {
    /// Creates the state for one sender and one receiver; `usize::MAX` means no limit.
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
                weak: 0,
                is_closed: false,
                is_receiver_gone: false,
                receiver_waker: None,
                waiters: WaitQueue::new(),
            }),
            closing: Notify::new(),
        })
    }

    pub(super) fn add_sender(&self) {
        self.state.lock().senders += 1;
    }

    /// Adds a sender, unless the last sender is gone. Returns true if a sender was added.
    pub(super) fn revive_sender(&self) -> bool {
        let mut state = self.state.lock();
        let is_alive = state.senders > 0;
        state.senders += usize::from(is_alive);
        is_alive
    }

    pub(super) fn remove_sender(&self) {
        let mut state = self.state.lock();
        state.senders -= 1;
        let receiver = if state.senders == 0 {
            state.receiver_waker.take()
        } else {
            None
        };
        drop(state);
        wake(receiver);
    }

    pub(super) fn add_weak(&self) {
        self.state.lock().weak += 1;
    }

    pub(super) fn remove_weak(&self) {
        self.state.lock().weak -= 1;
    }

    /// Returns the number of senders, and of weak senders.
    pub(super) fn counts(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.senders, state.weak)
    }

    #[inline]
    /// Gives room to waiting senders while there is enough, and wakes them.
    fn grant<'a>(&'a self, mut state: Guard<'a, State<T>>) {
        while let Some((waker, may_grant_more)) = state.grant() {
            drop(state);
            waker::wake(waker);
            if !may_grant_more {
                return;
            }
            state = self.state.lock();
        }
    }

    pub(super) fn try_send(&self, value: T) -> Result<(), TrySendError<T>> {
        let mut state = self.state.lock();
        if state.is_closed {
            drop(state);
            return Err(TrySendError::Closed(value));
        }
        if !state.suffices(1) {
            drop(state);
            return Err(TrySendError::Full(value));
        }
        let receiver = state.put(value);
        drop(state);
        announce(receiver);
        Ok(())
    }

    pub(super) fn try_reserve(&self, wanted: usize) -> Result<(), TrySendError<()>> {
        let mut state = self.state.lock();
        if state.is_closed {
            return Err(TrySendError::Closed(()));
        }
        if wanted > 0 && !state.suffices(wanted) {
            return Err(TrySendError::Full(()));
        }
        state.reserved += wanted;
        Ok(())
    }

    /// Reserves room for `wanted` messages, or makes the sender wait. `key` is the sender's
    /// node while it waits.
    pub(super) fn poll_reserve(
        &self,
        wanted: usize,
        key: &mut Option<Key>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), SendError<()>>> {
        let level = waiting_level();
        let mut waker = LockSafeWaker::new(cx.waker());
        let mut state = self.state.lock();
        let is_ready = match *key {
            Some(key) => state.waiters.is_granted(key),
            None => {
                state.is_closed || wanted == 0 || wanted > state.limit || state.suffices(wanted)
            }
        };
        if is_ready && !may_proceed() {
            drop(state);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        match *key {
            Some(granted) if is_ready => {
                *key = None;
                let room = state.waiters.release(granted).granted.unwrap_or(CLOSED);
                if state.is_closed {
                    self.give_back(state, room);
                    return Poll::Ready(Err(SendError(())));
                }
                Poll::Ready(Ok(()))
            }
            Some(key) => {
                let old_waker = state.waiters.refresh(key, level, &mut waker);
                // After a change of level another waiter may be the first.
                self.grant(state);
                drop(old_waker);
                Poll::Pending
            }
            None if is_ready => {
                if state.is_closed || wanted > state.limit {
                    return Poll::Ready(Err(SendError(())));
                }
                state.reserved += wanted;
                Poll::Ready(Ok(()))
            }
            None => {
                let waker = waker.take();
                *key = Some(state.waiters.insert(level, wanted, waker));
                Poll::Pending
            }
        }
    }

    /// Ends the wait of a sender; room that it had been given goes to the next sender.
    pub(super) fn cancel_reserve(&self, key: Key) {
        let mut state = self.state.lock();
        let released = state.waiters.release(key);
        self.give_back(state, released.granted.unwrap_or(CLOSED));
        drop(released.waker);
    }

    pub(super) fn unreserve(&self, room: usize) {
        self.give_back(self.state.lock(), room);
    }

    fn give_back<'a>(&'a self, mut state: Guard<'a, State<T>>, room: usize) {
        state.reserved -= room;
        let receiver = if state.is_over() {
            state.receiver_waker.take()
        } else {
            None
        };
        self.grant(state);
        wake(receiver);
    }

    /// Puts a message into reserved room. Returns the message if the receiver is gone.
    pub(super) fn put_reserved(&self, value: T) -> Result<(), T> {
        let mut state = self.state.lock();
        if state.is_receiver_gone {
            self.give_back(state, 1);
            return Err(value);
        }
        state.reserved -= 1;
        let receiver = state.put(value);
        drop(state);
        announce(receiver);
        Ok(())
    }

    /// Sends the value, or makes the sender wait. `value` is `Some` until the result is ready;
    /// `key` is the sender's node while it waits.
    pub(super) fn poll_send(
        &self,
        value: &mut Option<T>,
        key: &mut Option<Key>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), SendError<T>>> {
        let mut waker = LockSafeWaker::new(cx.waker());
        let mut state = self.state.lock();
        let is_ready = match *key {
            Some(key) => state.waiters.is_granted(key),
            None => state.is_closed || state.suffices(1),
        };
        if !is_ready {
            match *key {
                Some(key) => {
                    let old_waker = state.waiters.refresh(key, waiting_level(), &mut waker);
                    // After a change of level another waiter may be the first.
                    self.grant(state);
                    drop(old_waker);
                }
                None => *key = Some(state.waiters.insert(waiting_level(), 1, waker.take())),
            }
            return Poll::Pending;
        }
        if !may_proceed() {
            drop(state);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let granted = key
            .take()
            .and_then(|key| state.waiters.release(key).granted);
        let room = granted.unwrap_or(CLOSED);
        match value.take() {
            Some(message) if !state.is_closed => {
                state.reserved -= room;
                let receiver = state.put(message);
                drop(state);
                announce(receiver);
                Poll::Ready(Ok(()))
            }
            message => {
                self.give_back(state, room);
                // There is no message if the future is polled again after it was ready.
                Poll::Ready(message.map_or(Ok(()), |message| Err(SendError(message))))
            }
        }
    }

    pub(super) fn try_recv(&self) -> Result<T, TryRecvError> {
        let mut state = self.state.lock();
        match state.take() {
            Some(value) => {
                self.grant(state);
                Ok(value)
            }
            None if state.is_over() => Err(TryRecvError::Disconnected),
            None => Err(TryRecvError::Empty),
        }
    }

    pub(super) fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut waker = LockSafeWaker::new(cx.waker());
        let mut state = self.state.lock();
        if !state.messages.is_empty() && !may_proceed() {
            drop(state);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if let Some(value) = state.take() {
            self.grant(state);
            return Poll::Ready(Some(value));
        }
        Self::wait(state, &mut waker).map(|()| None)
    }

    pub(super) fn poll_recv_many(
        &self,
        cx: &mut Context<'_>,
        buffer: &mut Vec<T>,
        limit: usize,
    ) -> Poll<usize> {
        if limit == 0 {
            return Poll::Ready(0);
        }
        let mut waker = LockSafeWaker::new(cx.waker());
        let mut state = self.state.lock();
        if !state.messages.is_empty() && !may_proceed() {
            drop(state);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        // Taking all messages is one move, whatever their number.
        let messages = if limit >= state.messages.len() {
            mem::take(&mut state.messages)
        } else {
            state.messages.drain(..limit).collect()
        };
        let count = messages.len();
        if count == 0 {
            return Self::wait(state, &mut waker).map(|()| 0);
        }
        self.grant(state);
        buffer.extend(messages);
        Poll::Ready(count)
    }

    /// Makes the receiver wait for a message. Ready if there will be no message.
    #[inline]
    fn wait(mut state: Guard<'_, State<T>>, waker: &mut LockSafeWaker<'_>) -> Poll<()> {
        if state.is_over() {
            return Poll::Ready(());
        }
        let old_waker = register(&mut state.receiver_waker, waker);
        drop(state);
        drop(old_waker);
        Poll::Pending
    }

    /// Closes the channel. Drops the messages inside if `discard` is set.
    pub(super) fn close(&self, discard: bool) {
        let mut state = self.state.lock();
        state.is_closed = true;
        state.is_receiver_gone |= discard;
        let messages = if discard {
            mem::take(&mut state.messages)
        } else {
            VecDeque::new()
        };
        let mut wakers = state.waiters.pop_all(|_| CLOSED);
        // Also wakes the receiver if it waits, because the waker may be that of another coroutine.
        wakers.extend(state.receiver_waker.take());
        drop(state);
        wakers.into_iter().for_each(waker::wake);
        self.closing.notify_waiters();
        drop(messages);
    }

    pub(super) async fn closed(&self) {
        loop {
            let closing = self.closing.notified();
            if self.is_closed() {
                return;
            }
            closing.await;
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state.lock().is_closed
    }

    /// Returns true if the channel is closed or without senders.
    pub(super) fn is_shut(&self) -> bool {
        let state = self.state.lock();
        state.is_closed || state.senders == 0
    }

    pub(super) fn len(&self) -> usize {
        self.state.lock().messages.len()
    }

    pub(super) fn room(&self) -> usize {
        self.state.lock().room()
    }

    pub(super) fn limit(&self) -> usize {
        self.state.lock().limit
    }
}
