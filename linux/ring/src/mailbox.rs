//! Messages of handles on other threads to the thread of the ring.
//!
//! Bounded by the handles: each alive has at most one release and a few requests outstanding. Posting costs an
//! uncontended lock; the owner looks at one flag per turn and takes the lock only if it is set. Nothing foreign runs and
//! nothing is woken under the lock.
//!
//! The first urgent message since the owner has read its mail signals the eventfd, also while the
//! owner is awake. The signal is an arrival like any other: the owner's next turn reads the mail,
//! or, in a long poll, the thread that [stands in](crate::Ring::stand_in) for the owner.

use crate::remote::Kick;
use crate::slot::Slot;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A request to the thread of the ring. Requests about a living handle carry the generation of the slot, because the
/// handle may move to the ring's thread and end there before the message is read.
#[derive(Clone, Copy)]
pub(crate) enum Message {
    /// A one-shot has been consumed, or an event with a connection: free the slot. Releases if the flag is set.
    Free(NonNull<Slot>, bool),
    /// A handle of a one-shot is gone before completion: cancel, dispose. Releases.
    Abandon(NonNull<Slot>),
    /// A handle of a stream is gone. Releases.
    AbandonStream(NonNull<Slot>),
    /// A buffer comes back with its event. Releases.
    Recycle(NonNull<Slot>),
    /// Cancel, but the handle keeps waiting.
    Cancel(NonNull<Slot>, u32),
    /// A stream wants its operation back.
    Arm(NonNull<Slot>, u32),
}

impl Message {
    /// Is it worth waking the ring's thread for?
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
    /// The eventfd has been signalled since the owner has read its mail.
    signalled: bool,
}

pub(crate) struct Mailbox {
    state: Mutex<State>,
    flag: AtomicBool,
    pub(crate) kick: Arc<Kick>,
}

// SAFETY: the pointers in the messages are names; what they point to is touched by the owner only.
unsafe impl Send for Mailbox {}
// SAFETY: as above.
unsafe impl Sync for Mailbox {}

/// The ring is gone: the caller is alone with its slot.
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

    /// Any thread. After a message that releases, the caller's pointer to the ring's memory is void.
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

    /// Owner: is there mail? One load.
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

    /// Owner: from now on buffers that come back are (not) urgent. After `true` the owner must look at its mail once more:
    /// what was posted before was not urgent yet.
    pub(crate) fn set_starved(&self, starved: bool) {
        self.lock().starved = starved;
    }

    /// Owner: closes unless there is mail, after calling `last` under the lock. True: closed.
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
