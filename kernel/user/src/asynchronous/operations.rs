//! The table of operations: which side owns the buffer of a call.
//!
//! ```text
//!        take            begin            complete             finish
//!  FREE ──────► CLAIMED ──────────► PENDING ─────────► DONE ──────────────► FREE
//!                 ▲                  │ abandon          │ abandon
//!                 │                  ▼     complete     ▼
//!                 │               ABANDONED ──────► UNWANTED
//!                 └─────────────────────────────────────┘ take
//! ```
//!
//! The buffer is the taker's while `CLAIMED`, the kernel's while `PENDING` or `ABANDONED`, and the
//! owner of the [`InFlight`] takes it out when it is `DONE`. An unwanted buffer stays in the table
//! until the next taker drops it, so [`complete`], which may run in a user interrupt, frees
//! nothing. Operations are made in batches and never freed.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::ptr::null_mut;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicIsize, AtomicPtr, AtomicU32, AtomicU64};

use os_abi::shared::RING_ENTRIES;

use crate::coroutine::Cid;

const FREE: u32 = 0;
/// The operation is in flight, and awaited.
const PENDING: u32 = 1;
/// The operation is in flight, and not awaited.
const ABANDONED: u32 = 2;
/// The result is there.
const DONE: u32 = 3;
/// The result is there, and not wanted.
const UNWANTED: u32 = 4;
/// The operation is being filled in.
const CLAIMED: u32 = 5;

struct Operation {
    state: AtomicU32,
    result: AtomicIsize,
    /// The coroutine that is woken.
    cid: AtomicU64,
    buffer: UnsafeCell<Option<Vec<u8>>>,
}

// SAFETY: `buffer` belongs to the thread that has made the state `CLAIMED`, then to the one
// `InFlight` made of that, which one thread at a time has; `complete` does not touch it.
unsafe impl Sync for Operation {}

/// Operations that are made at once.
const BATCH: usize = 128;

/// Operations, as many as completions fit into the ring, in batches that are made when they are
/// needed.
static BATCHES: [AtomicPtr<[Operation; BATCH]>; RING_ENTRIES / BATCH] =
    [const { AtomicPtr::new(null_mut()) }; RING_ENTRIES / BATCH];

/// Index at which the search for a free operation begins.
static HINT: AtomicU32 = AtomicU32::new(0);

/// The operation of a token, if there is one.
fn operation(token: usize) -> Option<&'static Operation> {
    let batch = BATCHES.get(token / BATCH)?.load(Acquire);
    // SAFETY: null, or a box that is never freed.
    let batch = unsafe { batch.as_ref() }?;
    Some(&batch[token % BATCH])
}

/// Makes another batch of operations. `None`: the table is full.
fn grow() -> Option<()> {
    let batch = Box::into_raw(Box::new(
        [const {
            Operation {
                state: AtomicU32::new(FREE),
                result: AtomicIsize::new(0),
                cid: AtomicU64::new(0),
                buffer: UnsafeCell::new(None),
            }
        }; BATCH],
    ));
    for place in &BATCHES {
        let made = place.compare_exchange(null_mut(), batch, AcqRel, Acquire);
        if made.is_ok() {
            return Some(());
        }
    }
    // SAFETY: just boxed, and not shared yet.
    drop(unsafe { Box::from_raw(batch) });
    None
}

/// Makes the operation of a token, if there is one and it is free, the caller's.
#[inline]
fn claim(token: usize) -> Option<ClaimedOperation> {
    let operation = operation(token)?;
    let seen = operation.state.load(Acquire);
    let is_free = seen == FREE || seen == UNWANTED;
    let is_claimed = is_free
        && operation
            .state
            .compare_exchange(seen, CLAIMED, SeqCst, Relaxed)
            .is_ok();
    is_claimed.then_some(ClaimedOperation { token, operation })
}

/// An operation that is to be filled in.
pub(super) struct ClaimedOperation {
    token: usize,
    operation: &'static Operation,
}

/// Takes a free operation, from the one that was taken last on; makes more as long as there is
/// none. `None`: there are as many as there may be.
#[inline]
pub(super) fn take() -> Option<ClaimedOperation> {
    // Mostly the next one is free.
    let taken = match claim(HINT.load(Relaxed) as usize) {
        Some(taken) => taken,
        None => search()?,
    };
    HINT.store(taken.token as u32 + 1, Relaxed);
    Some(taken)
}

/// Searches all operations for a free one. O(operations).
#[cold]
fn search() -> Option<ClaimedOperation> {
    loop {
        let start = HINT.load(Relaxed) as usize;
        let made = BATCHES
            .iter()
            .take_while(|batch| !batch.load(Relaxed).is_null());
        let count = made.count() * BATCH;
        let mut all = (start..start + count).map(|at| at % count);
        if let Some(taken) = all.find_map(claim) {
            return Some(taken);
        }
        // A thread that is stopped here finds the batch that it has made taken by others.
        grow()?;
    }
}

impl ClaimedOperation {
    /// The call is about to be made: `buffer` stays here until it is over.
    pub(super) fn begin(self, buffer: Option<Vec<u8>>, cid: Cid) -> InFlight {
        let ClaimedOperation { token, operation } = self;
        // SAFETY: the operation is `CLAIMED`, by this `ClaimedOperation`.
        unsafe { *operation.buffer.get() = buffer };
        operation.cid.store(cid, Relaxed);
        operation.state.store(PENDING, Release);
        InFlight { token, operation }
    }
}

/// An operation whose result is awaited. There is one of these for each.
pub(super) struct InFlight {
    token: usize,
    operation: &'static Operation,
}

impl InFlight {
    /// Returns the token that the kernel is to give back with the result.
    pub(super) fn token(&self) -> usize {
        self.token
    }

    /// The kernel has not made the call: the buffer comes back.
    pub(super) fn undo(self) -> Option<Vec<u8>> {
        self.free()
    }

    /// The call was over at once.
    pub(super) fn is_over(&self, result: isize) {
        self.operation.result.store(result, Relaxed);
        self.operation.state.store(DONE, Release);
    }

    /// Returns whether the result is there.
    pub(super) fn is_done(&self) -> bool {
        self.operation.state.load(Acquire) == DONE
    }

    /// The result and the buffer.
    ///
    /// # Panics
    /// If the result is not there: the buffer is the kernel's.
    pub(super) fn finish(self) -> (isize, Option<Vec<u8>>) {
        assert!(self.is_done());
        let result = self.operation.result.load(Relaxed);
        (result, self.free())
    }

    /// The kernel has not got the buffer (any more).
    fn free(self) -> Option<Vec<u8>> {
        // SAFETY: the kernel is through with it, `complete` never touches it, and this
        // is the only `InFlight` of the operation.
        let buffer = unsafe { (*self.operation.buffer.get()).take() };
        self.operation.state.store(FREE, Release);
        buffer
    }

    /// Abandons the result. The buffer stays until the completion. Returns true if the call is
    /// still in flight.
    pub(super) fn abandon(&self) -> bool {
        let state = &self.operation.state;
        // An interrupt may complete the operation right now.
        let abandoned = state.compare_exchange(PENDING, ABANDONED, SeqCst, SeqCst);
        if abandoned.is_err() {
            state.store(UNWANTED, Release);
        }
        abandoned.is_ok()
    }
}

/// The result of the call with this token has come, if one is in flight. Sets atomics,
/// nothing else.
pub(super) fn complete(token: usize, result: isize) {
    if let Some(operation) = operation(token) {
        operation.result.store(result, Relaxed);
        let over = |state| match state {
            PENDING => Some(DONE),
            ABANDONED => Some(UNWANTED),
            _ => None,
        };
        let _ = operation.state.fetch_update(SeqCst, SeqCst, over);
    }
}

/// Gives all that are in flight a result, and calls `f` with the coroutine of each.
pub(super) fn complete_all(result: isize, f: impl Fn(Cid)) {
    for (token, operation) in (0..RING_ENTRIES).map_while(|token| Some((token, operation(token)?)))
    {
        let state = operation.state.load(Acquire);
        if state == PENDING || state == ABANDONED {
            complete(token, result);
            f(operation.cid.load(Relaxed));
        }
    }
}
