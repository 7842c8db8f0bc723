//! A hierarchical timer wheel, which finds the deadlines that are due.
//!
//! The wheel reads no clock; the caller passes the time. Times are nanoseconds; the wheel counts in
//! ticks of 1024 ns. A deadline is rounded up to a tick, so a timer is never early, and the
//! rounding makes it late by a tick at most.
//!
//! A level here is a level of the wheel, not a priority. Level 0 has 64 slots of one tick, level 1
//! has 64 slots of 64 ticks, and so on; nine levels hold every `u64`. To place a timer, its tick is
//! compared with `elapsed` in groups of six bits. The highest group that differs is the level of
//! the timer, and the value of that group in the tick is the number of its slot. Slots are doubly
//! linked lists. A word per level has a bit for each slot in use. Each slot knows a lower bound of
//! its deadlines.
//!
//! Invariants:
//!
//! * every timer in a slot has a tick > `elapsed`, and shares with `elapsed` all groups above its
//!   level. So the first slot in use of a level has the level's earliest timers, and the next
//!   deadline is the least bound of nine slots;
//! * a node belongs to the caller that inserted it until the caller removes it, even after the
//!   timer has fired. So a key never refers to the timer of another caller.
//!
//! Insert and remove are O(1), without allocation once the slab has grown. A timer is moved at most
//! once per level before it fires. A stretch of time without timers costs nothing, however long it
//! is. A removed timer leaves its slot's bound as it was, so at worst one call of `expire` finds
//! nothing.

use std::mem;

/// Binary logarithm of the nanoseconds per tick.
const TICK_BITS: u32 = 10;
/// Number of bits of a tick that select a slot within a level.
const GROUP_BITS: u32 = 6;
/// Number of slots of a level.
const SLOTS: usize = 1 << GROUP_BITS;
/// Number of levels of the wheel.
const LEVELS: usize = 9;
/// Last tick that exists: 584 years after the clock's zero.
const LAST_TICK: u64 = (1 << (64 - TICK_BITS)) - 1;
/// Index that stands for no node.
const NONE: u32 = u32::MAX;

/// Index of the node of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key(u32);

/// A wheel of timers, each with a value.
pub(crate) struct Wheel<T> {
    nodes: Vec<Node<T>>,
    /// Index of the first unused node; `next` links the unused nodes.
    free: u32,
    /// Number of timers that have not fired.
    armed: usize,
    /// Last tick whose timers have fired.
    elapsed: u64,
    levels: Box<[Level; LEVELS]>,
}

struct Level {
    /// Bitmap of the slots in use.
    used: u64,
    /// Index of the first node of each slot in use.
    heads: [u32; SLOTS],
    /// Lower bound of the ticks of each slot's timers.
    bounds: [u64; SLOTS],
}

struct Node<T> {
    tick: u64,
    prev: u32,
    next: u32,
    level: u8,
    slot: u8,
    /// `None` once the timer has fired.
    value: Option<T>,
}

impl<T> Wheel<T> {
    pub(crate) fn new(now: u64) -> Wheel<T> {
        Wheel {
            nodes: Vec::new(),
            free: NONE,
            armed: 0,
            elapsed: now >> TICK_BITS,
            levels: Box::new(
                [const {
                    Level {
                        used: 0,
                        heads: [NONE; SLOTS],
                        bounds: [0; SLOTS],
                    }
                }; LEVELS],
            ),
        }
    }

    /// Adds a timer. A timer whose deadline has passed fires at the next `expire`. Returns the
    /// timer's key, and the time at which it fires (ns).
    #[inline]
    pub(crate) fn insert(&mut self, deadline: u64, value: T) -> (Key, u64) {
        let tick = self.tick(deadline);
        let node = Node {
            tick,
            prev: NONE,
            next: NONE,
            level: 0,
            slot: 0,
            value: Some(value),
        };
        let index = self.free;
        let index = if let Some(unused) = self.nodes.get_mut(index as usize) {
            self.free = unused.next;
            *unused = node;
            index
        } else {
            self.nodes.push(node);
            u32::try_from(self.nodes.len() - 1).expect("2^32 timers do not fit into memory")
        };
        self.link(index);
        (Key(index), tick << TICK_BITS)
    }

    /// Removes a timer, fired or not. Returns its value unless it has fired.
    #[inline]
    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let value = self.node(key.0).value.take();
        if value.is_some() {
            self.disarm(key.0);
        }
        self.node(key.0).next = mem::replace(&mut self.free, key.0);
        value
    }

    /// Changes the deadline of a timer that has not fired. Returns false if it has fired.
    pub(crate) fn reset(&mut self, key: Key, deadline: u64) -> bool {
        let armed = self.node(key.0).value.is_some();
        if armed {
            self.disarm(key.0);
            self.arm(key.0, deadline);
        }
        armed
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        self.node(key.0).value.as_mut()
    }

    /// Returns when to call `expire` next, in ns. This is never later than a tick after a deadline,
    /// and at worst too early.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        if self.armed == 0 {
            return None;
        }
        self.levels
            .iter()
            .filter(|level| level.used != 0)
            .map(|level| level.bounds[level.used.trailing_zeros() as usize])
            .min()
            .map(|tick| tick << TICK_BITS)
    }

    /// Fires every timer whose deadline is at or before `now` (ns). For each timer, passes its
    /// deadline (rounded up) and its value to `fire`, in no particular order.
    pub(crate) fn expire(&mut self, now: u64, mut fire: impl FnMut(u64, T)) {
        let now = now >> TICK_BITS;
        if now < self.elapsed {
            return;
        }
        let mut chain = NONE;
        for number in 0..LEVELS {
            // The slots come in order of time, up to the first slot that lies in the future.
            while let Some(slot) = self.levels[number].first_until(now) {
                chain = self.detach(number, slot, chain);
            }
        }
        self.elapsed = now;
        // The timers of the chain are in no slot now; `next` links them.
        while chain != NONE {
            let index = chain;
            let node = self.node(index);
            chain = node.next;
            if node.tick <= now {
                let tick = node.tick;
                if let Some(value) = node.value.take() {
                    fire(tick << TICK_BITS, value);
                }
            } else {
                self.link(index);
            }
        }
    }

    /// Removes all timers that have not fired, and passes their values to `fire`.
    pub(crate) fn drain(&mut self, mut fire: impl FnMut(T)) {
        for level in self.levels.iter_mut() {
            level.used = 0;
        }
        self.armed = 0;
        self.nodes
            .iter_mut()
            .filter_map(|node| node.value.take())
            .for_each(&mut fire);
    }

    #[inline]
    fn node(&mut self, index: u32) -> &mut Node<T> {
        &mut self.nodes[index as usize]
    }

    #[inline]
    fn arm(&mut self, index: u32, deadline: u64) {
        self.node(index).tick = self.tick(deadline);
        self.link(index);
    }

    /// Returns the tick in which a deadline fires: the next tick if the deadline has passed.
    #[inline]
    fn tick(&self, deadline: u64) -> u64 {
        let tick = deadline.div_ceil(1 << TICK_BITS);
        tick.max(self.elapsed + 1).min(LAST_TICK)
    }

    /// Returns the time at which a timer of this deadline would fire (ns).
    #[inline]
    pub(crate) fn rounded(&self, deadline: u64) -> u64 {
        self.tick(deadline) << TICK_BITS
    }

    /// Returns true if this deadline had passed at the time of the last `expire`.
    #[inline]
    pub(crate) fn is_past(&self, deadline: u64) -> bool {
        deadline <= self.elapsed << TICK_BITS
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.armed == 0
    }

    #[inline]
    fn link(&mut self, index: u32) {
        let elapsed = self.elapsed;
        let node = &mut self.nodes[index as usize];
        let group = (node.tick ^ elapsed).checked_ilog2().unwrap_or(0) / GROUP_BITS;
        let slot = (node.tick >> (group * GROUP_BITS)) as usize % SLOTS;
        let level = &mut self.levels[group as usize];
        let is_slot_empty = level.used & (1 << slot) == 0;
        node.level = group as u8;
        node.slot = slot as u8;
        node.prev = NONE;
        if is_slot_empty {
            node.next = NONE;
            level.used |= 1 << slot;
            level.bounds[slot] = node.tick;
        } else {
            node.next = level.heads[slot];
            level.bounds[slot] = level.bounds[slot].min(node.tick);
        }
        let next = node.next;
        level.heads[slot] = index;
        if next != NONE {
            self.node(next).prev = index;
        }
        self.armed += 1;
    }

    #[inline]
    fn disarm(&mut self, index: u32) {
        let node = &self.nodes[index as usize];
        let (prev, next) = (node.prev, node.next);
        let slot = usize::from(node.slot);
        let level = &mut self.levels[usize::from(node.level)];
        if prev == NONE {
            level.heads[slot] = next;
            if next == NONE {
                level.used &= !(1 << slot);
            }
        } else {
            self.node(prev).next = next;
        }
        if next != NONE {
            self.node(next).prev = prev;
        }
        self.armed -= 1;
    }

    /// Empties a slot and puts its list in front of a chain. Returns the new head.
    fn detach(&mut self, number: usize, slot: usize, chain: u32) -> u32 {
        let level = &mut self.levels[number];
        level.used &= !(1 << slot);
        let head = level.heads[slot];
        let mut last = head;
        loop {
            self.armed -= 1;
            let node = self.node(last);
            if node.next == NONE {
                node.next = chain;
                return head;
            }
            last = node.next;
        }
    }
}

impl Level {
    /// Returns the first slot in use, if its timers may be due at the tick `now`.
    fn first_until(&self, now: u64) -> Option<usize> {
        let first = self.used.trailing_zeros() as usize;
        (self.used != 0 && self.bounds[first] <= now).then_some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TICK: u64 = 1 << TICK_BITS;

    fn expire(wheel: &mut Wheel<u32>, now: u64) -> Vec<u32> {
        let mut fired = Vec::new();
        wheel.expire(now, |_, value| fired.push(value));
        fired.sort_unstable();
        fired
    }

    #[test]
    fn a_lone_far_timer_needs_one_expiry() {
        let mut wheel = Wheel::new(12_345);
        let year = 365 * 86_400_000_000_000;
        wheel.insert(year, 1);
        let next = wheel.next_deadline().unwrap();
        assert!((year..year + TICK).contains(&next));
        assert_eq!(expire(&mut wheel, next - 1), [0u32; 0]);
        assert_eq!(expire(&mut wheel, next), [1]);
        assert_eq!(wheel.next_deadline(), None);
    }

    #[test]
    fn past_deadlines_fire_at_the_next_expiry() {
        let mut wheel = Wheel::new(1_000_000);
        wheel.insert(0, 1);
        wheel.insert(1_000_000, 2);
        assert_eq!(expire(&mut wheel, 1_000_000 + TICK), [1, 2]);
    }

    #[test]
    fn the_last_deadline_is_kept_and_can_be_removed() {
        let mut wheel = Wheel::new(5);
        let (key, _) = wheel.insert(u64::MAX, 1);
        assert_eq!(expire(&mut wheel, u64::MAX - TICK), [0u32; 0]);
        assert_eq!(wheel.next_deadline(), Some(LAST_TICK << TICK_BITS));
        assert_eq!(wheel.remove(key), Some(1));
        assert_eq!(wheel.next_deadline(), None);
        // Nothing overflows when the clock stands still.
        assert_eq!(expire(&mut wheel, u64::MAX), [0u32; 0]);
        wheel.insert(u64::MAX, 2);
        assert_eq!(expire(&mut wheel, u64::MAX), [2]);
    }

    #[test]
    fn a_clock_that_goes_back_fires_nothing() {
        let mut wheel = Wheel::new(1_000_000);
        wheel.insert(1_000_001, 1);
        assert_eq!(expire(&mut wheel, 10), [0u32; 0]);
        assert_eq!(expire(&mut wheel, 1_000_000 + TICK), [1]);
    }

    #[test]
    fn a_fired_timer_keeps_its_node_until_it_is_removed() {
        let mut wheel = Wheel::new(0);
        let (first, _) = wheel.insert(1, 1);
        assert_eq!(expire(&mut wheel, 10 * TICK), [1]);
        let (second, _) = wheel.insert(20 * TICK, 2);
        assert_ne!(first, second);
        assert!(!wheel.reset(first, 30 * TICK));
        assert_eq!(wheel.remove(first), None);
        assert_eq!(wheel.insert(20 * TICK, 3).0, first);
        assert_eq!(expire(&mut wheel, 20 * TICK), [2, 3]);
    }

    #[test]
    fn drain_fires_all_timers() {
        let mut wheel = Wheel::new(0);
        let keys: Vec<_> = (0..100).map(|n| wheel.insert(1 << (n % 60), n).0).collect();
        let mut count = 0;
        wheel.drain(|_| count += 1);
        assert_eq!((count, wheel.next_deadline()), (100, None));
        assert!(keys.into_iter().all(|key| wheel.remove(key).is_none()));
    }

    fn span() -> impl Strategy<Value = u64> {
        (0_u32..64, any::<u64>()).prop_map(|(bits, random)| random >> bits)
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64),
        Remove(prop::sample::Index),
        Reset(prop::sample::Index, u64),
        Expire(u64),
        /// Expires at the wheel's next deadline.
        Next,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => span().prop_map(Step::Insert),
            2 => any::<prop::sample::Index>().prop_map(Step::Remove),
            1 => (any::<prop::sample::Index>(), span()).prop_map(|(i, s)| Step::Reset(i, s)),
            1 => span().prop_map(Step::Expire),
            3 => Just(Step::Next),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        /// Compares the wheel with a list. A timer must never fire early, and must fire at the
        /// first expiry from its tick on; `next_deadline` is never late.
        #[test]
        fn the_wheel_agrees_with_a_list(
            start in span(),
            steps in proptest::collection::vec(step(), 1..150),
        ) {
            let mut now = start;
            let mut wheel = Wheel::new(now);
            let mut list: Vec<(u64, u32, Key)> = Vec::new();
            let due = |deadline: u64| deadline.div_ceil(TICK).min(LAST_TICK) * TICK;
            for (number, step) in (0_u32..).zip(steps) {
                match step {
                    Step::Insert(after) => {
                        let deadline = now.saturating_add(after);
                        // A past deadline waits for the tick after the last expiry.
                        let fire_time = due(deadline).max(wheel.rounded(deadline));
                        list.push((fire_time, number, wheel.insert(deadline, number).0));
                    }
                    Step::Remove(index) if !list.is_empty() => {
                        let (_, number, key) = list.swap_remove(index.index(list.len()));
                        prop_assert_eq!(wheel.remove(key), Some(number));
                    }
                    Step::Reset(index, after) if !list.is_empty() => {
                        let timer = index.index(list.len());
                        let deadline = now.saturating_add(after);
                        list[timer].0 = due(deadline).max(wheel.rounded(deadline));
                        prop_assert!(wheel.reset(list[timer].2, deadline));
                    }
                    Step::Expire(_) | Step::Next => {
                        now = match step {
                            Step::Expire(after) => now.saturating_add(after),
                            _ => now.max(wheel.next_deadline().unwrap_or(now)),
                        };
                        let mut fired = Vec::new();
                        wheel.expire(now, |deadline, value| fired.push((deadline, value)));
                        fired.sort_unstable();
                        let mut expected: Vec<_> =
                            list.extract_if(.., |timer| timer.0 <= now).collect();
                        expected.sort_unstable_by_key(|timer| (timer.0, timer.1));
                        prop_assert_eq!(
                            fired,
                            expected.iter().map(|timer| (timer.0, timer.1)).collect::<Vec<_>>()
                        );
                        for (_, _, key) in expected {
                            prop_assert_eq!(wheel.remove(key), None);
                        }
                    }
                    _ => {}
                }
                let earliest = list.iter().map(|timer| timer.0).min();
                prop_assert_eq!(wheel.is_empty(), list.is_empty());
                prop_assert_eq!(wheel.next_deadline().is_some(), earliest.is_some());
                prop_assert!(wheel.next_deadline() <= earliest);
            }
        }
    }
}
