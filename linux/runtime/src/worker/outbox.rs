//! The levels of operations that coroutines have started but that are not submitted to the ring
//! yet. These levels decide when the vCPU submits.
//!
//! Only the thread of the vCPU uses this state. Adding an operation costs a load and a store.

use std::cell::Cell;

/// Value of [`Outbox::submit_before_level`] while no operation waits for its submission.
const NO_OPERATION: u8 = u8::MAX;

/// Number of file reads that are submitted without waiting for more, so that the device works on
/// them while the vCPU prepares the next reads. A smaller number costs CPU time, and a larger one
/// leaves the device idle (`--gather` of bench/peers/c/files.c).
const GATHERED_READS: usize = 4;

pub(super) struct Outbox {
    /// The operations are submitted before polls of this level and of less urgent levels.
    submit_before_level: Cell<u8>,
    /// Number of file reads that wait for their submission.
    reads: Cell<usize>,
}

impl Outbox {
    pub(super) fn new() -> Outbox {
        Outbox {
            submit_before_level: Cell::new(NO_OPERATION),
            reads: Cell::new(0),
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.submit_before_level.get() == NO_OPERATION
    }

    /// Returns whether the operations must be submitted before a poll of `level` (64 if no
    /// coroutine is ready).
    #[inline]
    pub(super) fn must_submit_before(&self, level: u8) -> bool {
        level >= self.submit_before_level.get()
    }

    /// Adds an operation that a coroutine of this level has started. The operation may wait for
    /// further polls of this level, but not for polls of less urgent levels.
    #[inline]
    pub(super) fn add(&self, level: u8) {
        self.submit_before_level
            .set(self.submit_before_level.get().min(level + 1));
    }

    /// Counts the operation that was added last as a file read. With [`GATHERED_READS`] of them,
    /// the operations are submitted before the next poll.
    pub(super) fn add_read(&self) {
        self.reads.set(self.reads.get() + 1);
        if self.reads.get() >= GATHERED_READS {
            // No level is below 0, so the operations are submitted before the next poll.
            self.submit_before_level.set(0);
        }
    }

    #[inline]
    pub(super) fn clear(&self) {
        self.submit_before_level.set(NO_OPERATION);
        self.reads.set(0);
    }
}
