//! The ready queues of a vCPU, one for each of the 64 levels, and a bitmap of the levels that are
//! not empty. Every operation takes O(1).
//!
//! Each level has four doubly linked lists: coroutines that may move to another vCPU, pinned
//! coroutines, suspended coroutines that resume first, and other suspended coroutines. The bit of
//! the level is set iff any of the lists has an element.
//!
//! Suspended coroutines that resume first form a stack, which is served before the other lists. The
//! other lists are served as one FIFO. For this purpose, every element has a stamp, which is the
//! time of its enqueueing, made strictly increasing. Suspended coroutines count as enqueued
//! `suspended_delay` later. At most one suspended coroutine per `suspended_delay` goes before
//! *fresh* coroutines (those that are not suspended), however many are suspended.
//!
//! The lock of the vCPU guards its queues, except for [`Lengths`], which any thread may read.

use alloc::sync::Arc;
use core::ptr::{NonNull, null_mut};

use crate::base::host::Host;
use crate::base::level::{LEVELS, Level};
use crate::base::stats::add;
use crate::coroutine::Slot;
use crate::sync::Ordering::Relaxed;
use crate::sync::{Statistic, zeros};

struct List<H: Host> {
    head: *mut Slot<H>,
    tail: *mut Slot<H>,
}

impl<H: Host> List<H> {
    const EMPTY: List<H> = List {
        head: null_mut(),
        tail: null_mut(),
    };

    #[inline]
    fn is_empty(&self) -> bool {
        self.head.is_null()
    }

    /// Adds an element at the head. The element is alive and in no list.
    fn prepend(&mut self, coroutine: NonNull<Slot<H>>) {
        // SAFETY: the element is alive, by contract.
        let block = unsafe { coroutine.as_ref() };
        block.prev.store(null_mut(), Relaxed);
        block.next.store(self.head, Relaxed);
        match NonNull::new(self.head) {
            // SAFETY: elements of a list are alive while they are in it.
            Some(head) => unsafe { head.as_ref() }
                .prev
                .store(coroutine.as_ptr(), Relaxed),
            None => self.tail = coroutine.as_ptr(),
        }
        self.head = coroutine.as_ptr();
    }

    /// Returns the tail if `newest` is true, else the head.
    #[inline]
    fn end(&self, newest: bool) -> Option<NonNull<Slot<H>>> {
        NonNull::new(if newest { self.tail } else { self.head })
    }
}

/// The lists of a level, which fill one cache line.
#[repr(align(64))]
struct Lists<H: Host> {
    movable: List<H>,
    pinned: List<H>,
    /// Suspended coroutines that resume first.
    first: List<H>,
    suspended: List<H>,
}

fn stamp<H: Host>(queued: NonNull<Slot<H>>) -> u64 {
    // SAFETY: a queued coroutine is alive.
    unsafe { queued.as_ref() }.ready_at.load(Relaxed)
}

impl<H: Host> Lists<H> {
    /// Returns the next coroutine of the level. The second result is true if a suspended coroutine
    /// goes before `fresh`, the next one that is not suspended, because its delay is over; see
    /// [`ReadyQueues::pop`]. `may_turn` allows this: it is true if no suspended coroutine has
    /// recently gone before a fresh one.
    #[cold]
    fn choose(
        &self,
        fresh: Option<NonNull<Slot<H>>>,
        newest: bool,
        suspended_delay: u64,
        may_turn: bool,
    ) -> Option<(NonNull<Slot<H>>, bool)> {
        if let Some(first) = NonNull::new(self.first.head) {
            return Some((first, false));
        }
        let Some(suspended) = self.suspended.end(newest) else {
            return Some((fresh?, false));
        };
        let Some(fresh) = fresh else {
            return Some((suspended, false));
        };
        let was_overdue = stamp(suspended).saturating_add(suspended_delay) < stamp(fresh);
        if (was_overdue && (may_turn || newest)) == newest {
            Some((fresh, false))
        } else {
            Some((suspended, was_overdue))
        }
    }
}

/// Numbers of queued coroutines, for threads that do not hold the lock.
pub(crate) struct Lengths {
    levels: [Statistic; LEVELS],
    suspended: Statistic,
    /// Numbers of *expired* coroutines, which were suspended after they had used their quantum.
    expired: [Statistic; LEVELS],
}

impl Lengths {
    pub(crate) fn new() -> Arc<Lengths> {
        Arc::new(Lengths {
            levels: zeros(),
            suspended: Statistic::new(0),
            expired: zeros(),
        })
    }

    /// Returns the number of coroutines that are queued at a level, suspended ones included.
    pub(crate) fn len(&self, level: Level) -> usize {
        self.levels[level.index()].load(Relaxed) as usize
    }

    #[inline]
    pub(crate) fn all_expired(&self, level: Level) -> bool {
        let expired = self.expired[level.index()].load(Relaxed);
        expired != 0 && expired == self.levels[level.index()].load(Relaxed)
    }

    pub(crate) fn suspended(&self) -> usize {
        self.suspended.load(Relaxed) as usize
    }
}

/// The ready queues of a vCPU. Fields that most operations use lie close together.
#[repr(C)]
pub(crate) struct ReadyQueues<H: Host> {
    /// Levels that have an element in any list.
    ready: u64,
    /// Levels that have an element in the list `movable`.
    movable: u64,
    /// Last stamp given by [`ReadyQueues::push`].
    stamp: u64,
    /// Stamp at which a suspended coroutine was last served before a fresh one.
    turn_stamp: u64,
    lengths: Arc<Lengths>,
    /// Number of coroutines of each level that may not move.
    fixed: [u32; LEVELS],
    levels: [Lists<H>; LEVELS],
}

impl<H: Host> ReadyQueues<H> {
    pub(crate) fn new(lengths: Arc<Lengths>) -> ReadyQueues<H> {
        ReadyQueues {
            ready: 0,
            movable: 0,
            levels: [const {
                Lists {
                    movable: List::EMPTY,
                    pinned: List::EMPTY,
                    first: List::EMPTY,
                    suspended: List::EMPTY,
                }
            }; LEVELS],
            stamp: 0,
            turn_stamp: 0,
            lengths,
            fixed: [0; LEVELS],
        }
    }

    pub(crate) fn ready(&self) -> u64 {
        self.ready
    }

    pub(crate) fn movable(&self) -> u64 {
        self.movable
    }

    pub(crate) fn movable_len(&self, level: Level) -> usize {
        self.lengths.len(level) - self.fixed[level.index()] as usize
    }

    pub(crate) fn has_fresh(&self, level: Level) -> bool {
        let lists = &self.levels[level.index()];
        !(lists.movable.is_empty() && lists.pinned.is_empty())
    }

    /// Returns the list that a coroutine joins or leaves, and true if it joins at the head. Updates
    /// lengths and, for a coroutine that joins, bits. The state and traits of a coroutine do not
    /// change while it is queued.
    #[inline]
    fn list<const JOINS: bool>(&mut self, level: Level, block: &Slot<H>) -> (&mut List<H>, bool) {
        let increment = if JOINS { 1 } else { u64::MAX };
        add(&self.lengths.levels[level.index()], increment);
        if JOINS {
            self.ready |= level.bit();
        }
        let lists = &mut self.levels[level.index()];
        if block.may_move() {
            if JOINS {
                self.movable |= level.bit();
            }
            return (&mut lists.movable, false);
        }
        let fixed = &mut self.fixed[level.index()];
        *fixed = fixed.wrapping_add(increment as u32);
        if !block.is_suspended() {
            return (&mut lists.pinned, false);
        }
        add(&self.lengths.suspended, increment);
        if block.goes_first() {
            (&mut lists.first, true)
        } else {
            add(&self.lengths.expired[level.index()], increment);
            (&mut lists.suspended, false)
        }
    }

    /// Clears the bits of a level whose lists are empty. Called after one of the lists has become
    /// empty.
    fn clear_bits(&mut self, level: Level) {
        let lists = &self.levels[level.index()];
        if lists.movable.is_empty() {
            self.movable &= !level.bit();
            if lists.pinned.is_empty() && lists.first.is_empty() && lists.suspended.is_empty() {
                self.ready &= !level.bit();
            }
        }
    }

    /// Puts a coroutine at the tail of its level, or at the head if it resumes first. Its stamp is
    /// `now`, or the last stamp plus one if that is later. Returns the level.
    ///
    /// # Safety
    /// The caller owns the coroutine (`OWNED`), which is in no queue, and holds
    /// the lock of these queues.
    #[inline]
    pub(crate) unsafe fn push(&mut self, coroutine: NonNull<Slot<H>>, now: u64) -> Level {
        // SAFETY: owned by the caller, hence alive.
        let block = unsafe { coroutine.as_ref() };
        self.stamp = now.max(self.stamp + 1);
        block.ready_at.store(self.stamp, Relaxed);
        // SAFETY: the contract is the caller's.
        unsafe { self.link(coroutine) }
    }

    /// Puts a coroutine that is not suspended before the others of its level that are not
    /// suspended. Its stamp is their oldest stamp minus one.
    ///
    /// # Safety
    /// Same as [`ReadyQueues::push`].
    #[cold]
    pub(crate) unsafe fn push_in_place(&mut self, coroutine: NonNull<Slot<H>>, now: u64) {
        // SAFETY: owned by the caller, hence alive.
        let block = unsafe { coroutine.as_ref() };
        let level = block.level();
        let lists = &self.levels[level.index()];
        let heads = [lists.movable.head, lists.pinned.head];
        let oldest = heads.into_iter().filter_map(NonNull::new).map(stamp).min();
        let stamp = match oldest {
            Some(oldest) => oldest.saturating_sub(1),
            None => {
                // Coroutines that arrive at the same tick queue behind this one.
                self.stamp = now.max(self.stamp + 1);
                self.stamp
            }
        };
        block.ready_at.store(stamp, Relaxed);
        let (list, _) = self.list::<true>(level, block);
        block.queued.store(level.get(), Relaxed);
        list.prepend(coroutine);
    }

    /// Puts a coroutine at the head of its list if it resumes first, else at the tail. Its stamp
    /// stays.
    ///
    /// # Safety
    /// Same as [`ReadyQueues::push`].
    #[inline]
    unsafe fn link(&mut self, coroutine: NonNull<Slot<H>>) -> Level {
        // SAFETY: owned by the caller, hence alive.
        let block = unsafe { coroutine.as_ref() };
        let level = block.level();
        let (list, at_head) = self.list::<true>(level, block);
        block.queued.store(level.get(), Relaxed);
        if at_head {
            list.prepend(coroutine);
            return level;
        }
        block.next.store(null_mut(), Relaxed);
        block.prev.store(list.tail, Relaxed);
        match NonNull::new(list.tail) {
            // SAFETY: elements of a list are alive while they are in it.
            Some(tail) => unsafe { tail.as_ref() }
                .next
                .store(coroutine.as_ptr(), Relaxed),
            None => list.head = coroutine.as_ptr(),
        }
        list.tail = coroutine.as_ptr();
        level
    }

    /// Takes a coroutine out of its queue.
    ///
    /// # Safety
    /// The coroutine is in these queues, whose lock the caller holds.
    #[inline]
    pub(crate) unsafe fn unlink(&mut self, coroutine: NonNull<Slot<H>>) {
        // SAFETY: queued, hence alive.
        let block = unsafe { coroutine.as_ref() };
        let level = Level::from_stored(block.queued.load(Relaxed));
        let next = block.next.load(Relaxed);
        let prev = block.prev.load(Relaxed);
        let (list, _) = self.list::<false>(level, block);
        match NonNull::new(prev) {
            // SAFETY: neighbours in a list are alive.
            Some(prev) => unsafe { prev.as_ref() }.next.store(next, Relaxed),
            None => list.head = next,
        }
        match NonNull::new(next) {
            // SAFETY: neighbours in a list are alive.
            Some(next) => unsafe { next.as_ref() }.prev.store(prev, Relaxed),
            None => list.tail = prev,
        }
        block.queued.store(Slot::<H>::NOT_QUEUED, Relaxed);
        if list.is_empty() {
            self.clear_bits(level);
        }
    }

    /// Moves a queued coroutine to the tail of its present level.
    ///
    /// # Safety
    /// Same as [`ReadyQueues::unlink`].
    pub(crate) unsafe fn relink(&mut self, coroutine: NonNull<Slot<H>>) {
        // SAFETY: the contract is the caller's; after `unlink` the coroutine is in no queue.
        unsafe {
            self.unlink(coroutine);
            // The coroutine gets a new place in the order. Its stamp increases no further than this
            // requires, since the time that it has waited is counted from the stamp.
            let waited_since = coroutine.as_ref().ready_at.load(Relaxed);
            self.stamp = waited_since.max(self.stamp + 1);
            coroutine.as_ref().ready_at.store(self.stamp, Relaxed);
            let _ = self.link(coroutine);
        }
    }

    /// Takes the coroutine that resumes first in a level, else the oldest coroutine, or with
    /// `newest` the newest. Suspended coroutines count as enqueued `suspended_delay` ticks later,
    /// and one suspended coroutine per `suspended_delay` goes before fresh ones, so that fresh
    /// coroutines run however many are suspended.
    pub(crate) fn pop(
        &mut self,
        level: Level,
        newest: bool,
        suspended_delay: u64,
    ) -> Option<NonNull<Slot<H>>> {
        let lists = &self.levels[level.index()];
        let mut chosen = lists.movable.end(newest);
        if let Some(pinned) = lists.pinned.end(newest)
            && chosen.is_none_or(|other| (stamp(pinned) < stamp(other)) != newest)
        {
            chosen = Some(pinned);
        }
        if !(lists.suspended.is_empty() && lists.first.is_empty()) {
            let may_turn = self.stamp >= self.turn_stamp.saturating_add(suspended_delay);
            let (next, was_overdue) = lists.choose(chosen, newest, suspended_delay, may_turn)?;
            if was_overdue {
                self.turn_stamp = self.stamp;
            }
            chosen = Some(next);
        }
        // SAFETY: the coroutine is the head or tail of one of these lists.
        unsafe { self.unlink(chosen?) };
        chosen
    }

    /// Takes the oldest coroutine of a level; `None` if the level is empty or has a suspended
    /// coroutine, where [`ReadyQueues::pop`] decides.
    #[inline]
    pub(crate) fn pop_oldest(&mut self, level: Level) -> Option<NonNull<Slot<H>>> {
        let lists = &mut self.levels[level.index()];
        if !(lists.suspended.is_empty() && lists.first.is_empty()) {
            return None;
        }
        let mut oldest = NonNull::new(lists.movable.head);
        let mut list = &mut lists.movable;
        if let Some(pinned) = NonNull::new(lists.pinned.head)
            && oldest.is_none_or(|movable| stamp(pinned) < stamp(movable))
        {
            oldest = Some(pinned);
            list = &mut lists.pinned;
            self.fixed[level.index()] -= 1;
        }
        // SAFETY: elements of a list are alive while they are in it.
        let block = unsafe { oldest?.as_ref() };
        add(&self.lengths.levels[level.index()], u64::MAX);
        block.queued.store(Slot::<H>::NOT_QUEUED, Relaxed);
        list.head = block.next.load(Relaxed);
        match NonNull::new(list.head) {
            // SAFETY: elements of a list are alive while they are in it.
            Some(next) => unsafe { next.as_ref() }.prev.store(null_mut(), Relaxed),
            None => {
                list.tail = null_mut();
                self.clear_bits(level);
            }
        }
        oldest
    }

    pub(crate) fn pop_movable(&mut self, level: Level) -> Option<NonNull<Slot<H>>> {
        let head = NonNull::new(self.levels[level.index()].movable.head)?;
        // SAFETY: the coroutine is the head of one of these lists.
        unsafe { self.unlink(head) };
        Some(head)
    }

    /// Takes the oldest pinned coroutine of the most urgent level that has one.
    pub(crate) fn pop_pinned(&mut self) -> Option<NonNull<Slot<H>>> {
        let head = self
            .levels
            .iter()
            .find_map(|lists| NonNull::new(lists.pinned.head))?;
        // SAFETY: the coroutine is the head of one of these lists.
        unsafe { self.unlink(head) };
        Some(head)
    }
}
