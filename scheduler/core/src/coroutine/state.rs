//! The state machine of a coroutine, in one atomic word. Only this file knows the bits of the word.
//!
//! Each slot of the table has such a word. It holds the generation of the slot, the number of
//! references to its coroutine, and eight flags. Every transition is one atomic step and returns a
//! `#[must_use]` enum that names what the caller has to do next.
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
//! `OWNED` is the central flag: it is set while the coroutine will be polled (it is in a ready
//! queue or an inbox, running, or suspended). The thread that sets `OWNED` must enqueue the
//! coroutine, and the thread that takes the coroutine from the queue may touch the future. Hence a
//! coroutine has at most one poller and one queue entry at a time.
//!
//! No wake is lost. A wake that finds `OWNED` clear enqueues the coroutine (2). A wake that finds
//! `OWNED` set also sets `NOTIFIED`, in the same atomic step. `NOTIFIED` is cleared only by
//! `begin_poll` (3), an acquire that precedes the poll, so this poll sees what was written before
//! an absorbed wake. `end_poll` tests `NOTIFIED` and clears `OWNED` in one step (4), so a wake
//! during the poll makes `end_poll` return `Again` (5). A wake never skips its write when
//! `NOTIFIED` is set already, because the write orders the data of the waker before the next poll.
//!
//! A poll that wakes its own coroutine does not change the word. Instead, its thread marks the
//! control block (`Slot::wake_itself`), and tests the mark before `end_poll`.
//!
//! No wake is doubled: between two polls at most one wake returns `Enqueue`.
//!
//! References: the coroutine itself has one until it has exited; the join handle has one, and so
//! has each waker and each cancel handle. The slot is free when all references are released (7).
//!
//! When the coroutine exits, its own reference is released in the same step (6), except in three
//! cases. In two of them the exiting thread still needs the control block: to wake a boxed waker,
//! or to drop the output after a concurrent drop of the handle. In the third case the waiter is an
//! id, and the reference passes to the handle. The exiting thread reads the id and then clears the
//! field (`join.rs`). The handle, which has seen the exit, releases both references when it has
//! seen the clear field.

use crate::sync::{AtomicU64, Ordering};

const OWNED: u64 = 1 << 0;
const NOTIFIED: u64 = 1 << 1;
const EXITED: u64 = 1 << 2;
const CANCELLED: u64 = 1 << 3;
const HANDLE: u64 = 1 << 4;
const WAITER: u64 = 1 << 5;
/// Set if the slot is still referenced when the last handle to the domain is dropped. The slot then
/// holds a count of the shared state of the domain, which keeps the table alive.
const ORPHAN: u64 = 1 << 6;
/// Set with `WAITER` if the waiter is an id.
const BY_ID: u64 = 1 << 7;

const REF: u64 = 1 << 8;
const REFS: u64 = 0xff_ffff << 8;
/// Number of references, shifted like the field, at which `retain` panics: half of the field, far
/// above any use and far from overflow.
const REFS_LIMIT: u64 = 1 << 31;
const GENERATION: u32 = 32;

#[derive(Debug, PartialEq, Eq, Clone, Copy)]
#[must_use]
pub(crate) enum TransitionToReady {
    /// The caller now owns the coroutine and must put it into a queue.
    Enqueue,
    /// The coroutine will be polled anyway, after this wake.
    Absorbed,
    /// The coroutine has exited.
    Exited,
}

/// Duty of a poller that took the coroutine from its queue.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
#[must_use]
pub(crate) enum TransitionToRunning {
    Poll,
    Cancel,
}

/// Duty of a poller after a poll that returned `Pending`.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
#[must_use]
pub(crate) enum TransitionToBlocked {
    /// No duty: the coroutine is blocked and no longer the caller's.
    Blocked,
    /// Enqueue the coroutine again, because it was woken or cancelled meanwhile.
    Again,
}

/// Duty of the thread that exits a coroutine.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
#[must_use]
pub(crate) enum TransitionToExited {
    /// No duty: the coroutine's own reference is released, other references remain, and the control
    /// block is no longer the caller's.
    Alive,
    /// The released reference was the last: [`TransitionToFree::Free`].
    Free,
    /// The released reference was the last: [`TransitionToFree::FreeOrphan`].
    FreeOrphan,
    /// Drop the output, and release the coroutine's own reference, because the handle has just
    /// gone.
    Detached,
    /// Wake the waker of the handle, which the caller owns now, and release the coroutine's own
    /// reference. The handle will fetch the output.
    Waiter,
    /// Wake the coroutine whose id is the waiter. The coroutine's own reference passes to the
    /// handle, which waits until the caller has read the id.
    WaiterById,
}

/// Duty of the thread that releases a reference.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
#[must_use]
pub(crate) enum TransitionToFree {
    /// No duty: other references remain.
    Alive,
    /// Give the slot back, because the reference was the last. The memory of the future is freed
    /// already.
    Free,
    /// Release the slot's count of the domain's shared state, because the reference was the last
    /// and the domain has no handle any more. The slot is not given back.
    FreeOrphan,
}

#[derive(Debug, PartialEq, Eq, Clone, Copy)]
#[must_use]
pub(crate) enum HandleTransition {
    /// The transition took place.
    Done,
    /// The coroutine has exited, and the output is stored.
    Exited,
}

pub(crate) struct StateWord(AtomicU64);

impl StateWord {
    /// For a slot that was never used. Outside of models, such a word is zeroed memory.
    #[cfg(loom)]
    pub(crate) fn free() -> StateWord {
        StateWord(AtomicU64::new(0))
    }

    fn update(&self, mut f: impl FnMut(u64) -> Option<u64>) -> Result<u64, u64> {
        self.0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, &mut f)
    }

    pub(crate) fn generation(&self) -> u32 {
        (self.0.load(Ordering::Acquire) >> GENERATION) as u32
    }

    /// 1: initializes the word for a new coroutine in a slot that the caller took from the free
    /// list. With `owned` the caller enqueues the coroutine at once. Returns the generation.
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

    /// 2: wakes through a reference.
    #[inline]
    pub(crate) fn wake(&self) -> TransitionToReady {
        self.wake_releasing(0)
    }

    /// 2: wakes through a reference and releases it, unless the coroutine has exited. The reference
    /// was not the last, because the coroutine has its own until it has exited.
    #[inline]
    pub(crate) fn wake_and_release(&self) -> TransitionToReady {
        self.wake_releasing(REF)
    }

    #[inline]
    fn wake_releasing(&self, refs: u64) -> TransitionToReady {
        let mut seen = self.0.load(Ordering::Relaxed);
        loop {
            if seen & EXITED != 0 {
                return TransitionToReady::Exited;
            }
            debug_assert!(seen & REFS > refs);
            let (next, wake) = if seen & OWNED != 0 {
                (seen | NOTIFIED, TransitionToReady::Absorbed)
            } else {
                (seen | OWNED, TransitionToReady::Enqueue)
            };
            match self.0.compare_exchange_weak(
                seen,
                next - refs,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => return wake,
                Err(now) => seen = now,
            }
        }
    }

    /// 2: wakes, or cancels if `cancel` is true, for a caller that has only an id. A slot that is
    /// free or reused counts as exited.
    pub(crate) fn wake_by_id(&self, generation: u32, cancel: bool) -> TransitionToReady {
        let mut wake = TransitionToReady::Exited;
        let cancel = if cancel { CANCELLED } else { 0 };
        let _ = self.update(|word| {
            if !is_live(word, generation) {
                wake = TransitionToReady::Exited;
                None
            } else if word & OWNED != 0 {
                wake = TransitionToReady::Absorbed;
                Some(word | NOTIFIED | cancel)
            } else {
                wake = TransitionToReady::Enqueue;
                Some(word | OWNED | cancel)
            }
        });
        wake
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire) & CANCELLED != 0
    }

    /// 3: begins a poll. Called by the thread that took the coroutine from its queue.
    #[inline]
    pub(crate) fn begin_poll(&self) -> TransitionToRunning {
        let mut word = self.0.load(Ordering::Acquire);
        debug_assert!(word & OWNED != 0 && word & EXITED == 0);
        if word & NOTIFIED != 0 {
            word = self.0.fetch_and(!NOTIFIED, Ordering::AcqRel);
        }
        if word & CANCELLED != 0 {
            TransitionToRunning::Cancel
        } else {
            TransitionToRunning::Poll
        }
    }

    /// 4, 5: ends a poll that returned `Pending`.
    #[inline]
    pub(crate) fn end_poll(&self) -> TransitionToBlocked {
        let mut seen = self.0.load(Ordering::Relaxed);
        loop {
            if seen & (NOTIFIED | CANCELLED) != 0 {
                return TransitionToBlocked::Again;
            }
            match self.0.compare_exchange_weak(
                seen,
                seen & !OWNED,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => return TransitionToBlocked::Blocked,
                Err(now) => seen = now,
            }
        }
    }

    /// Returns true if [`StateWord::end_poll`] will return `Again`. Called by the poller; true
    /// stays true.
    pub(crate) fn will_run_again(&self) -> bool {
        self.0.load(Ordering::Relaxed) & (NOTIFIED | CANCELLED) != 0
    }

    /// 6: exits. The future has been dropped. The output is stored or, if `dropped`, has been
    /// dropped because there is no handle.
    #[inline]
    pub(crate) fn exit(&self, dropped: bool) -> TransitionToExited {
        let mut seen = self.0.load(Ordering::Relaxed);
        loop {
            debug_assert!(seen & EXITED == 0 && seen & OWNED != 0 && seen & REFS != 0);
            let (refs, exit) = if seen & WAITER != 0 {
                let by_id = seen & BY_ID != 0;
                (
                    0,
                    if by_id {
                        TransitionToExited::WaiterById
                    } else {
                        TransitionToExited::Waiter
                    },
                )
            } else if seen & HANDLE != 0 {
                // The handle has a reference.
                (REF, TransitionToExited::Alive)
            } else if dropped {
                let exit = match released(seen, REF) {
                    TransitionToFree::Alive => TransitionToExited::Alive,
                    TransitionToFree::Free => TransitionToExited::Free,
                    TransitionToFree::FreeOrphan => TransitionToExited::FreeOrphan,
                };
                (REF, exit)
            } else {
                (0, TransitionToExited::Detached)
            };
            match self.0.compare_exchange_weak(
                seen,
                (seen | EXITED) - refs,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => return exit,
                Err(now) => seen = now,
            }
        }
    }

    /// The caller already has a reference.
    ///
    /// # Panics
    /// Panics with over eight million references, a sign of leaked wakers.
    pub(crate) fn retain(&self) {
        let word = self.0.fetch_add(REF, Ordering::Relaxed);
        if word & REFS >= REFS_LIMIT {
            self.0.fetch_sub(REF, Ordering::Relaxed);
            panic!("over eight million wakers of one coroutine: they are being leaked");
        }
    }

    /// Adds a reference for a caller that has only an id. Returns false if the coroutine is dead.
    pub(crate) fn retain_by_id(&self, generation: u32) -> bool {
        self.update(|word| is_live(word, generation).then_some(word + REF))
            .is_ok()
    }

    /// 7: releases `count` references.
    #[inline]
    pub(crate) fn release(&self, count: u32) -> TransitionToFree {
        let refs = u64::from(count) * REF;
        let word = self.0.fetch_sub(refs, Ordering::AcqRel);
        debug_assert!(word & REFS >= refs);
        released(word, refs)
    }

    /// 7: releases the references of the handle, which has seen the exit.
    #[inline]
    pub(crate) fn release_handle(&self) -> TransitionToFree {
        let refs = handle_refs(self.0.load(Ordering::Relaxed));
        let word = self.0.fetch_sub(refs, Ordering::AcqRel);
        debug_assert!(word & REFS >= refs && word & EXITED != 0);
        released(word, refs)
    }

    /// Returns true if the references of the handle, which has seen the exit, are the only ones.
    /// The word is then the caller's alone, and no release is needed, because an id of an exited
    /// coroutine makes no new reference.
    ///
    /// Called only while the domain has a handle, because the end of the domain marks all slots
    /// that are still referenced.
    #[inline]
    pub(crate) fn has_only_handle_refs(&self) -> bool {
        // Acquire: orders the uses of the other references before this.
        let word = self.0.load(Ordering::Acquire);
        debug_assert!(word & REFS != 0 && word & EXITED != 0);
        word & REFS == handle_refs(word)
    }

    /// After 7: begins the next generation of a slot whose memory is freed. Returns false if no
    /// generation is left. Then the slot must not be used again, since an old id would name its
    /// next tenant.
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

    /// For a slot that is about to be free.
    #[cfg(test)]
    pub(crate) fn set_generation(&self, generation: u32) {
        self.0.fetch_and(u64::from(u32::MAX), Ordering::Relaxed);
        self.0
            .fetch_or(u64::from(generation) << GENERATION, Ordering::Relaxed);
    }

    /// Publishes the waker or id that the handle has stored.
    ///
    /// Sequentially consistent, because afterwards the handle reads the level of the coroutine,
    /// which `reprio` sets before it calls [`has_waiter_by_id_now`](Self::has_waiter_by_id_now).
    pub(crate) fn set_waiter(&self, by_id: bool) -> HandleTransition {
        let waiter = if by_id { WAITER | BY_ID } else { WAITER };
        let set = self
            .0
            .fetch_update(Ordering::SeqCst, Ordering::Acquire, |word| {
                (word & EXITED == 0).then_some(word | waiter)
            });
        match set {
            Ok(_) => HandleTransition::Done,
            Err(_) => HandleTransition::Exited,
        }
    }

    pub(crate) fn clear_waiter(&self) -> HandleTransition {
        match self.update(|word| (word & EXITED == 0).then_some(word & !(WAITER | BY_ID))) {
            Ok(_) => HandleTransition::Done,
            Err(_) => HandleTransition::Exited,
        }
    }

    /// Records that the handle is dropped. After `Done`, its reference is still to be released;
    /// after `Exited`, the output is to be dropped as well.
    pub(crate) fn drop_handle(&self) -> HandleTransition {
        match self.update(|word| (word & EXITED == 0).then_some(word & !HANDLE)) {
            Ok(_) => HandleTransition::Done,
            Err(_) => HandleTransition::Exited,
        }
    }

    /// Records that the handle is dropped, and releases its reference if the coroutine has not
    /// exited (`Done`). The reference was not the last one, because the coroutine has one of its
    /// own until it has exited. After `Exited`, the caller still has the output and the reference.
    pub(crate) fn drop_handle_and_release(&self) -> HandleTransition {
        match self.update(|word| (word & EXITED == 0).then_some((word & !HANDLE) - REF)) {
            Ok(_) => HandleTransition::Done,
            Err(_) => HandleTransition::Exited,
        }
    }

    pub(crate) fn has_waiter_by_id(&self) -> bool {
        self.0.load(Ordering::Relaxed) & BY_ID != 0
    }

    /// Returns false if the coroutine has exited. For a thread that has just changed the level of
    /// the coroutine.
    pub(crate) fn has_waiter_by_id_now(&self) -> bool {
        self.0.load(Ordering::SeqCst) & (BY_ID | EXITED) == BY_ID
    }

    pub(crate) fn has_waiter(&self) -> bool {
        self.0.load(Ordering::Relaxed) & WAITER != 0
    }

    /// Sets `ORPHAN`, at the end of the domain. Returns false, and marks nothing, if the slot is
    /// not referenced.
    pub(crate) fn mark_orphan(&self) -> bool {
        self.update(|word| (word & REFS != 0).then_some(word | ORPHAN))
            .is_ok()
    }

    /// Once true, always true.
    pub(crate) fn is_detached(&self) -> bool {
        self.0.load(Ordering::Acquire) & HANDLE == 0
    }

    /// True while the coroutine is queued, being polled, or suspended.
    pub(crate) fn is_owned(&self) -> bool {
        self.0.load(Ordering::Relaxed) & (OWNED | EXITED) == OWNED
    }

    pub(crate) fn is_exited(&self) -> bool {
        self.0.load(Ordering::Acquire) & EXITED != 0
    }

    /// Returns `None` if the slot has no living tenant.
    pub(crate) fn live_generation(&self) -> Option<u32> {
        let word = self.0.load(Ordering::Acquire);
        let generation = (word >> GENERATION) as u32;
        is_live(word, generation).then_some(generation)
    }
}

/// Returns the references of a handle that has seen the exit: its own, and the coroutine's if the
/// waiter was an id.
#[inline]
fn handle_refs(word: u64) -> u64 {
    const { assert!(BY_ID << 1 == REF) }
    REF + ((word & BY_ID) << 1)
}

/// Returns the duty after a release of `refs` references. `word` is the word before the release.
fn released(word: u64, refs: u64) -> TransitionToFree {
    if word & REFS != refs {
        TransitionToFree::Alive
    } else if word & ORPHAN == 0 {
        TransitionToFree::Free
    } else {
        TransitionToFree::FreeOrphan
    }
}

/// True for the word of a coroutine of this generation that has not exited.
fn is_live(word: u64, generation: u32) -> bool {
    (word >> GENERATION) as u32 == generation && word & REFS != 0 && word & EXITED == 0
}
