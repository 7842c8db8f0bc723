//! Chaos: fault injection for tests, by pseudo-random disturbances.
//!
//! With `chaos=SEED` on the command line the kernel occasionally takes an action that it may take
//! at any time: it ends a quantum early, preempts a thread on the way to user mode, delays a hart,
//! interrupts a hart without a reason, wakes a hart that is not the nearest, creates a coroutine
//! for a call that need not wait, or fails an allocation whose failure the caller handles. The
//! scheduler in the programs causes similar disturbances (`vdso/src/chaos.rs`). Results must stay
//! correct.
//!
//! When chaos is off, each use costs a load. When it is on, each hart has its own sequence, so a
//! seed repeats a run exactly where the machine is deterministic (`-icount`), and approximately
//! elsewhere.

use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU64};

use crate::arch::hart_index;
use crate::{MAX_HARTS, clock, hart};

/// Seed from the command line; 0 without chaos.
static SEED: AtomicU64 = AtomicU64::new(0);

/// True from [`begin`] to [`end`], if there is a seed.
static ON: AtomicBool = AtomicBool::new(false);

/// Number of disturbances so far.
static DISTURBANCES: AtomicU64 = AtomicU64::new(0);

/// State of the pseudo-random sequence of each hart.
static STATES: [AtomicU64; MAX_HARTS] = [const { AtomicU64::new(0) }; MAX_HARTS];

pub(crate) fn set_seed(seed: u64) {
    // A seed of 0 would mean no chaos.
    SEED.store(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1, SeqCst);
}

pub(crate) fn seed() -> u64 {
    SEED.load(Relaxed)
}

/// Begins chaos, if there is a seed. Called when the first program exists.
pub(crate) fn begin() {
    let seed = seed();
    if seed != 0 {
        for (index, state) in STATES.iter().enumerate() {
            state.store(seed.rotate_left(8 * index as u32) | 1, SeqCst);
        }
        ON.store(true, SeqCst);
    }
}

/// Ends chaos. Returns the number of disturbances, or `None` if chaos was off.
pub(crate) fn end() -> Option<u64> {
    ON.swap(false, SeqCst).then(|| DISTURBANCES.load(Relaxed))
}

/// Returns the next number of the hart's sequence, below `limit`; `None` while chaos is off.
#[inline]
fn random(limit: u64) -> Option<u64> {
    ON.load(Relaxed).then(|| advance() % limit)
}

/// Advances the sequence (xorshift). A handler that interrupts the update repeats a number, which
/// is harmless.
#[cold]
fn advance() -> u64 {
    let state = &STATES[hart_index()];
    let mut number = state.load(Relaxed);
    number ^= number << 13;
    number ^= number >> 7;
    number ^= number << 17;
    state.store(number, Relaxed);
    number >> 16
}

/// Returns true about once in `times` calls; never while chaos is off.
#[inline]
pub(crate) fn one_in(times: u64) -> bool {
    let hit = random(times) == Some(0);
    if hit {
        DISTURBANCES.fetch_add(1, Relaxed);
    }
    hit
}

/// Returns a number below `limit`; 0 while chaos is off.
#[inline]
pub(crate) fn below(limit: usize) -> usize {
    random(limit as u64).unwrap_or(0) as usize
}

/// Returns a quantum of `ticks` ticks, or while chaos is on perhaps a shorter one.
#[inline]
pub(crate) fn quantum(ticks: u64) -> u64 {
    match random(4) {
        // Even the shortest quantum is long enough for a restarted thread to make progress.
        Some(0) => ticks / 100,
        Some(1) => ticks / 10,
        _ => ticks,
    }
}

/// Returns whether the caller's allocation must fail: true about once in `times` calls.
#[inline]
pub(crate) fn is_out_of_memory(times: u64) -> bool {
    #[cfg(feature = "selftest")]
    if REFUSALS_LEFT
        .fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1))
        .is_ok()
    {
        return true;
    }
    one_in(times)
}

/// Makes the next `times` calls of [`is_out_of_memory`] return true, whatever the seed.
#[cfg(feature = "selftest")]
pub(crate) fn refuse_memory(times: u64) {
    REFUSALS_LEFT.store(times, SeqCst);
}

#[cfg(feature = "selftest")]
pub(crate) fn refusals_left() -> u64 {
    REFUSALS_LEFT.load(SeqCst)
}

#[cfg(feature = "selftest")]
static REFUSALS_LEFT: AtomicU64 = AtomicU64::new(0);

/// Delays the hart in about one of 16 calls, by at most 20 µs, so that other harts run in between.
#[inline]
pub(crate) fn delay() {
    if one_in(16) {
        let until = clock::now() + below(20) as u64 * clock::from_micros(1);
        while clock::now() < until {
            core::hint::spin_loop();
        }
    }
}

/// Sometimes interrupts a hart without a reason, or delays this hart. Called before a hart chooses
/// its next coroutine, and before it enters user mode.
#[inline]
pub(crate) fn disturb() {
    if one_in(32) {
        hart::interrupt(below(hart::online().len()));
    }
    delay();
}
