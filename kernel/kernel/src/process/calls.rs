//! The table of a process's system calls in flight: their numbers and coroutines.
//!
//! A number is allocated before the coroutine is created, so that the coroutine knows its number;
//! the number is freed when the call ends. The number of an asynchronous call is paired with a
//! token, which distinguishes calls that had the same number. All operations are O(1).

use alloc::sync::Arc;
use alloc::vec::Vec;

use os_abi::Error;
use upshift_core::CoroutineId;

use super::Share;
use super::share::{Charge, Resource};

/// Maximum number of calls in flight of a process: one for each completion, and one for each of its
/// threads.
const MAX_CALLS: usize = os_abi::shared::RING_ENTRIES + os_abi::thread::MAX_THREADS;

/// Maximum memory of a call in KiB: its coroutine, its slot, its timer.
const KIB: usize = 1;

const NONE: usize = usize::MAX;

struct Slot {
    coroutine: Option<CoroutineId>,
    token: Option<u64>,
    is_cancelled: bool,
    /// Next free slot.
    next: usize,
}

pub(super) struct Calls {
    slots: Vec<Slot>,
    /// First free slot.
    free: usize,
    /// Charge for the memory of the slots, which grows with the table.
    charge: Option<Charge>,
}

impl Calls {
    pub(super) const fn new() -> Calls {
        Calls {
            slots: Vec::new(),
            free: NONE,
            charge: None,
        }
    }

    /// Allocates a number for a call.
    ///
    /// # Errors
    /// [`Error::TooMany`], [`Error::OutOfMemory`].
    pub(super) fn add(&mut self, share: &Arc<Share>, token: Option<u64>) -> Result<usize, Error> {
        let slot = Slot {
            coroutine: None,
            token,
            is_cancelled: false,
            next: NONE,
        };
        if let Some(free) = self.slots.get_mut(self.free) {
            let number = core::mem::replace(&mut self.free, free.next);
            *free = slot;
            return Ok(number);
        }
        if self.slots.len() >= MAX_CALLS {
            return Err(Error::TooMany);
        }
        match &self.charge {
            Some(charge) => charge.grow(KIB)?,
            None => self.charge = Some(share.charge(Resource::Memory, KIB)?),
        }
        self.slots.try_reserve(1).map_err(|_| Error::OutOfMemory)?;
        self.slots.push(slot);
        Ok(self.slots.len() - 1)
    }

    /// Sets the coroutine of a call. Returns false if the process has ended meanwhile.
    pub(super) fn set_coroutine(&mut self, number: usize, coroutine: CoroutineId) -> bool {
        let slot = self.slots.get_mut(number);
        slot.map(|slot| slot.coroutine = Some(coroutine)).is_some()
    }

    pub(super) fn remove(&mut self, number: usize) {
        if let Some(slot) = self.slots.get_mut(number) {
            slot.coroutine = None;
            slot.token = None;
            slot.next = core::mem::replace(&mut self.free, number);
        }
    }

    /// Marks an asynchronous call as cancelled. Returns the coroutine of the call, which the caller
    /// wakes.
    pub(super) fn cancel(&mut self, number: usize, token: u64) -> Option<CoroutineId> {
        let coroutine = self.find(number, token)?;
        self.slots[number].is_cancelled = true;
        Some(coroutine)
    }

    pub(super) fn find(&self, number: usize, token: u64) -> Option<CoroutineId> {
        let slot = self.slots.get(number)?;
        slot.coroutine.filter(|_| slot.token == Some(token))
    }

    pub(super) fn is_cancelled(&self, number: usize) -> bool {
        self.slots.get(number).is_some_and(|slot| slot.is_cancelled)
    }

    pub(super) fn coroutines(self) -> impl Iterator<Item = CoroutineId> {
        self.slots.into_iter().filter_map(|slot| slot.coroutine)
    }
}
