//! Caches free slots of the table of coroutines for the next spawns on a vCPU.
//!
//! The free list of the [`Table`] is one word that all vCPUs write. When two vCPUs spawn at high
//! rates, each spawn and each exit waits for a cache line that the other vCPU wrote last. So a vCPU
//! keeps up to [`CAPACITY`] of the slots that are given back on it, and uses them for its spawns.
//! The slot that was given back last is used first, because its line is still in the cache of the
//! CPU. An empty slot cache takes half of its capacity from the table in one step, and a full slot
//! cache gives half back in one step. So the word of the table is written once per half, even if
//! all spawns are on one vCPU and all exits on another.
//!
//! Bound: each vCPU may keep [`CAPACITY`] slots while the table has none left.

use core::array;
use core::cell::UnsafeCell;
use core::ptr::NonNull;

use crate::base::host::Host;
use crate::coroutine::Slot;
use crate::tables::table::Table;

/// Largest number of free slots that a vCPU keeps. Small in models, whose table has few slots.
pub(crate) const CAPACITY: usize = if cfg!(loom) { 2 } else { 64 };
const HALF: usize = CAPACITY / 2;

/// The free slots that a vCPU keeps. Used only by the thread that serves the vCPU, in a critical
/// section.
pub(crate) struct SlotCache<H: Host>(UnsafeCell<Stack<H>>);

struct Stack<H: Host> {
    len: usize,
    /// The first `len` entries are `Some`.
    slots: [Option<NonNull<Slot<H>>>; CAPACITY],
}

impl<H: Host> SlotCache<H> {
    pub(crate) fn new() -> SlotCache<H> {
        SlotCache(UnsafeCell::new(Stack {
            len: 0,
            slots: array::from_fn(|_| None),
        }))
    }

    /// Takes a free slot, from the table if the cache is empty. Returns `None` if the table is
    /// full, or memory has run out.
    ///
    /// # Safety
    /// The caller serves the vCPU, in a critical section, or is the only thread that can reach the
    /// cache. The table is that of the vCPU's domain.
    #[inline]
    pub(crate) unsafe fn take(&self, table: &Table<H>) -> Option<NonNull<Slot<H>>> {
        // SAFETY: the caller is the only user, by contract.
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
    /// Same as [`SlotCache::take`]. The slot is of this table, and its tenant is gone.
    #[inline]
    pub(crate) unsafe fn give(&self, table: &Table<H>, slot: NonNull<Slot<H>>) {
        // SAFETY: the caller is the only user, by contract.
        let stack = unsafe { &mut *self.0.get() };
        if !table.retire(slot) {
            return;
        }
        match stack.slots.get_mut(stack.len) {
            Some(free) => *free = Some(slot),
            None => {
                stack.spill(table);
                stack.slots[stack.len] = Some(slot);
            }
        }
        stack.len += 1;
    }

    /// # Safety
    /// Same as [`SlotCache::take`].
    pub(crate) unsafe fn len(&self) -> usize {
        // SAFETY: the caller is the only user, by contract.
        unsafe { (*self.0.get()).len }
    }
}

impl<H: Host> Stack<H> {
    #[cold]
    fn refill(&mut self, table: &Table<H>) -> Option<NonNull<Slot<H>>> {
        let count = table.take_some(&mut self.slots[..HALF]);
        self.len = count.saturating_sub(1);
        match count {
            0 => table.take_fresh(),
            _ => self.slots[self.len],
        }
    }

    /// Gives back the slots that have been cached longest, whose lines are the coldest.
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

    /// Every slot is in one place: with a tenant, in the cache of one of two vCPUs, or in the
    /// table.
    #[test]
    fn no_slot_is_lost_or_given_twice() {
        let steps = if cfg!(miri) { 2_000 } else { 200_000 };
        let table = Table::<Probe>::new();
        let caches = [SlotCache::new(), SlotCache::new()];
        let mut tenants = Vec::new();
        let mut random = 1u64;
        let mut max_tenants = 0;
        for step in 0..steps {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let dice = (random >> 33) as usize;
            // Spawns dominate for 500 steps, then exits do; the cache alternates every 250 steps.
            let grows = step % 1_000 < 500;
            let cache = &caches[(step / 250) % 2];
            if tenants.is_empty() || dice.is_multiple_of(4) != grows {
                // SAFETY: no other thread can reach the caches.
                let slot = unsafe { cache.take(&table) }.unwrap();
                // SAFETY: slots live as long as the table.
                unsafe { slot.as_ref() }.word.init(false, true);
                tenants.push(slot);
                max_tenants = max_tenants.max(tenants.len());
            } else {
                let slot = tenants.swap_remove(dice % tenants.len());
                // SAFETY: no other thread can reach the caches, and the slot has no tenant any
                // more.
                unsafe { cache.give(&table, slot) };
            }
        }
        assert_eq!(tenants.iter().collect::<BTreeSet<_>>().len(), tenants.len());
        // SAFETY: no other thread can reach the caches.
        let free = table.count_free()
            + caches
                .iter()
                .map(|cache| unsafe { cache.len() })
                .sum::<usize>();
        assert_eq!(free + tenants.len(), table.slots().count());
        assert!(table.slots().count() <= max_tenants + 2 * CAPACITY);
    }

    #[test]
    fn a_slot_out_of_generations_is_not_cached() {
        let table = Table::<Probe>::new();
        let cache = SlotCache::new();
        // SAFETY: no other thread can reach the cache.
        unsafe {
            let slot = cache.take(&table).unwrap();
            slot.as_ref().word.set_generation(u32::MAX);
            cache.give(&table, slot);
            assert_eq!((cache.len(), table.count_free()), (0, 1));
            assert_ne!(cache.take(&table), Some(slot));
        }
    }
}
