//! Slot of a thread in the run queue, and the level that the next ready thread of a process gets.

use alloc::sync::Arc;
use core::sync::atomic::AtomicU8;
use core::sync::atomic::Ordering::Relaxed;

use os_abi::Error;
use upshift_core::Level;

use super::{NO_LEVEL, NONE, RUN_QUEUE};
use crate::process::Share;
use crate::process::share::{Charge, Resource};

/// Slot of a thread in the run queue, from its creation to its end.
pub(crate) struct QueueSlot {
    index: u16,
    _charge: Charge,
}

impl QueueSlot {
    /// Reserves a slot for a new thread.
    ///
    /// # Errors
    /// [`Error::TooMany`] if the limit of the machine or of the share is reached.
    pub(crate) fn reserve(share: &Arc<Share>) -> Result<QueueSlot, Error> {
        let charge = share.charge(Resource::Threads, 1)?;
        let mut queue = RUN_QUEUE.lock();
        let index = match queue.first_free {
            NONE if usize::from(queue.first_unused) < queue.slots.len() => {
                queue.first_unused += 1;
                queue.first_unused - 1
            }
            NONE => return Err(Error::TooMany),
            free => {
                queue.first_free = queue.slots[usize::from(free)].next;
                free
            }
        };
        Ok(QueueSlot {
            index,
            _charge: charge,
        })
    }

    pub(crate) fn index(&self) -> u16 {
        self.index
    }
}

impl Drop for QueueSlot {
    fn drop(&mut self) {
        let mut queue = RUN_QUEUE.lock();
        queue.slots[usize::from(self.index)].next = queue.first_free;
        queue.first_free = self.index;
    }
}

/// Level to which the next thread of a process that becomes ready is raised, because an event found
/// none of its threads in the queue. Set and applied under the lock of the queue; the most urgent
/// level wins.
pub(crate) struct PendingLevel(AtomicU8);

impl PendingLevel {
    pub(crate) const fn new() -> PendingLevel {
        PendingLevel(AtomicU8::new(NO_LEVEL))
    }

    pub(super) fn set(&self, level: Level) {
        self.0.fetch_min(level.get(), Relaxed);
    }

    pub(crate) fn take(&self) -> Option<Level> {
        match self.0.load(Relaxed) {
            NO_LEVEL => None,
            _ => Level::new(self.0.swap(NO_LEVEL, Relaxed)).ok(),
        }
    }
}
