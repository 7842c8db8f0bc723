//! The levels of operations that coroutines have started but that are not submitted to the ring
//! yet. These levels decide when the vCPU submits.
//!
//! Only the thread of the vCPU uses this state. Each operation costs a load and a store.

use std::cell::Cell;

/// Value of [`Outbox::deadline_level`] while no operation waits for its submission.
const NONE_WAITS: u8 = u8::MAX;

/// Number of file reads that are submitted without waiting for more, so that the device works on
/// them while the vCPU prepares the next reads. A smaller number costs CPU time, and a larger one
/// leaves the device idle (`--gather` of bench/peers/c/files.c).
const GATHERED_READS: usize = 4;

pub(super) struct Outbox {
    /// The operations are submitted before polls of this level and of less urgent levels.
    deadline_level: Cell<u8>,
    /// Number of file reads that wait for their submission.
    reads: Cell<usize>,
}

impl Outbox {
    pub(super) fn new() -> Outbox {
        Outbox {
            deadline_level: Cell::new(NONE_WAITS),
            reads: Cell::new(0),
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.deadline_level.get() == NONE_WAITS
    }

    /// Returns whether the operations are submitted before a poll of `level` (64 if no coroutine is
    /// ready).
    #[inline]
    pub(super) fn goes_before(&self, level: u8) -> bool {
        level >= self.deadline_level.get()
    }

    /// Adds an operation that a coroutine of this level has started.
    #[inline]
    pub(super) fn add(&self, level: u8) {
        self.deadline_level
            .set(self.deadline_level.get().min(level + 1));
    }

    /// Counts the operation that was added last as a file read.
    pub(super) fn add_read(&self) {
        self.reads.set(self.reads.get() + 1);
        if self.reads.get() >= GATHERED_READS {
            // No level is below 0, so the operations are submitted before the next poll.
            self.deadline_level.set(0);
        }
    }

    #[inline]
    pub(super) fn clear(&self) {
        self.deadline_level.set(NONE_WAITS);
        self.reads.set(0);
    }
}
