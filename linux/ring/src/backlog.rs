//! Priority queues of operations that found the submission queue full, and of streams that found no
//! receive buffer. The most urgent level comes first, and each level is FIFO.
//!
//! The queues are intrusive: each [`Slot`](crate::slot) (the memory of one operation) holds the
//! link to the next. So a backlog never allocates, and the number of slots bounds its length. Every
//! method but `remove` is O(1), because a bitmap says which levels are not empty. Only the thread
//! that owns the ring may use a backlog.

use crate::slot::Slot;
use std::cell::Cell;
use std::ptr;

/// Number of levels of urgency.
pub(crate) const LEVELS: usize = 64;

pub(crate) struct SlotQueue {
    head: Cell<*const Slot>,
    tail: Cell<*const Slot>,
}

impl SlotQueue {
    pub(crate) const fn new() -> Self {
        Self {
            head: Cell::new(ptr::null()),
            tail: Cell::new(ptr::null()),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.head.get().is_null()
    }

    pub(crate) fn push(&self, slot: &Slot) {
        slot.next.set(ptr::null());
        if self.head.get().is_null() {
            self.head.set(slot);
        } else {
            // SAFETY: a queue that is not empty has a tail, and slots outlive the queues that hold
            // them, so the pointer is valid.
            unsafe { &*self.tail.get() }.next.set(slot);
        }
        self.tail.set(slot);
    }

    pub(crate) fn first<'a>(&self) -> Option<&'a Slot> {
        // SAFETY: the pointer is null or points to a queued slot; slots live as long as the ring
        // and its handles, and so outlive the reference.
        unsafe { self.head.get().as_ref() }
    }

    pub(crate) fn pop<'a>(&self) -> Option<&'a Slot> {
        let slot = self.first()?;
        self.head.set(slot.next.get());
        Some(slot)
    }
}

impl SlotQueue {
    /// Takes `slot` out of the middle; O(n).
    pub(crate) fn remove(&self, slot: &Slot) {
        let remaining = SlotQueue::new();
        while let Some(other) = self.pop() {
            if !ptr::eq(other, slot) {
                remaining.push(other);
            }
        }
        self.head.set(remaining.head.get());
        self.tail.set(remaining.tail.get());
    }
}

pub(crate) struct Backlog {
    occupied: Cell<u64>,
    len: Cell<usize>,
    levels: [SlotQueue; LEVELS],
}

impl Backlog {
    pub(crate) fn new() -> Self {
        Self {
            occupied: Cell::new(0),
            len: Cell::new(0),
            levels: [const { SlotQueue::new() }; LEVELS],
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.occupied.get() == 0
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len.get()
    }

    pub(crate) fn push(&self, slot: &Slot) {
        let level = usize::from(slot.level.get()) % LEVELS;
        self.levels[level].push(slot);
        self.occupied.set(self.occupied.get() | 1 << level);
        self.len.set(self.len.get() + 1);
    }

    #[inline]
    pub(crate) fn occupied(&self) -> u64 {
        self.occupied.get()
    }

    pub(crate) fn pop<'a>(&self) -> Option<&'a Slot> {
        self.pop_from(u64::MAX)
    }

    pub(crate) fn first<'a>(&self) -> Option<&'a Slot> {
        let level = self.occupied.get().trailing_zeros() as usize;
        self.levels.get(level)?.first()
    }

    pub(crate) fn pop_from<'a>(&self, levels: u64) -> Option<&'a Slot> {
        let levels = self.occupied.get() & levels;
        if levels == 0 {
            return None;
        }
        let level = levels.trailing_zeros() as usize;
        let slot = self.levels[level].pop();
        if self.levels[level].is_empty() {
            self.occupied.set(self.occupied.get() & !(1 << level));
        }
        self.len.set(self.len.get() - 1);
        slot
    }

    /// Takes `slot` out of the middle; O(n) in its level.
    pub(crate) fn remove(&self, slot: &Slot) {
        let level = usize::from(slot.level.get()) % LEVELS;
        self.levels[level].remove(slot);
        if self.levels[level].is_empty() {
            self.occupied.set(self.occupied.get() & !(1 << level));
        }
        self.len.set(self.len.get() - 1);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn removing_a_slot_leaves_the_others_in_order() {
        let slots: Vec<Slot> = (0..4).map(Slot::new).collect();
        let queue = SlotQueue::new();
        for slot in &slots {
            queue.push(slot);
        }
        queue.remove(&slots[3]);
        queue.remove(&slots[1]);
        queue.push(&slots[1]);
        let order: Vec<u64> = std::iter::from_fn(|| queue.pop())
            .map(Slot::user_data)
            .collect();
        assert_eq!(order, [0, 2, 1]);
    }

    #[test]
    fn the_most_urgent_slot_leaves_first_and_equal_slots_leave_in_order() {
        let slots: Vec<Slot> = (0..6).map(Slot::new).collect();
        let backlog = Backlog::new();
        for (slot, level) in slots.iter().zip([63, 5, 0, 5, 63, 0]) {
            slot.level.set(level);
            backlog.push(slot);
        }
        assert_eq!(backlog.len(), 6);
        let order: Vec<u64> = std::iter::from_fn(|| backlog.pop())
            .map(Slot::user_data)
            .collect();
        assert_eq!(order, [2, 5, 1, 3, 0, 4]);
        assert!(backlog.is_empty());
        assert_eq!(backlog.len(), 0);
    }
}
