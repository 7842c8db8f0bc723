//! A queue of the waiters of a synchronization primitive: most urgent level first, FIFO within a
//! level.
//!
//! The queue does not lock, so the primitive guards it with its own lock. Insert, remove and pop
//! are O(1), without an allocation once the slab has grown to the largest number of waiters so far.
//! For that, nodes lie in a slab and are linked by index into one list sorted by level. The queue
//! knows the last node of each level, and a bitmap has a bit for each level that has nodes. A queue
//! that never had a waiter is one null pointer.
//!
//! ```text
//!   insert ──► waiting ──pop──► granted ──release──► free
//!                 └──────────release────────────────►
//! ```
//!
//! Invariants: a node belongs to the future that inserted it until that future calls
//! [`WaitQueue::release`], once; `waiting` nodes are linked and have a waker, `granted` nodes are
//! not linked and have none. Methods that displace a waker return it, so that the caller drops or
//! wakes it after the lock is released.

use std::task::Waker;

use upshift_core::{LEVELS, Level};

use super::waker::{LockSafeWaker, register};

/// Index that stands for no node.
const NONE: u32 = u32::MAX;

/// Index of the node that belongs to a future.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key(u32);

/// A queue of waiters, each with a payload of the primitive.
pub(crate) struct WaitQueue<P> {
    inner: Option<Box<Inner<P>>>,
}

struct Inner<P> {
    nodes: Vec<Node<P>>,
    /// Index of the first unused node; `next` links the unused nodes.
    free: u32,
    /// Index of the first waiting node.
    head: u32,
    /// Bitmap of the levels that have waiting nodes.
    levels: u64,
    /// Index of the last waiting node of each level.
    tails: [u32; LEVELS],
}

struct Node<P> {
    prev: u32,
    next: u32,
    level: Level,
    /// True while the node is linked, false once it has been granted or is free.
    waiting: bool,
    waker: Option<Waker>,
    payload: P,
}

/// The contents of a node that has been freed.
#[must_use]
pub(crate) struct Released<P> {
    /// Payload of the node if it had been popped.
    pub(crate) granted: Option<P>,
    pub(crate) waker: Option<Waker>,
}

impl<P: Copy> WaitQueue<P> {
    pub(crate) const fn new() -> WaitQueue<P> {
        WaitQueue { inner: None }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.inner.as_ref().is_none_or(|inner| inner.head == NONE)
    }

    /// Returns the level and the payload of the first waiter.
    pub(crate) fn first(&self) -> Option<(Level, P)> {
        let inner = self.inner.as_ref()?;
        let node = inner.nodes.get(inner.head as usize)?;
        Some((node.level, node.payload))
    }

    /// Makes sure that the first waiter is still as urgent as when it queued: while the first
    /// waiter is not, moves that waiter to the end of its present level. `level_of` returns the
    /// present level of a waiter, if it is known.
    pub(crate) fn settle_first(&mut self, level_of: impl Fn(P) -> Option<Level>) {
        let Some(inner) = self.inner.as_mut() else {
            return;
        };
        while let Some(node) = inner.nodes.get(inner.head as usize)
            && let Some(level) = level_of(node.payload)
            && level > node.level
        {
            inner.relink(inner.head, level);
        }
    }

    /// Adds a waiter behind the waiters of its level.
    pub(crate) fn insert(&mut self, level: Level, payload: P, waker: Waker) -> Key {
        let inner = self.inner.get_or_insert_with(|| {
            Box::new(Inner {
                nodes: Vec::new(),
                free: NONE,
                head: NONE,
                levels: 0,
                tails: [NONE; LEVELS],
            })
        });
        let node = Node {
            prev: NONE,
            next: NONE,
            level,
            waiting: true,
            waker: Some(waker),
            payload,
        };
        let index = if inner.free == NONE {
            let index = u32::try_from(inner.nodes.len())
                .ok()
                .filter(|&index| index != NONE)
                .expect("2^32 futures do not fit into memory");
            inner.nodes.push(node);
            index
        } else {
            let index = inner.free;
            let place = inner.node(index);
            let next_free = place.next;
            *place = node;
            inner.free = next_free;
            index
        };
        inner.link(index, level);
        Key(index)
    }

    /// Takes the most urgent waiter out of the queue, and replaces its payload by the result of
    /// `grant`.
    pub(crate) fn pop(&mut self, grant: impl FnOnce(P) -> P) -> Option<Waker> {
        let inner = self.inner.as_mut()?;
        let index = inner.head;
        inner.take(index, grant)
    }

    /// Like [`pop`](Self::pop), for the newest waiter of the most urgent level.
    pub(crate) fn pop_newest(&mut self, grant: impl FnOnce(P) -> P) -> Option<Waker> {
        let inner = self.inner.as_mut()?;
        let index = *inner.tails.get(inner.levels.trailing_zeros() as usize)?;
        inner.take(index, grant)
    }

    /// Returns true if the waiter has been popped.
    pub(crate) fn is_granted(&self, key: Key) -> bool {
        self.inner
            .as_ref()
            .is_some_and(|inner| !inner.nodes[key.0 as usize].waiting)
    }

    /// Updates the node of a future that was polled again and still waits. The waker and the level
    /// of the waiter may have changed; with the level, the waiter's place in the queue changes too.
    /// Returns the old waker.
    pub(crate) fn refresh(
        &mut self,
        key: Key,
        level: Level,
        waker: &mut LockSafeWaker<'_>,
    ) -> Option<Waker> {
        let inner = self.inner.as_mut()?;
        let node = inner.node(key.0);
        if !node.waiting {
            return None;
        }
        let old_waker = register(&mut node.waker, waker);
        if node.level != level {
            inner.relink(key.0, level);
        }
        old_waker
    }

    /// Frees the node of a future. If the future still waits, it leaves the queue.
    pub(crate) fn release(&mut self, key: Key) -> Released<P> {
        let Some(inner) = self.inner.as_mut() else {
            return Released {
                granted: None,
                waker: None,
            };
        };
        let node = inner.node(key.0);
        let granted = (!node.waiting).then_some(node.payload);
        if granted.is_none() {
            inner.unlink(key.0);
        }
        let free = std::mem::replace(&mut inner.free, key.0);
        let node = inner.node(key.0);
        node.waiting = false;
        node.next = free;
        Released {
            granted,
            waker: node.waker.take(),
        }
    }

    /// Takes all waiters out of the queue, in order. O(waiters).
    pub(crate) fn pop_all(&mut self, grant: impl Fn(P) -> P) -> Vec<Waker> {
        std::iter::from_fn(|| self.pop(&grant)).collect()
    }
}

impl<P> Inner<P> {
    fn node(&mut self, index: u32) -> &mut Node<P> {
        &mut self.nodes[index as usize]
    }

    /// Takes a waiting node out of the queue, and replaces its payload by the result of `grant`.
    fn take(&mut self, index: u32, grant: impl FnOnce(P) -> P) -> Option<Waker>
    where
        P: Copy,
    {
        if index == NONE {
            return None;
        }
        self.unlink(index);
        let node = self.node(index);
        node.waiting = false;
        node.payload = grant(node.payload);
        node.waker.take()
    }

    /// Moves a waiting node to the end of a level.
    fn relink(&mut self, index: u32, level: Level) {
        self.unlink(index);
        self.node(index).level = level;
        self.link(index, level);
    }

    /// Inserts a node behind the last node of its level or, if there is none, of the nearest more
    /// urgent level.
    fn link(&mut self, index: u32, level: Level) {
        let ahead = self.levels & (level.more_urgent_bits() | level.bit());
        let prev = match ahead.checked_ilog2() {
            Some(nearest) => self.tails[nearest as usize],
            None => NONE,
        };
        let next = if prev == NONE {
            std::mem::replace(&mut self.head, index)
        } else {
            std::mem::replace(&mut self.node(prev).next, index)
        };
        if next != NONE {
            self.node(next).prev = index;
        }
        let node = self.node(index);
        node.prev = prev;
        node.next = next;
        self.tails[usize::from(level.get())] = index;
        self.levels |= level.bit();
    }

    fn unlink(&mut self, index: u32) {
        let node = &self.nodes[index as usize];
        let (prev, next, level) = (node.prev, node.next, node.level);
        if prev == NONE {
            self.head = next;
        } else {
            self.node(prev).next = next;
        }
        if next != NONE {
            self.node(next).prev = prev;
        }
        let tail = &mut self.tails[usize::from(level.get())];
        if *tail == index {
            match self.nodes.get(prev as usize) {
                Some(before) if before.level == level => *tail = prev,
                _ => {
                    *tail = NONE;
                    self.levels &= !level.bit();
                }
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn level(n: u8) -> Level {
        Level::new(n % 64).unwrap()
    }

    #[test]
    fn an_unused_queue_is_as_small_as_a_pointer() {
        assert_eq!(size_of::<WaitQueue<u64>>(), size_of::<usize>());
    }

    proptest! {
        /// Compares the queue with a vector that is sorted stably before each pop.
        #[test]
        fn waiters_pop_in_the_order_of_a_sorted_list(
            steps in proptest::collection::vec((0_u8..8, any::<u8>(), any::<prop::sample::Index>()), 1..200)
        ) {
            let mut queue = WaitQueue::new();
            let mut model: Vec<(Level, u32, Key)> = Vec::new();
            let mut granted: Vec<Key> = Vec::new();
            for (number, (step, n, index)) in (0_u32..).zip(steps) {
                match step {
                    0..=2 => {
                        let key = queue.insert(level(n), number, Waker::noop().clone());
                        model.push((level(n), number, key));
                    }
                    3..=4 => {
                        model.sort_by_key(|waiter| waiter.0);
                        let expected = (!model.is_empty()).then(|| model.remove(0));
                        prop_assert_eq!(queue.first(), expected.map(|e| (e.0, e.1)));
                        let popped = queue.pop(|number| number);
                        prop_assert_eq!(popped.is_some(), expected.is_some());
                        if let Some((_, _, key)) = expected {
                            prop_assert!(queue.is_granted(key));
                            granted.push(key);
                        }
                    }
                    5 if !model.is_empty() => {
                        let (_, _, key) = model.remove(index.index(model.len()));
                        prop_assert_eq!(queue.release(key).granted, None);
                    }
                    6 if !model.is_empty() => {
                        let position = index.index(model.len());
                        let (old_level, number, key) = model[position];
                        queue.refresh(key, level(n), &mut LockSafeWaker::new(Waker::noop()));
                        if old_level != level(n) {
                            model.remove(position);
                            model.push((level(n), number, key));
                        }
                    }
                    _ => if let Some(key) = granted.pop() {
                        prop_assert!(queue.release(key).granted.is_some());
                    }
                }
                prop_assert_eq!(queue.is_empty(), model.is_empty());
            }
        }
    }
}
