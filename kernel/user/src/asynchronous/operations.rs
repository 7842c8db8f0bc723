//! The table of operations, which records the owner of the buffer of each call.
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
//! The thread that claims an operation owns its buffer while `CLAIMED`, the kernel while `PENDING`
//! or `ABANDONED`, and the owner of the [`InFlight`] takes the buffer out when it is `DONE`. An
//! unwanted buffer stays in the table until the next claim drops it, so [`complete`], which may run
//! in a user interrupt, frees nothing. Operations are allocated in batches and never freed.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::ptr::null_mut;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicIsize, AtomicPtr, AtomicU32, AtomicU64};

use os_abi::shared::RING_ENTRIES;

use crate::coroutine::Cid;

/// The operation is not in use.
const FREE: u32 = 0;
/// The operation is in flight, and its result is awaited.
const PENDING: u32 = 1;
/// The operation is in flight, and its result is not awaited.
const ABANDONED: u32 = 2;
/// The result has arrived.
const DONE: u32 = 3;
/// The result has arrived, and is not awaited.
const UNWANTED: u32 = 4;
/// A thread is filling the operation in.
const CLAIMED: u32 = 5;

struct Operation {
    state: AtomicU32,
    result: AtomicIsize,
    /// Coroutine that the completion wakes.
    cid: AtomicU64,
    buffer: UnsafeCell<Option<Vec<u8>>>,
}

// SAFETY: `buffer` belongs to the thread that has changed the state to `CLAIMED`, then to the
// `InFlight` that this thread creates, which one thread at a time owns; `complete` does not touch
// the buffer.
unsafe impl Sync for Operation {}

/// Number of operations that are allocated at once.
const BATCH: usize = 128;

/// Operations, as many as completions fit into the ring, in batches that are allocated on demand.
static BATCHES: [AtomicPtr<[Operation; BATCH]>; RING_ENTRIES / BATCH] =
    [const { AtomicPtr::new(null_mut()) }; RING_ENTRIES / BATCH];

/// Index at which the search for a free operation begins.
static HINT: AtomicU32 = AtomicU32::new(0);

/// Returns the operation of a token, if it exists.
fn operation(token: usize) -> Option<&'static Operation> {
    let batch = BATCHES.get(token / BATCH)?.load(Acquire);
    // SAFETY: the pointer is null or comes from `Box::into_raw` in `grow`, and batches are never
    // freed.
    let batch = unsafe { batch.as_ref() }?;
    Some(&batch[token % BATCH])
}

/// Allocates another batch of operations. Returns `None` if the table is full.
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
    for slot in &BATCHES {
        let allocated = slot.compare_exchange(null_mut(), batch, AcqRel, Acquire);
        if allocated.is_ok() {
            return Some(());
        }
    }
    // SAFETY: the pointer comes from `Box::into_raw` above, and no exchange has stored it in
    // `BATCHES`.
    drop(unsafe { Box::from_raw(batch) });
    None
}

/// Claims the operation of a token, if it exists and is free.
#[inline]
fn claim(token: usize) -> Option<ClaimedOperation> {
    let operation = operation(token)?;
    let state = operation.state.load(Acquire);
    let is_free = state == FREE || state == UNWANTED;
    let is_claimed = is_free
        && operation
            .state
            .compare_exchange(state, CLAIMED, SeqCst, Relaxed)
            .is_ok();
    is_claimed.then_some(ClaimedOperation { token, operation })
}

/// An operation that the caller fills in.
pub(super) struct ClaimedOperation {
    token: usize,
    operation: &'static Operation,
}

/// Claims a free operation. The search begins after the operation that was claimed last, and
/// allocates a batch if no operation is free. Returns `None` if the table is full.
#[inline]
pub(super) fn take() -> Option<ClaimedOperation> {
    // Usually the next operation is free.
    let claimed = match claim(HINT.load(Relaxed) as usize) {
        Some(claimed) => claimed,
        None => search()?,
    };
    HINT.store(claimed.token as u32 + 1, Relaxed);
    Some(claimed)
}

/// Searches all operations for a free one. O(operations).
#[cold]
fn search() -> Option<ClaimedOperation> {
    loop {
        let start = HINT.load(Relaxed) as usize;
        let allocated = BATCHES
            .iter()
            .take_while(|batch| !batch.load(Relaxed).is_null());
        let count = allocated.count() * BATCH;
        let mut all = (start..start + count).map(|at| at % count);
        if let Some(claimed) = all.find_map(claim) {
            return Some(claimed);
        }
        // While this thread is stopped here, other threads may claim all operations of the new
        // batch.
        grow()?;
    }
}

impl ClaimedOperation {
    /// Puts `buffer` into the table and marks the operation as in flight. The caller makes the call
    /// next.
    pub(super) fn begin(self, buffer: Option<Vec<u8>>, cid: Cid) -> InFlight {
        let ClaimedOperation { token, operation } = self;
        // SAFETY: the operation is `CLAIMED`, by this `ClaimedOperation`.
        unsafe { *operation.buffer.get() = buffer };
        operation.cid.store(cid, Relaxed);
        operation.state.store(PENDING, Release);
        InFlight { token, operation }
    }
}

/// An operation whose result is awaited. Each operation has at most one `InFlight`.
pub(super) struct InFlight {
    token: usize,
    operation: &'static Operation,
}

impl InFlight {
    /// Returns the token that the kernel returns with the result.
    pub(super) fn token(&self) -> usize {
        self.token
    }

    /// Frees the operation and returns the buffer, because the kernel has not accepted the call.
    pub(super) fn undo(self) -> Option<Vec<u8>> {
        self.free()
    }

    /// Stores the result of a call that completed at once.
    pub(super) fn set_result(&self, result: isize) {
        self.operation.result.store(result, Relaxed);
        self.operation.state.store(DONE, Release);
    }

    pub(super) fn is_done(&self) -> bool {
        self.operation.state.load(Acquire) == DONE
    }

    /// Returns the result and the buffer.
    ///
    /// # Panics
    /// If the result has not arrived, because the kernel then still owns the buffer.
    pub(super) fn finish(self) -> (isize, Option<Vec<u8>>) {
        assert!(self.is_done());
        let result = self.operation.result.load(Relaxed);
        (result, self.free())
    }

    /// Frees the operation and returns the buffer, which the kernel must not own.
    fn free(self) -> Option<Vec<u8>> {
        // SAFETY: the kernel no longer uses the buffer, `complete` never touches it, and this is
        // the only `InFlight` of the operation.
        let buffer = unsafe { (*self.operation.buffer.get()).take() };
        self.operation.state.store(FREE, Release);
        buffer
    }

    /// Abandons the result. The buffer stays until the completion. Returns true if the call is
    /// still in flight.
    pub(super) fn abandon(&self) -> bool {
        let state = &self.operation.state;
        // A user interrupt may complete the operation at this moment.
        let abandoned = state.compare_exchange(PENDING, ABANDONED, SeqCst, SeqCst);
        if abandoned.is_err() {
            state.store(UNWANTED, Release);
        }
        abandoned.is_ok()
    }
}

/// Stores the result of the call with this token, if it is in flight. Sets atomics, nothing else.
pub(super) fn complete(token: usize, result: isize) {
    if let Some(operation) = operation(token) {
        operation.result.store(result, Relaxed);
        let next_state = |state| match state {
            PENDING => Some(DONE),
            ABANDONED => Some(UNWANTED),
            _ => None,
        };
        let _ = operation.state.fetch_update(SeqCst, SeqCst, next_state);
    }
}

/// Gives all calls in flight the same result, and calls `f` with the coroutine of each.
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
