//! The completion ring of a process: results of asynchronous calls.
//!
//! ```text
//!  call: reserve ─► coroutine … ─► complete: entry, tail
//!                                    ├─ a thread drains the ring: it becomes as urgent
//!                                    ├─ a thread is parked: it resumes
//!                                    └─ else: a user interrupt
//! ```
//!
//! Each call reserves an entry, so a completion always has one: calls in flight and completions
//! that were not read are together at most [`RING_ENTRIES`]. The program reports the number of
//! completions that it has read; a wrong number makes the kernel overwrite only completions of this
//! program.

use os_abi::Error;
use os_abi::shared::{DRAINING, ENTRY_WORDS, RING_ENTRIES, RING_HEAD, RING_TAIL, completion};
use upshift_core::Level;

use crate::memory::shared::SharedPage;
use crate::memory::space::AddressSpace;

pub(super) struct Ring {
    /// Number of all completions so far.
    tail: u64,
    /// Number of reserved entries.
    in_flight: u64,
    /// Most urgent level of the completions that were not read.
    most_urgent: Level,
}

impl Ring {
    pub(super) const fn new() -> Ring {
        Ring {
            tail: 0,
            in_flight: 0,
            most_urgent: Level::LEAST_URGENT,
        }
    }

    /// Returns the number of completions that were not read, according to the program.
    fn unread(&self, page: &SharedPage) -> u64 {
        self.tail.wrapping_sub(page.load(RING_HEAD)).min(self.tail)
    }

    /// Reserves an entry for a completion.
    ///
    /// # Errors
    /// [`Error::TooMany`], [`Error::OutOfMemory`].
    pub(super) fn reserve(&mut self, space: &AddressSpace) -> Result<(), Error> {
        if self.in_flight + self.unread(space.shared()) >= RING_ENTRIES as u64 {
            return Err(Error::TooMany);
        }
        let (page, _) = completion(self.tail + self.in_flight);
        let result = space.ensure_completions(page);
        result.map_err(|_| Error::OutOfMemory)?;
        self.in_flight += 1;
        Ok(())
    }

    pub(super) fn release(&mut self) {
        self.in_flight -= 1;
    }

    pub(super) fn complete(&mut self, space: &AddressSpace, entry: [u64; ENTRY_WORDS]) {
        let (page, first_word) = completion(self.tail);
        // The page exists, because an entry of each page up to this one was reserved.
        if let Some(page) = space.completions(page) {
            for (word, value) in entry.into_iter().enumerate() {
                page.store(first_word + word, value);
            }
        }
        self.tail += 1;
        self.in_flight -= 1;
        space.shared().store(RING_TAIL, self.tail);
    }

    /// Returns whether a new completion of level `level` is more urgent than all earlier
    /// completions in the ring, of which the program has been notified.
    pub(super) fn is_more_urgent(&mut self, page: &SharedPage, level: Level) -> bool {
        if self.unread(page) <= 1 {
            self.most_urgent = Level::LEAST_URGENT;
        }
        let before = self.most_urgent;
        self.most_urgent = before.min(level);
        level < before
    }

    /// Returns whether there is a completion, and no thread is draining the ring.
    pub(super) fn has_unclaimed(&self, page: &SharedPage) -> bool {
        self.unread(page) != 0 && page.load(DRAINING) == 0
    }
}
