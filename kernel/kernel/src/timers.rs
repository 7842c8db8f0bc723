//! The timers of a hart: a binary heap by deadline, with cancellation.
//!
//! Setting and cancelling a timer cost O(log n); firing costs O(log n) per timer and allocates
//! nothing, so the interrupt handler can do it. When no timer is left, unused memory is freed,
//! which costs O(n). Timers with equal deadlines fire in the order in which they were set.
//!
//! ```text
//!  Key ─► slots[key.slot]: position, waker ─► heap[position]: deadline, slot
//! ```

use alloc::vec::Vec;
use core::task::Waker;

use crate::chaos;
use crate::memory::OutOfMemory;

/// Number of timers for which memory is kept when no timer is left; memory beyond it is freed.
const IDLE_CAPACITY: usize = 64;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    deadline: u64,
    /// Orders timers with the same deadline, and distinguishes a timer from earlier timers in its
    /// slot.
    sequence: u64,
    slot: usize,
}

/// The part of a timer that does not move in the heap.
struct Slot {
    sequence: u64,
    position: usize,
    waker: Option<Waker>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    slot: usize,
    sequence: u64,
}

pub(crate) struct Timers {
    heap: Vec<Entry>,
    slots: Vec<Slot>,
    free: Vec<usize>,
    sequence: u64,
}

impl Timers {
    pub(crate) const fn new() -> Timers {
        Timers {
            heap: Vec::new(),
            slots: Vec::new(),
            free: Vec::new(),
            sequence: 0,
        }
    }

    /// Reserves memory for the first timers. Called while booting.
    pub(crate) fn reserve(&mut self) -> Result<(), OutOfMemory> {
        let heap = self.heap.try_reserve_exact(IDLE_CAPACITY);
        let slots = self.slots.try_reserve_exact(IDLE_CAPACITY);
        let free = self.free.try_reserve_exact(IDLE_CAPACITY);
        heap.and(slots).and(free).map_err(|_| OutOfMemory)
    }

    /// Returns the earliest deadline, or `u64::MAX` if there are no timers.
    pub(crate) fn next_deadline(&self) -> u64 {
        self.heap.first().map_or(u64::MAX, |entry| entry.deadline)
    }

    pub(crate) fn add(&mut self, deadline: u64, waker: Waker) -> Result<Key, OutOfMemory> {
        let out_of_memory = |_| OutOfMemory;
        // In chaos mode, about one call in 16 fails.
        if chaos::is_out_of_memory(16) {
            return Err(OutOfMemory);
        }
        self.heap.try_reserve(1).map_err(out_of_memory)?;
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.slots.try_reserve(1).map_err(out_of_memory)?;
                // Reserved here, so that freeing the slot never allocates.
                let slots = self.slots.len() + 1;
                self.free.try_reserve(slots).map_err(out_of_memory)?;
                self.slots.push(Slot {
                    sequence: 0,
                    position: 0,
                    waker: None,
                });
                slots - 1
            }
        };
        self.sequence += 1;
        let sequence = self.sequence;
        let position = self.heap.len();
        self.heap.push(Entry {
            deadline,
            sequence,
            slot,
        });
        self.slots[slot] = Slot {
            sequence,
            position,
            waker: Some(waker),
        };
        self.sift_up(position);
        Ok(Key { slot, sequence })
    }

    /// Removes a timer, unless it has fired; returns its waker.
    pub(crate) fn cancel(&mut self, key: Key) -> Option<Waker> {
        let slot = self.slots.get(key.slot)?;
        if slot.sequence != key.sequence || slot.waker.is_none() {
            return None;
        }
        self.remove(slot.position)
    }

    pub(crate) fn set_waker(&mut self, key: Key, waker: &Waker) {
        if let Some(slot) = self.slots.get_mut(key.slot)
            && slot.sequence == key.sequence
            && let Some(old) = &mut slot.waker
        {
            old.clone_from(waker);
        }
    }

    /// Removes the first expired timer; returns its waker.
    pub(crate) fn expire(&mut self, now: u64) -> Option<Waker> {
        if self.next_deadline() > now {
            return None;
        }
        self.remove(0)
    }

    fn remove(&mut self, position: usize) -> Option<Waker> {
        let entry = self.heap.swap_remove(position);
        if position < self.heap.len() {
            self.update_slot_position(position);
            self.sift_up(position);
            self.sift_down(position);
        }
        self.free.push(entry.slot);
        let waker = self.slots[entry.slot].waker.take();
        if self.heap.is_empty() {
            self.heap.shrink_to(IDLE_CAPACITY);
            self.slots.clear();
            self.slots.shrink_to(IDLE_CAPACITY);
            self.free.clear();
            self.free.shrink_to(IDLE_CAPACITY);
        }
        waker
    }

    fn update_slot_position(&mut self, position: usize) {
        self.slots[self.heap[position].slot].position = position;
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.update_slot_position(a);
        self.update_slot_position(b);
    }

    fn sift_up(&mut self, mut position: usize) {
        while position > 0 {
            let parent = (position - 1) / 2;
            if self.heap[parent] <= self.heap[position] {
                return;
            }
            self.swap(position, parent);
            position = parent;
        }
    }

    fn sift_down(&mut self, mut position: usize) {
        loop {
            let left = 2 * position + 1;
            let child = [left, left + 1]
                .into_iter()
                .filter(|child| *child < self.heap.len())
                .min_by_key(|child| self.heap[*child]);
            match child {
                Some(child) if self.heap[child] < self.heap[position] => {
                    self.swap(position, child);
                    position = child;
                }
                _ => return,
            }
        }
    }
}
