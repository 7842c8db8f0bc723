//! The state word of a coroutine: the only file that knows its bits.
//!
//! One atomic word per slot of the table holds the generation of the slot, the
//! number of references to the coroutine in it, and eight flags. Every
//! transition is one atomic step and returns a `#[must_use]` enum that tells the
//! caller what it has become responsible for.
//!
//! ```text
//!            1 init                 3 begin_poll
//!  (free) ─────────► Created/Ready ─────────────► Running ──6 exit──► Exited
//!                        ▲   ▲                     │   │                 │
//!                        │   └──── 5 end_poll: ────┘   │ 4 end_poll:     │ 7 last
//!                        │           Again             ▼   Blocked       ▼ release
//!                        └────────── 2 wake: Enqueue ─ Blocked         (free)
//! ```
//!
//! `OWNED` is the heart: it is set while something is bound to poll the
//! coroutine (it is in a ready queue or an inbox, or it runs, or it is
//! suspended). The thread that turns it on must enqueue; the one that holds it alone may
//! touch the future. Hence one poller at a time, and one queue entry at a time.
//!
//! Why no wake is lost: a wake finds `OWNED` clear and enqueues (2), or finds it
//! set and sets `NOTIFIED` in the same atomic step. `NOTIFIED` is cleared only
//! by `begin_poll` (3), an acquire that precedes the poll, so a wake absorbed
//! before it is seen by that poll; and `end_poll` gives `OWNED` back (4) only in
//! one step with seeing `NOTIFIED` clear, so a wake during the poll makes it
//! answer `Again` (5). A wake never skips its write because the bit is set
//! already: the write is what orders the waker's data before the next poll.
//!
//! A poll that wakes its own coroutine needs none of this: its thread marks the
//! control block (`Slot::wake_itself`), and looks at the mark before `end_poll`.
//!
//! Why none is doubled: between two polls at most one `Enqueue` is answered.
//!
//! References: one for the coroutine itself until it has exited, one for the
//! join handle, one per waker. The slot is free when they are gone (7).
//!
//! The coroutine's own reference goes with the exit in one step (6), but for two cases in which it is still needed to look at the control
//! block: a waiter that is a box, or an output that its handle has just left behind. A waiter that is an id is read by the exiting
//! thread, which says so there (`join.rs`); the handle, which has seen the exit, then gives both references back.

use crate::sync::{AtomicU64, Ordering};

const OWNED: u64 = 1 << 0;
const NOTIFIED: u64 = 1 << 1;
const EXITED: u64 = 1 << 2;
const CANCELLED: u64 = 1 << 3;
const HANDLE: u64 = 1 << 4;
const WAITER: u64 = 1 << 5;
const ORPHAN: u64 = 1 << 6;
/// With `WAITER`: it is an id.
const BY_ID: u64 = 1 << 7;

const REF: u64 = 1 << 8;
const REFS: u64 = 0xff_ffff << 8;
/// Half of what fits: far above any use, far enough from overflow.
const REFS_LIMIT: u64 = 1 << 31;
const GENERATION: u32 = 32;

/// What a wake asks of its caller.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
#[must_use]
pub(crate) enum Wake {
    /// The caller now owns the coroutine and must put it into a queue.
    Enqueue,
    /// It will be polled anyway, after this wake.
    Absorbed,
    /// It has exited.
    Exited,
}

/// What a poller that took the coroutine from its queue must do.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
#[must_use]
pub(crate) enum Begin {
    /// Poll it.
    Poll,
    /// Drop its future and exit it.
    Cancel,
}

/// What is due after a poll that returned `Pending`.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
#[must_use]
pub(crate) enum End {
    /// It is blocked and no longer the caller's.
    Blocked,
    /// It was woken or cancelled meanwhile: enqueue it again.
    Again,
}

/// What wants to know of an exit.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
#[must_use]
pub(crate) enum Exit {
    /// The coroutine's own reference is given back, and the control block is the caller's no more: others remain.
    Alive,
    /// The same; it was the last: [`Release::Free`].
    Free,
    /// The same: [`Release::FreeOrphan`].
    FreeOrphan,
    /// The handle has just gone: the caller drops the output, and gives the coroutine's own reference back.
    Detached,
    /// The handle will fetch the output, and its waker is in place: the caller owns it, wakes it, and gives the coroutine's own reference back.
    Waiter,
    /// The same with an id. The coroutine's own reference is the handle's, which waits until the caller has read the id.
    WaiterById,
}

/// What is due after a reference was given back.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
#[must_use]
pub(crate) enum Release {
    /// Others remain.
    Alive,
    /// It was the last: the caller frees the memory, then the slot.
    Free,
    /// So it was, and the domain is gone but for this slot.
    FreeOrphan,
}

/// What the join handle may do with its waker or the output.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
#[must_use]
pub(crate) enum Join {
    /// The transition took place.
    Done,
    /// The coroutine has exited: the output is there.
    Exited,
}

/// The word itself.
pub(crate) struct StateWord(AtomicU64);

impl StateWord {
    /// The word of a slot that was never used. But for models it is zeroed memory.
    #[cfg(loom)]
    pub(crate) fn free() -> StateWord {
        StateWord(AtomicU64::new(0))
    }

    fn update(&self, mut f: impl FnMut(u64) -> Option<u64>) -> Result<u64, u64> {
        self.0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, &mut f)
    }

    /// The generation of the slot, as it is now.
    pub(crate) fn generation(&self) -> u32 {
        (self.0.load(Ordering::Acquire) >> GENERATION) as u32
    }

    /// 1: the caller, which took the slot from the free list, makes it the home
    /// of a new coroutine. `owned` if the caller enqueues it at once.
    pub(crate) fn init(&self, handle: bool, owned: bool) -> u32 {
        let generation = self.0.load(Ordering::Relaxed) >> GENERATION;
        let refs_and_handle = if handle { (2 * REF) | HANDLE } else { REF };
        let owned = if owned { OWNED } else { 0 };
        self.0.store(
            (generation << GENERATION) | refs_and_handle | owned,
            Ordering::Release,
        );
        generation as u32
    }

    /// 2: a wake through a reference.
    #[inline]
    pub(crate) fn wake(&self) -> Wake {
        self.wake_giving(0)
    }

    /// 2: a wake through a reference that is given back with it, unless the answer
    /// is [`Wake::Exited`]. It was not the last: until it has exited, the coroutine
    /// has one of its own.
    #[inline]
    pub(crate) fn wake_and_release(&self) -> Wake {
        self.wake_giving(REF)
    }

    #[inline]
    fn wake_giving(&self, given: u64) -> Wake {
        let mut seen = self.0.load(Ordering::Relaxed);
        loop {
            if seen & EXITED != 0 {
                return Wake::Exited;
            }
            debug_assert!(seen & REFS > given);
            let (next, wake) = if seen & OWNED != 0 {
                (seen | NOTIFIED, Wake::Absorbed)
            } else {
                (seen | OWNED, Wake::Enqueue)
            };
            match self.0.compare_exchange_weak(
                seen,
                next - given,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => return wake,
                Err(now) => seen = now,
            }
        }
    }

    /// 2: a wake or, with `cancel`, a cancellation by a caller that has only an
    /// id. `Wake::Exited` also for a slot that is free or reused.
    pub(crate) fn wake_by_id(&self, generation: u32, cancel: bool) -> Wake {
        let mut wake = Wake::Exited;
        let cancel = if cancel { CANCELLED } else { 0 };
        let _ = self.update(|word| {
            if !lives(word, generation) {
                wake = Wake::Exited;
                None
            } else if word & OWNED != 0 {
                wake = Wake::Absorbed;
                Some(word | NOTIFIED | cancel)
            } else {
                wake = Wake::Enqueue;
                Some(word | OWNED | cancel)
            }
        });
        wake
    }

    /// Has it been cancelled?
    pub(crate) fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire) & CANCELLED != 0
    }

    /// 3: by the thread that took the coroutine from its queue.
    #[inline]
    pub(crate) fn begin_poll(&self) -> Begin {
        let mut word = self.0.load(Ordering::Acquire);
        debug_assert!(word & OWNED != 0 && word & EXITED == 0);
        if word & NOTIFIED != 0 {
            word = self.0.fetch_and(!NOTIFIED, Ordering::AcqRel);
        }
        if word & CANCELLED != 0 {
            Begin::Cancel
        } else {
            Begin::Poll
        }
    }

    /// 4, 5: after a poll that returned `Pending`.
    #[inline]
    pub(crate) fn end_poll(&self) -> End {
        let mut seen = self.0.load(Ordering::Relaxed);
        loop {
            if seen & (NOTIFIED | CANCELLED) != 0 {
                return End::Again;
            }
            match self.0.compare_exchange_weak(
                seen,
                seen & !OWNED,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => return End::Blocked,
                Err(now) => seen = now,
            }
        }
    }

    /// Will [`StateWord::end_poll`] answer [`End::Again`]? Only the poller asks; true
    /// stays true.
    pub(crate) fn will_go_on(&self) -> bool {
        self.0.load(Ordering::Relaxed) & (NOTIFIED | CANCELLED) != 0
    }

    /// 6: the future is gone, and the output in place or, if there is no handle, `dropped`.
    #[inline]
    pub(crate) fn exit(&self, dropped: bool) -> Exit {
        let mut seen = self.0.load(Ordering::Relaxed);
        loop {
            debug_assert!(seen & EXITED == 0 && seen & OWNED != 0 && seen & REFS != 0);
            let (given, exit) = if seen & WAITER != 0 {
                let by_id = seen & BY_ID != 0;
                (
                    0,
                    if by_id {
                        Exit::WaiterById
                    } else {
                        Exit::Waiter
                    },
                )
            } else if seen & HANDLE != 0 {
                // The handle has a reference.
                (REF, Exit::Alive)
            } else if dropped {
                let exit = match released(seen, REF) {
                    Release::Alive => Exit::Alive,
                    Release::Free => Exit::Free,
                    Release::FreeOrphan => Exit::FreeOrphan,
                };
                (REF, exit)
            } else {
                (0, Exit::Detached)
            };
            match self.0.compare_exchange_weak(
                seen,
                (seen | EXITED) - given,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => return exit,
                Err(now) => seen = now,
            }
        }
    }

    /// One more reference, by a holder of one.
    ///
    /// # Panics
    /// With over eight million references: wakers are being leaked.
    pub(crate) fn retain(&self) {
        let word = self.0.fetch_add(REF, Ordering::Relaxed);
        if word & REFS >= REFS_LIMIT {
            self.0.fetch_sub(REF, Ordering::Relaxed);
            panic!("over eight million wakers of one coroutine: they are being leaked");
        }
    }

    /// One reference for a caller that has only an id.
    pub(crate) fn retain_by_id(&self, generation: u32) -> bool {
        self.update(|word| lives(word, generation).then_some(word + REF))
            .is_ok()
    }

    /// 7: gives so many references back.
    #[inline]
    pub(crate) fn release(&self, count: u32) -> Release {
        let given = u64::from(count) * REF;
        let word = self.0.fetch_sub(given, Ordering::AcqRel);
        debug_assert!(word & REFS >= given);
        released(word, given)
    }

    /// 7: the handle, which has seen the exit, gives back what it has.
    #[inline]
    pub(crate) fn release_of_handle(&self) -> Release {
        let given = of_handle(self.0.load(Ordering::Relaxed));
        let word = self.0.fetch_sub(given, Ordering::AcqRel);
        debug_assert!(word & REFS >= given && word & EXITED != 0);
        released(word, given)
    }

    /// Are the references of the handle, which has seen the exit, all that there are? Then the word is the caller's alone, and nothing need be given
    /// back: an id makes no new ones.
    ///
    /// Only while the domain has a handle: its end marks what is still referenced.
    #[inline]
    pub(crate) fn is_of_handle_alone(&self) -> bool {
        // Acquire: what was done with the others.
        let word = self.0.load(Ordering::Acquire);
        debug_assert!(word & REFS != 0 && word & EXITED != 0);
        word & REFS == of_handle(word)
    }

    /// After 7: the memory is freed, the slot gets its next generation. False: it has
    /// none left, and must not be used again, for an old id would name its tenant.
    #[must_use]
    pub(crate) fn retire(&self) -> bool {
        let generation = (self.0.load(Ordering::Relaxed) >> GENERATION) as u32;
        let next = generation.checked_add(1);
        self.0.store(
            u64::from(next.unwrap_or(generation)) << GENERATION,
            Ordering::Release,
        );
        next.is_some()
    }

    /// A slot of this generation, to be free soon: what takes minutes in earnest.
    #[cfg(test)]
    pub(crate) fn age(&self, generation: u32) {
        self.0.fetch_and(u64::from(u32::MAX), Ordering::Relaxed);
        self.0
            .fetch_or(u64::from(generation) << GENERATION, Ordering::Relaxed);
    }

    /// The handle has put a waker in place, or an id, and publishes it.
    ///
    /// Sequentially consistent: afterwards the handle reads the level of the coroutine, which
    /// `reprio` sets before it asks [`has_waiter_by_id_now`](Self::has_waiter_by_id_now).
    pub(crate) fn set_waiter(&self, by_id: bool) -> Join {
        let waiter = if by_id { WAITER | BY_ID } else { WAITER };
        let set = self
            .0
            .fetch_update(Ordering::SeqCst, Ordering::Acquire, |word| {
                (word & EXITED == 0).then_some(word | waiter)
            });
        match set {
            Ok(_) => Join::Done,
            Err(_) => Join::Exited,
        }
    }

    /// The handle takes its waker back, if it had published one.
    pub(crate) fn clear_waiter(&self) -> Join {
        match self.update(|word| (word & EXITED == 0).then_some(word & !(WAITER | BY_ID))) {
            Ok(_) => Join::Done,
            Err(_) => Join::Exited,
        }
    }

    /// The handle goes away. After `Join::Done` its reference is still to be
    /// released; after `Join::Exited` the output is to be dropped as well.
    pub(crate) fn drop_handle(&self) -> Join {
        match self.update(|word| (word & EXITED == 0).then_some(word & !HANDLE)) {
            Ok(_) => Join::Done,
            Err(_) => Join::Exited,
        }
    }

    /// The handle goes away, and with `Join::Done` its reference, which was not the
    /// last: until it has exited, the coroutine has one of its own. After
    /// `Join::Exited` output and reference are still there.
    pub(crate) fn drop_handle_and_release(&self) -> Join {
        match self.update(|word| (word & EXITED == 0).then_some((word & !HANDLE) - REF)) {
            Ok(_) => Join::Done,
            Err(_) => Join::Exited,
        }
    }

    /// Is what the handle has published an id? Only the handle asks.
    pub(crate) fn has_waiter_by_id(&self) -> bool {
        self.0.load(Ordering::Relaxed) & BY_ID != 0
    }

    /// The same, asked by a thread that has just changed the coroutine's level.
    pub(crate) fn has_waiter_by_id_now(&self) -> bool {
        self.0.load(Ordering::SeqCst) & (BY_ID | EXITED) == BY_ID
    }

    /// Has the handle published a waker or an id? Only the handle asks.
    pub(crate) fn has_waiter(&self) -> bool {
        self.0.load(Ordering::Relaxed) & WAITER != 0
    }

    /// Marks a slot that is still referenced as the last remains of its domain.
    pub(crate) fn mark_orphan(&self) -> bool {
        self.update(|word| (word & REFS != 0).then_some(word | ORPHAN))
            .is_ok()
    }

    /// Is its handle gone? Once true, always true.
    pub(crate) fn is_detached(&self) -> bool {
        self.0.load(Ordering::Acquire) & HANDLE == 0
    }

    /// Is it queued, being polled, or suspended?
    pub(crate) fn is_owned(&self) -> bool {
        self.0.load(Ordering::Relaxed) & (OWNED | EXITED) == OWNED
    }

    pub(crate) fn is_exited(&self) -> bool {
        self.0.load(Ordering::Acquire) & EXITED != 0
    }

    /// Does the slot have a living tenant, of whatever generation?
    pub(crate) fn tenant(&self) -> Option<u32> {
        let word = self.0.load(Ordering::Acquire);
        let generation = (word >> GENERATION) as u32;
        lives(word, generation).then_some(generation)
    }
}

/// The references of a handle that has seen the exit: its own, and the coroutine's where the waiter was an id.
#[inline]
fn of_handle(word: u64) -> u64 {
    const { assert!(BY_ID << 1 == REF) }
    REF + ((word & BY_ID) << 1)
}

/// What is due after references were given back; `word` is that of before.
fn released(word: u64, given: u64) -> Release {
    if word & REFS != given {
        Release::Alive
    } else if word & ORPHAN == 0 {
        Release::Free
    } else {
        Release::FreeOrphan
    }
}

/// A living coroutine of this generation: referenced, not exited.
fn lives(word: u64, generation: u32) -> bool {
    (word >> GENERATION) as u32 == generation && word & REFS != 0 && word & EXITED == 0
}
