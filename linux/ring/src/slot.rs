//! A slot is the memory of one operation from its start until its result is taken.
//!
//! A slot has two cache lines, at an address that never changes: 64 bytes of header and 64 bytes of
//! payload. An operation that fits is stored in the payload, and a larger one is boxed. The
//! completions of a stream (a multishot operation) also take one slot each (see `stream.rs`).
//!
//! Only the ring's thread uses the fields, except as this table says:
//!
//! | field | the handle (any thread) may touch it |
//! |---|---|
//! | `inbox` | always, it is atomic |
//! | `waker` | as `inbox` says |
//! | `result`, `flags`, `payload` of a one-shot | once `inbox` holds the slot |
//! | `next`, `result`, `flags` of an event | once it has been taken out of the stream's inbox |
//! | `generation`, `index`, `table` | read only, as long as the handle lives |

use crate::inbox::{Inbox, Registered, Withdrawn};
use crate::operation::{PAYLOAD_BYTES, Table};
use std::cell::{Cell, UnsafeCell};
use std::mem::MaybeUninit;
use std::ptr;
use std::task::Waker;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Once,
    Accept,
    Recv,
}

/// The state of a slot; see the diagram in the crate's documentation. Owner only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SlotState {
    /// Member of the free list.
    Free,
    /// Waits for room in the submission queue.
    Backlog,
    /// Waits for other copies to end; see `copy_limit.rs`.
    Held,
    /// The entry is in the submission queue or in the kernel.
    InFlight,
    /// A stream that waits for a buffer to come back.
    Starved,
    /// A stream without an operation, because its consumer is behind or the stream has failed.
    Idle,
    /// A result or an event that the handle has not returned yet.
    Done,
}

/// Mark of a slot whose handle is gone. The ring disposes of the output and frees the slot.
pub(crate) const ORPHAN: u8 = 1;
/// Mark of a slot whose cancellation is under way, or that will be cancelled when its turn in the
/// backlog comes.
pub(crate) const CANCELLED: u8 = 2;
/// Mark of a slot whose copy is counted; see `copy_limit.rs`.
pub(crate) const COPY: u8 = 4;

/// `user_data` of the timeout of held copies. This value and the next two belong to no slot,
/// because no slot has an index that high.
pub(crate) const HOLD_TIMER: u64 = u64::MAX - 2;
/// `user_data` of the poll of the eventfd by which other threads wake the ring's thread.
pub(crate) const KICK: u64 = u64::MAX - 1;
/// `user_data` of cancellations, whose results do not matter.
pub(crate) const CANCEL: u64 = u64::MAX;

#[repr(C, align(64))]
struct Payload(UnsafeCell<MaybeUninit<[u8; PAYLOAD_BYTES]>>);

#[repr(C, align(64))]
pub(crate) struct Slot {
    pub(crate) inbox: Inbox<Slot>,
    waker: UnsafeCell<Option<Waker>>,
    /// Successor in whichever list holds the slot: free list, backlog, starved streams, events of a
    /// stream.
    pub(crate) next: Cell<*const Slot>,
    pub(crate) table: Cell<&'static Table>,
    pub(crate) result: Cell<i32>,
    pub(crate) flags: Cell<u32>,
    pub(crate) generation: Cell<u32>,
    index: u32,
    pub(crate) level: Cell<u8>,
    pub(crate) kind: Cell<Kind>,
    pub(crate) state: Cell<SlotState>,
    pub(crate) marks: Cell<u8>,
    /// Bytes of a copy; see `copy_limit.rs`.
    pub(crate) bytes: Cell<u32>,
    payload: Payload,
}

impl Slot {
    pub(crate) fn new(index: u32) -> Self {
        Self {
            inbox: Inbox::new(),
            waker: UnsafeCell::new(None),
            next: Cell::new(ptr::null()),
            table: Cell::new(Table::NONE),
            result: Cell::new(0),
            flags: Cell::new(0),
            generation: Cell::new(0),
            index,
            level: Cell::new(0),
            kind: Cell::new(Kind::Once),
            state: Cell::new(SlotState::Free),
            marks: Cell::new(0),
            bytes: Cell::new(0),
            payload: Payload(UnsafeCell::new(MaybeUninit::uninit())),
        }
    }

    /// Returns the `user_data` of this use of the slot: generation (32 bits) | index (32 bits).
    #[inline]
    pub(crate) fn user_data(&self) -> u64 {
        (u64::from(self.generation.get()) << 32) | u64::from(self.index)
    }

    #[inline]
    pub(crate) fn payload(&self) -> *mut u8 {
        self.payload.0.get().cast()
    }

    #[inline]
    pub(crate) fn has_mark(&self, mark: u8) -> bool {
        self.marks.get() & mark != 0
    }

    #[inline]
    pub(crate) fn mark(&self, mark: u8) {
        self.marks.set(self.marks.get() | mark);
    }

    #[inline]
    pub(crate) fn unmark(&self, mark: u8) {
        self.marks.set(self.marks.get() & !mark);
    }

    /// Delivers `node` (the slot itself, or an event) and returns the waker to call. Owner only.
    #[inline]
    #[must_use]
    pub(crate) fn deliver(&self, node: &Slot) -> Option<Waker> {
        self.inbox.push(
            ptr::from_ref(node).cast_mut(),
            |next| node.next.set(next),
            // SAFETY: `push` calls this only while the word is CLAIMED. Then the cell belongs to
            // the ring's thread, so no other thread uses it.
            || unsafe { (*self.waker.get()).take() },
        )
    }

    /// Takes the waker of a handle that ends. The caller drops the waker after the use
    /// (`owner.rs`). `is_owner` is set on the ring's thread.
    #[must_use]
    pub(crate) fn forget_waker(&self, is_owner: bool) -> Option<Waker> {
        match self.inbox.withdraw(is_owner) {
            // SAFETY: in EMPTY the cell belongs to the handle, which is the caller.
            Withdrawn::Empty => unsafe { (*self.waker.get()).take() },
            Withdrawn::Ready | Withdrawn::Busy => None,
        }
    }

    /// Clones the waker if a [`wait`](Self::wait) will probably need a clone. Called outside of a
    /// use.
    #[inline]
    pub(crate) fn clone_for_wait(&self, waker: &Waker) -> Option<Waker> {
        self.inbox.is_empty().then(|| waker.clone())
    }

    /// Registers `waker` for the next delivery; `clone` contains a clone of it, if the caller has
    /// made one. Afterwards `clone` may contain another waker, which the caller drops. `is_owner`
    /// is set on the ring's thread.
    ///
    /// Runs no user code, because user code might deliver to this slot.
    #[inline]
    pub(crate) fn wait(&self, waker: &Waker, clone: &mut Option<Waker>, is_owner: bool) -> Wait {
        match self.inbox.withdraw(is_owner) {
            Withdrawn::Ready => return Wait::Ready,
            Withdrawn::Busy => return Wait::Busy,
            Withdrawn::Empty => {}
        }
        // SAFETY: in EMPTY the cell belongs to the handle, which is the caller, so this is the only
        // reference.
        let cell = unsafe { &mut *self.waker.get() };
        if !cell.as_ref().is_some_and(|old| old.will_wake(waker)) {
            let Some(new) = clone.take() else {
                return Wait::NeedsClone;
            };
            // The caller drops the old waker.
            *clone = cell.replace(new);
        }
        match self.inbox.register(is_owner) {
            Registered::Waiting => Wait::Waiting,
            Registered::Ready => Wait::Ready,
        }
    }
}

/// The outcome of [`Slot::wait`]. Wakers are user code, so they are cloned, woken and dropped after
/// the use.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    Waiting,
    Ready,
    /// A node is arriving at this moment. The consumer should wake itself and try again.
    Busy,
    /// Nothing was done, because a clone of the waker is needed.
    NeedsClone,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_two_cache_lines_with_the_payload_in_the_second() {
        assert_eq!(size_of::<Slot>(), 128);
        assert_eq!(std::mem::offset_of!(Slot, payload), 64);
    }
}
