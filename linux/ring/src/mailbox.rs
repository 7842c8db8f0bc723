//! Messages of handles on other threads to the thread of the ring.
//!
//! The mailbox is bounded by the handles: each has at most one release and a few requests
//! outstanding. Posting costs an uncontended lock. The owner checks one flag per turn and takes the
//! lock only if it is set. No user code runs and no thread is woken under the lock.
//!
//! The first urgent message since the owner has read its mail signals the eventfd, also while the
//! owner is awake. The signal is an arrival like any other: the owner's next turn reads the mail,
//! or, in a long poll, the thread that [stands in](crate::Ring::stand_in) for the owner.

use crate::remote::Kick;
use crate::slot::Slot;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A request to the thread of the ring. A request about a living handle carries the generation of
/// the slot, because the handle may move to the ring's thread and end there before the message is
/// read.
#[derive(Clone, Copy)]
pub(crate) enum Message {
    /// A one-shot, or an event with a connection, has been consumed: free the slot. Releases a
    /// handle if the flag is set.
    Free(NonNull<Slot>, bool),
    /// The handle of a one-shot was dropped before completion: cancel, dispose. Releases a handle.
    Abandon(NonNull<Slot>),
    /// The handle of a stream was dropped. Releases a handle.
    AbandonStream(NonNull<Slot>),
    /// A buffer comes back with its event. Releases a handle.
    Recycle(NonNull<Slot>),
    /// Cancel, while the handle keeps waiting.
    Cancel(NonNull<Slot>, u32),
    /// Arm a stream's operation again.
    Arm(NonNull<Slot>, u32),
}

impl Message {
    /// Returns whether the message wakes the ring's thread.
    fn is_urgent(self, starved: bool) -> bool {
        match self {
            Message::Free(..) => false,
            Message::Recycle(_) => starved,
            _ => true,
        }
    }
}

#[derive(Default)]
struct State {
    messages: Vec<Message>,
    starved: bool,
    closed: bool,
    /// Set when the eventfd has been signalled since the owner read its mail.
    signalled: bool,
}

pub(crate) struct Mailbox {
    state: Mutex<State>,
    flag: AtomicBool,
    pub(crate) kick: Arc<Kick>,
}

// SAFETY: posting threads only pass on the pointers in messages; the owner alone dereferences them.
unsafe impl Send for Mailbox {}
// SAFETY: as above.
unsafe impl Sync for Mailbox {}

/// The ring is gone: the caller is the only user of its slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Closed;

impl Mailbox {
    pub(crate) fn new(kick: Arc<Kick>) -> Self {
        Self {
            state: Mutex::default(),
            flag: AtomicBool::new(false),
            kick,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Posts a message, from any thread. After a message that releases a handle, the caller's
    /// pointer to the ring's memory is invalid.
    pub(crate) fn post(&self, message: Message) -> Result<(), Closed> {
        let mut state = self.lock();
        if state.closed {
            return Err(Closed);
        }
        state.messages.push(message);
        self.flag.store(true, Ordering::Release);
        let signals =
            message.is_urgent(state.starved) && !std::mem::replace(&mut state.signalled, true);
        drop(state);
        if signals {
            self.kick.kick_always();
        }
        Ok(())
    }

    /// Owner: returns whether there is mail. One load.
    #[inline]
    pub(crate) fn has_mail(&self) -> bool {
        self.flag.load(Ordering::Acquire)
    }

    /// Owner: swaps the messages with `into`, which is empty.
    pub(crate) fn collect(&self, into: &mut Vec<Message>) {
        let mut state = self.lock();
        self.flag.store(false, Ordering::Relaxed);
        state.signalled = false;
        std::mem::swap(&mut state.messages, into);
    }

    /// Owner: sets whether returned buffers are urgent from now on. After `true` the owner must
    /// read its mail once more: messages posted before were not urgent yet.
    pub(crate) fn set_starved(&self, starved: bool) {
        self.lock().starved = starved;
    }

    /// Owner: closes the mailbox unless there is mail, after a call of `last` under the lock.
    /// Returns true if it is closed.
    pub(crate) fn close(&self, last: impl FnOnce()) -> bool {
        let mut state = self.lock();
        if !state.messages.is_empty() {
            return false;
        }
        last();
        state.closed = true;
        true
    }
}
