//! Free slots that a vCPU keeps for its next spawns.
//!
//! The free list of the [`Table`] is one word that all vCPUs write: with two of them busy spawning, each spawn and each
//! exit waits for a line that the other one wrote last. So a vCPU keeps slots that are given back
//! on it, up to [`CAPACITY`], and spawns from there, last in, first out: the slot it takes is one
//! whose line it still has. With none left it takes half
//! as many from the table in one step, and with too many it gives half back in one: the table's word is written
//! once for each half of what is kept, also where all spawns are on one vCPU and all exits on another.
//!
//! Bound: the table may be out of slots while each vCPU keeps [`CAPACITY`].

use core::array;
use core::cell::UnsafeCell;
use core::ptr::NonNull;

use crate::base::host::Host;
use crate::coroutine::Slot;
use crate::tables::table::Table;

/// How many free slots a vCPU keeps. A model has few slots.
pub(crate) const CAPACITY: usize = if cfg!(loom) { 2 } else { 64 };
const HALF: usize = CAPACITY / 2;

/// What one vCPU keeps. Only the thread that serves it, in a critical section, uses this.
pub(crate) struct SlotCache<H: Host>(UnsafeCell<Stack<H>>);

struct Stack<H: Host> {
    len: usize,
    /// The first `len` are there.
    slots: [Option<NonNull<Slot<H>>>; CAPACITY],
}

impl<H: Host> SlotCache<H> {
    pub(crate) fn new() -> SlotCache<H> {
        SlotCache(UnsafeCell::new(Stack {
            len: 0,
            slots: array::from_fn(|_| None),
        }))
    }

    /// Takes a slot, from the table if none is kept. `None`: the table is full, or memory is.
    ///
    /// # Safety
    /// The caller serves the vCPU, in a critical section, or is the only one that can reach it. The table is that of its domain.
    #[inline]
    pub(crate) unsafe fn take(&self, table: &Table<H>) -> Option<NonNull<Slot<H>>> {
        // SAFETY: the only one to use it, says the caller.
        let stack = unsafe { &mut *self.0.get() };
        let last = stack.len.wrapping_sub(1);
        match stack.slots.get(last) {
            Some(&slot) => {
                stack.len = last;
                slot
            }
            None => stack.refill(table),
        }
    }

    /// Keeps a slot whose tenant's future is gone.
    ///
    /// # Safety
    /// As [`SlotCache::take`]. The slot is of this table, and its tenant is gone.
    #[inline]
    pub(crate) unsafe fn give(&self, table: &Table<H>, slot: NonNull<Slot<H>>) {
        // SAFETY: the only one to use it, says the caller.
        let stack = unsafe { &mut *self.0.get() };
        if !table.retire(slot) {
            return;
        }
        match stack.slots.get_mut(stack.len) {
            Some(place) => *place = Some(slot),
            None => {
                stack.spill(table);
                stack.slots[stack.len] = Some(slot);
            }
        }
        stack.len += 1;
    }

    /// How many are kept.
    ///
    /// # Safety
    /// As of [`SlotCache::take`].
    pub(crate) unsafe fn len(&self) -> usize {
        // SAFETY: the only one to use it, says the caller.
        unsafe { (*self.0.get()).len }
    }
}

impl<H: Host> Stack<H> {
    #[cold]
    fn refill(&mut self, table: &Table<H>) -> Option<NonNull<Slot<H>>> {
        let taken = table.take_some(&mut self.slots[..HALF]);
        self.len = taken.saturating_sub(1);
        match taken {
            0 => table.take_fresh(),
            _ => self.slots[self.len],
        }
    }

    /// Gives those back that have been here longest: they are the coldest.
    #[cold]
    fn spill(&mut self, table: &Table<H>) {
        table.give_some(&self.slots[..HALF]);
        self.slots.copy_within(HALF.., 0);
        self.len -= HALF;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::coroutine::Probe;
    use alloc::collections::BTreeSet;
    use alloc::vec::Vec;

    /// Every slot is in one place: with a tenant, kept by one of two vCPUs, or in the table.
    #[test]
    fn no_slot_is_lost_or_given_twice() {
        let steps = if cfg!(miri) { 2_000 } else { 200_000 };
        let table = Table::<Probe>::new();
        let kept = [SlotCache::new(), SlotCache::new()];
        let mut tenants = Vec::new();
        let mut random = 1u64;
        let mut most = 0;
        for step in 0..steps {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let dice = (random >> 33) as usize;
            // Long runs of spawns here and exits there, and short ones of both.
            let grows = step % 1_000 < 500;
            let at = &kept[(step / 250) % 2];
            if tenants.is_empty() || dice.is_multiple_of(4) != grows {
                // SAFETY: nothing else can reach them.
                let slot = unsafe { at.take(&table) }.unwrap();
                // SAFETY: slots live as long as the table.
                unsafe { slot.as_ref() }.word.init(false, true);
                tenants.push(slot);
                most = most.max(tenants.len());
            } else {
                let slot = tenants.swap_remove(dice % tenants.len());
                // SAFETY: as above, and it has no tenant any more.
                unsafe { at.give(&table, slot) };
            }
        }
        assert_eq!(tenants.iter().collect::<BTreeSet<_>>().len(), tenants.len());
        // SAFETY: as above.
        let free = table.count_free() + kept.iter().map(|k| unsafe { k.len() }).sum::<usize>();
        assert_eq!(free + tenants.len(), table.slots().count());
        assert!(table.slots().count() <= most + 2 * CAPACITY);
    }

    #[test]
    fn a_slot_out_of_generations_is_not_kept() {
        let table = Table::<Probe>::new();
        let kept = SlotCache::new();
        // SAFETY: nothing else can reach it.
        unsafe {
            let slot = kept.take(&table).unwrap();
            slot.as_ref().word.age(u32::MAX);
            kept.give(&table, slot);
            assert_eq!((kept.len(), table.count_free()), (0, 1));
            assert_ne!(kept.take(&table), Some(slot));
        }
    }
}
