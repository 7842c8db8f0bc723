//! Deadlines of slots: a binary heap that knows the position of each slot. Nothing is allocated
//! after boot. Setting and removing cost O(log slots), and nothing if the slot already has an
//! earlier deadline.

use alloc::vec;
use alloc::vec::Vec;

use smoltcp::time::Instant;

use super::lists::Index;

const NONE: Index = Index::MAX;

/// See the module.
pub(super) struct Deadlines {
    heap: Vec<(Instant, Index)>,
    /// Position of each slot in the heap, or [`NONE`].
    places: Vec<Index>,
}

impl Deadlines {
    /// Creates deadlines for `slots` slots, while booting.
    pub(super) fn new(slots: usize) -> Deadlines {
        Deadlines {
            heap: Vec::with_capacity(slots),
            places: vec![NONE; slots],
        }
    }

    /// The earliest.
    pub(super) fn first(&self) -> Option<(Instant, Index)> {
        self.heap.first().copied()
    }

    /// Gives a slot a deadline, or none.
    pub(super) fn set(&mut self, slot: Index, deadline: Option<Instant>) {
        let place = self.places[usize::from(slot)];
        match (place, deadline) {
            (NONE, None) => {}
            (NONE, Some(deadline)) => {
                let place = self.heap.len();
                self.heap.push((deadline, slot));
                self.places[usize::from(slot)] = place as Index;
                self.up(place);
            }
            (place, Some(deadline)) => {
                let place = usize::from(place);
                if self.heap[place].0 != deadline {
                    self.heap[place].0 = deadline;
                    self.settle(place);
                }
            }
            (place, None) => {
                let place = usize::from(place);
                self.heap.swap_remove(place);
                self.places[usize::from(slot)] = NONE;
                if let Some((_, moved)) = self.heap.get(place) {
                    self.places[usize::from(*moved)] = place as Index;
                    self.settle(place);
                }
            }
        }
    }

    /// Sets a latest time for the next look at the slot. A slot that is looked at too early is
    /// given its real deadline then. So a deadline that moves on with each frame costs nothing.
    pub(super) fn set_by(&mut self, slot: Index, deadline: Instant) {
        match self.places[usize::from(slot)] {
            NONE => self.set(slot, Some(deadline)),
            place if deadline < self.heap[usize::from(place)].0 => self.set(slot, Some(deadline)),
            _ => {}
        }
    }

    fn settle(&mut self, place: usize) {
        self.up(place);
        self.down(place);
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        for place in [a, b] {
            self.places[usize::from(self.heap[place].1)] = place as Index;
        }
    }

    fn up(&mut self, mut place: usize) {
        while place > 0 && self.heap[place] < self.heap[(place - 1) / 2] {
            self.swap(place, (place - 1) / 2);
            place = (place - 1) / 2;
        }
    }

    fn down(&mut self, mut place: usize) {
        loop {
            let children = [2 * place + 1, 2 * place + 2];
            let children = children
                .into_iter()
                .filter(|child| *child < self.heap.len());
            match children.min_by_key(|child| self.heap[*child]) {
                Some(child) if self.heap[child] < self.heap[place] => {
                    self.swap(place, child);
                    place = child;
                }
                _ => return,
            }
        }
    }
}
