//! Operations that coroutines have started and the kernel does not know yet, as far as they decide
//! when it is told.
//!
//! Used by the thread of the vCPU only; a load and a store for each operation.

use std::cell::Cell;

/// The value of [`Outbox::before`] while nothing waits.
const NONE_WAITS: u8 = u8::MAX;

/// Reads of files that are submitted without waiting for more: the device works on them while the
/// vCPU prepares the next. 32 reads of 4 KiB at a time with O_DIRECT, in C: 60,100 /s with all that
/// are ready gathered, by fours 75,000, by ones 76,300 with a fifth more CPU (`--gather` of
/// bench/peers/c/files.c).
const GATHERED_READS: usize = 4;

/// See the module.
pub(super) struct Outbox {
    /// Operations that wait to be submitted go before polls of this level and of less urgent ones.
    before: Cell<u8>,
    /// Number of reads of files among them.
    reads: Cell<usize>,
}

impl Outbox {
    pub(super) fn new() -> Outbox {
        Outbox {
            before: Cell::new(NONE_WAITS),
            reads: Cell::new(0),
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.before.get() == NONE_WAITS
    }

    /// Is it submitted before a poll of `level` (64: none is ready) begins?
    #[inline]
    pub(super) fn goes_before(&self, level: u8) -> bool {
        level >= self.before.get()
    }

    /// Adds an operation of `level`.
    #[inline]
    pub(super) fn add(&self, level: u8) {
        self.before.set(self.before.get().min(level + 1));
    }

    /// Counts a read of a file that was added.
    pub(super) fn add_read(&self) {
        self.reads.set(self.reads.get() + 1);
        if self.reads.get() >= GATHERED_READS {
            // Before the next poll.
            self.before.set(0);
        }
    }

    /// Everything is about to be submitted.
    #[inline]
    pub(super) fn is_submitted(&self) {
        self.before.set(NONE_WAITS);
        self.reads.set(0);
    }
}
