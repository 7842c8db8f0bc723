//! The completion ring of a process: results of asynchronous calls.
//!
//! ```text
//!  call: reserve ─► coroutine … ─► complete: entry, tail
//!                                    ├─ a thread takes them out: nothing
//!                                    ├─ a thread is parked: let it go on
//!                                    └─ else: a user interrupt
//! ```
//!
//! A place is reserved when the call is made: calls in flight and completions
//! that were not taken are at most [`RING_ENTRIES`], so a completion always has
//! room. How many were taken the program says; if it lies, it overwrites
//! completions of its own.

use os_abi::Error;
use os_abi::shared::{DRAINING, ENTRY_WORDS, RING, RING_ENTRIES, RING_HEAD, RING_TAIL};

use crate::memory::space::SharedPage;

/// What kernel and program have agreed on so far.
pub(super) struct Ring {
    /// Completions so far.
    tail: u64,
    /// Calls in flight.
    in_flight: u64,
}

impl Ring {
    pub(super) const fn new() -> Ring {
        Ring {
            tail: 0,
            in_flight: 0,
        }
    }

    /// Completions that were not taken, as the program says.
    fn unread(&self, page: &SharedPage) -> u64 {
        self.tail.wrapping_sub(page.load(RING_HEAD)).min(self.tail)
    }

    /// Reserves a place.
    ///
    /// # Errors
    /// [`Error::TooMany`].
    pub(super) fn reserve(&mut self, page: &SharedPage) -> Result<(), Error> {
        if self.in_flight + self.unread(page) >= RING_ENTRIES as u64 {
            return Err(Error::TooMany);
        }
        self.in_flight += 1;
        Ok(())
    }

    /// Gives a reserved place back: the call was not made.
    pub(super) fn release(&mut self) {
        self.in_flight -= 1;
    }

    /// Puts a completion into its reserved place.
    pub(super) fn complete(&mut self, page: &SharedPage, entry: [u64; ENTRY_WORDS]) {
        let place = RING + self.tail as usize % RING_ENTRIES * ENTRY_WORDS;
        for (word, value) in entry.into_iter().enumerate() {
            page.store(place + word, value);
        }
        self.tail += 1;
        self.in_flight -= 1;
        page.store(RING_TAIL, self.tail);
    }

    /// Is there something that nobody is about to take out?
    pub(super) fn has_unattended(&self, page: &SharedPage) -> bool {
        self.unread(page) != 0 && page.load(DRAINING) == 0
    }
}
