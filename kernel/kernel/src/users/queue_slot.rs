//! Place of a thread in the queue, from its birth to its end, and a process's levels that came too
//! early.

use alloc::sync::Arc;
use core::sync::atomic::AtomicU8;
use core::sync::atomic::Ordering::Relaxed;

use os_abi::Error;
use upshift_core::Level;

use super::{NONE, NOTHING, USERS};
use crate::process::Share;
use crate::process::share::{Resource, Taken};

/// A thread's place, for as long as there is the thread.
pub(crate) struct QueueSlot {
    index: u16,
    _taken: Taken,
}

impl QueueSlot {
    /// Reserves a place for a new thread.
    ///
    /// # Errors
    /// [`Error::TooMany`]: the limit is reached, in all or in the share.
    pub(crate) fn reserve(share: &Arc<Share>) -> Result<QueueSlot, Error> {
        let taken = share.take(Resource::Threads, 1)?;
        let mut users = USERS.lock();
        let index = match users.free {
            NONE if usize::from(users.fresh) < users.places.len() => {
                users.fresh += 1;
                users.fresh - 1
            }
            NONE => return Err(Error::TooMany),
            free => {
                users.free = users.places[usize::from(free)].next;
                free
            }
        };
        Ok(QueueSlot {
            index,
            _taken: taken,
        })
    }

    /// Returns the index of the place.
    pub(crate) fn index(&self) -> u16 {
        self.index
    }
}

impl Drop for QueueSlot {
    fn drop(&mut self) {
        let mut users = USERS.lock();
        users.places[usize::from(self.index)].next = users.free;
        users.free = self.index;
    }
}

/// A level that was meant for a thread of a process when none was in the queue: one that runs,
/// is between its hart and the queue, or waits for a call, is raised when it becomes ready.
/// Set and applied under the lock of the queue; the most urgent one counts.
pub(crate) struct PendingLevel(AtomicU8);

impl PendingLevel {
    pub(crate) const fn new() -> PendingLevel {
        PendingLevel(AtomicU8::new(NOTHING))
    }

    pub(super) fn set(&self, level: Level) {
        self.0.fetch_min(level.get(), Relaxed);
    }

    /// Takes the pending level.
    pub(crate) fn take(&self) -> Option<Level> {
        match self.0.load(Relaxed) {
            NOTHING => None,
            _ => Level::new(self.0.swap(NOTHING, Relaxed)).ok(),
        }
    }
}
