//! Lists of slots. The links are stored beside the slots, so no operation allocates; insertion and
//! removal are O(1). A slot is in at most one list of a [`Lists`].

use alloc::vec;
use alloc::vec::Vec;

pub(super) type Index = u16;

const NONE: Index = Index::MAX;

#[derive(Clone, Copy)]
struct Links {
    previous: Index,
    next: Index,
    list: Index,
}

/// Several FIFO lists of the same slots.
pub(super) struct Lists {
    links: Vec<Links>,
    /// First and last slot of each list.
    ends: Vec<(Index, Index)>,
}

impl Lists {
    pub(super) fn new(lists: usize, slots: usize) -> Lists {
        let links = Links {
            previous: NONE,
            next: NONE,
            list: NONE,
        };
        Lists {
            links: vec![links; slots],
            ends: vec![(NONE, NONE); lists],
        }
    }

    pub(super) fn list_of(&self, slot: Index) -> Option<usize> {
        let list = self.links[usize::from(slot)].list;
        (list != NONE).then_some(usize::from(list))
    }

    pub(super) fn first(&self, list: usize) -> Option<Index> {
        let first = self.ends[list].0;
        (first != NONE).then_some(first)
    }

    pub(super) fn iter(&self, list: usize) -> impl Iterator<Item = Index> + '_ {
        let next = |slot: &Index| {
            let next = self.links[usize::from(*slot)].next;
            (next != NONE).then_some(next)
        };
        core::iter::successors(self.first(list), next)
    }

    pub(super) fn push(&mut self, list: usize, slot: Index) {
        let last = self.ends[list].1;
        self.links[usize::from(slot)] = Links {
            previous: last,
            next: NONE,
            list: list as Index,
        };
        match last {
            NONE => self.ends[list].0 = slot,
            last => self.links[usize::from(last)].next = slot,
        }
        self.ends[list].1 = slot;
    }

    pub(super) fn remove(&mut self, slot: Index) {
        let links = self.links[usize::from(slot)];
        if links.list == NONE {
            return;
        }
        let ends = &mut self.ends[usize::from(links.list)];
        match links.previous {
            NONE => ends.0 = links.next,
            previous => self.links[usize::from(previous)].next = links.next,
        }
        match links.next {
            NONE => ends.1 = links.previous,
            next => self.links[usize::from(next)].previous = links.previous,
        }
        self.links[usize::from(slot)].list = NONE;
    }
}
