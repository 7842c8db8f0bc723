//! Deadlines of slots: a binary heap that knows the position of each slot. It allocates no memory
//! after boot. Setting and removing a deadline cost O(log slots);
//! [`Deadlines::set_no_later_than`] costs nothing if the slot already has an earlier deadline.

use alloc::vec;
use alloc::vec::Vec;

use smoltcp::time::Instant;

use super::lists::Index;

const NONE: Index = Index::MAX;

pub(super) struct Deadlines {
    heap: Vec<(Instant, Index)>,
    /// Position of each slot in the heap, or [`NONE`].
    positions: Vec<Index>,
}

impl Deadlines {
    pub(super) fn new(slots: usize) -> Deadlines {
        Deadlines {
            heap: Vec::with_capacity(slots),
            positions: vec![NONE; slots],
        }
    }

    pub(super) fn first(&self) -> Option<(Instant, Index)> {
        self.heap.first().copied()
    }

    pub(super) fn set(&mut self, slot: Index, deadline: Option<Instant>) {
        let position = self.positions[usize::from(slot)];
        match (position, deadline) {
            (NONE, None) => {}
            (NONE, Some(deadline)) => {
                let position = self.heap.len();
                self.heap.push((deadline, slot));
                self.positions[usize::from(slot)] = position as Index;
                self.sift_up(position);
            }
            (position, Some(deadline)) => {
                let position = usize::from(position);
                if self.heap[position].0 != deadline {
                    self.heap[position].0 = deadline;
                    self.sift(position);
                }
            }
            (position, None) => {
                let position = usize::from(position);
                self.heap.swap_remove(position);
                self.positions[usize::from(slot)] = NONE;
                if let Some((_, moved)) = self.heap.get(position) {
                    self.positions[usize::from(*moved)] = position as Index;
                    self.sift(position);
                }
            }
        }
    }

    /// Sets the deadline of a slot unless the slot has an earlier one. When a slot is served before
    /// its real deadline, the caller sets the real one. So a deadline that each frame postpones
    /// costs nothing.
    pub(super) fn set_no_later_than(&mut self, slot: Index, deadline: Instant) {
        match self.positions[usize::from(slot)] {
            NONE => self.set(slot, Some(deadline)),
            position if deadline < self.heap[usize::from(position)].0 => {
                self.set(slot, Some(deadline))
            }
            _ => {}
        }
    }

    fn sift(&mut self, position: usize) {
        self.sift_up(position);
        self.sift_down(position);
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        for position in [a, b] {
            self.positions[usize::from(self.heap[position].1)] = position as Index;
        }
    }

    fn sift_up(&mut self, mut position: usize) {
        while position > 0 && self.heap[position] < self.heap[(position - 1) / 2] {
            self.swap(position, (position - 1) / 2);
            position = (position - 1) / 2;
        }
    }

    fn sift_down(&mut self, mut position: usize) {
        loop {
            let children = [2 * position + 1, 2 * position + 2];
            let children = children
                .into_iter()
                .filter(|child| *child < self.heap.len());
            match children.min_by_key(|child| self.heap[*child]) {
                Some(child) if self.heap[child] < self.heap[position] => {
                    self.swap(position, child);
                    position = child;
                }
                _ => return,
            }
        }
    }
}
