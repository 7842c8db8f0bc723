//! Carries messages from the handles of operations on other threads to the thread that owns the
//! ring.
//!
//! The number of handles bounds the mailbox, because each handle has at most one release and a few
//! requests outstanding. Posting costs an uncontended lock. The owner checks one flag per iteration
//! of its loop, and takes the lock only if the flag is set. While the lock is held, no user code
//! runs and no thread is woken.
//!
//! The first urgent message since the owner last read its mail signals the ring's eventfd, even
//! while the owner is awake. The ring polls this eventfd, so the signal becomes a completion. The
//! owner then reads the mail in the next iteration of its loop. If the owner is busy for long,
//! another thread may serve the ring [in its place](crate::Ring::stand_in), and read the mail.

use crate::remote::Kick;
use crate::slot::Slot;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A request to the ring's thread. If the handle stays alive, the request also carries the slot's
/// generation, because the handle may move to the ring's thread and end there before the message is
/// read.
#[derive(Clone, Copy)]
pub(crate) enum Message {
    /// Frees the slot of a one-shot operation or of an event without a buffer. Releases a handle if
    /// `releases_handle` is set.
    Free {
        slot: NonNull<Slot>,
        releases_handle: bool,
    },
    /// Cancels a one-shot operation whose handle was dropped, and disposes of its result. Releases
    /// a handle.
    Abandon(NonNull<Slot>),
    /// Ends a stream whose handle was dropped. Releases a handle.
    AbandonStream(NonNull<Slot>),
    /// Returns a buffer and the slot of its event to the ring. Releases a handle.
    Recycle(NonNull<Slot>),
    /// Cancels an operation whose handle still waits for the completion.
    Cancel(NonNull<Slot>, u32),
    /// Arms a stream's operation again.
    Arm(NonNull<Slot>, u32),
}

impl Message {
    fn is_urgent(self, starved: bool) -> bool {
        match self {
            Message::Free { .. } => false,
            Message::Recycle(_) => starved,
            _ => true,
        }
    }
}

#[derive(Default)]
struct State {
    messages: Vec<Message>,
    /// Set while streams wait for buffers, so that returned buffers are urgent.
    starved: bool,
    closed: bool,
    /// Set when the eventfd has been signalled since the owner read its mail.
    signalled: bool,
}

pub(crate) struct Mailbox {
    state: Mutex<State>,
    has_messages: AtomicBool,
    pub(crate) kick: Arc<Kick>,
}

// SAFETY: only the owner dereferences the pointers in messages, so other threads may hold them.
unsafe impl Send for Mailbox {}
// SAFETY: as above.
unsafe impl Sync for Mailbox {}

/// The error of a closed mailbox. The ring no longer exists, and the caller is the only user of its
/// own slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Closed;

impl Mailbox {
    pub(crate) fn new(kick: Arc<Kick>) -> Self {
        Self {
            state: Mutex::default(),
            has_messages: AtomicBool::new(false),
            kick,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Posts a message, from any thread. If the message releases a handle, the caller must no
    /// longer use its pointer to the ring's memory.
    pub(crate) fn post(&self, message: Message) -> Result<(), Closed> {
        let mut state = self.lock();
        if state.closed {
            return Err(Closed);
        }
        state.messages.push(message);
        self.has_messages.store(true, Ordering::Release);
        let signals =
            message.is_urgent(state.starved) && !std::mem::replace(&mut state.signalled, true);
        drop(state);
        if signals {
            self.kick.kick_always();
        }
        Ok(())
    }

    /// Returns whether there are messages. One load. Owner only.
    #[inline]
    pub(crate) fn has_mail(&self) -> bool {
        self.has_messages.load(Ordering::Acquire)
    }

    /// Swaps the messages with the empty vector `into`. Owner only.
    pub(crate) fn collect(&self, into: &mut Vec<Message>) {
        let mut state = self.lock();
        self.has_messages.store(false, Ordering::Relaxed);
        state.signalled = false;
        std::mem::swap(&mut state.messages, into);
    }

    /// Sets whether returned buffers are urgent from now on. After setting `true`, the owner must
    /// read its mail once more, because the earlier messages were not urgent. Owner only.
    pub(crate) fn set_starved(&self, starved: bool) {
        self.lock().starved = starved;
    }

    /// If the mailbox is empty, calls `on_close` with the lock held, closes the mailbox and returns
    /// true. Owner only.
    pub(crate) fn close(&self, on_close: impl FnOnce()) -> bool {
        let mut state = self.lock();
        if !state.messages.is_empty() {
            return false;
        }
        on_close();
        state.closed = true;
        true
    }
}
