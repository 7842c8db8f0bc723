//! Reads the clock, which counts ticks since the machine started, and arms the timer of each hart.
//!
//! The timer of a hart is armed for its earliest deadline: that of its timers, or the end of the
//! quantum of the running program. There is no periodic tick. Arming costs a register write with
//! Sstc, otherwise a call to the firmware.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU64};

use crate::arch::{csr, sbi};
use crate::hart::Hart;

static TICKS_PER_SECOND: AtomicU64 = AtomicU64::new(1);
static HAS_SSTC: AtomicBool = AtomicBool::new(false);

/// Sets the frequency and the timer that the device tree names.
pub(crate) fn init(ticks_per_second: u64, sstc: bool) {
    TICKS_PER_SECOND.store(ticks_per_second, Relaxed);
    HAS_SSTC.store(sstc, Relaxed);
}

#[inline]
pub(crate) fn now() -> u64 {
    csr::time()
}

pub(crate) fn ticks_per_second() -> u64 {
    TICKS_PER_SECOND.load(Relaxed)
}

const MICROS_PER_SECOND: u64 = 1_000_000;

/// Converts microseconds to ticks, rounded up.
pub(crate) fn from_micros(micros: u64) -> u64 {
    // Seconds and the remainder are converted separately, because a division of 128 bits takes 90
    // instructions. A clock has fewer than 2^44 ticks per second.
    let (seconds, rest) = (micros / MICROS_PER_SECOND, micros % MICROS_PER_SECOND);
    let rest = (rest * ticks_per_second()).div_ceil(MICROS_PER_SECOND);
    seconds
        .saturating_mul(ticks_per_second())
        .saturating_add(rest)
}

pub(crate) fn to_micros(ticks: u64) -> u64 {
    let (seconds, rest) = (ticks / ticks_per_second(), ticks % ticks_per_second());
    (seconds * MICROS_PER_SECOND).saturating_add(rest * MICROS_PER_SECOND / ticks_per_second())
}

/// Arms the timer of the calling hart for its next deadline. `hart` is the calling hart; interrupts
/// are masked, or the caller is an interrupt handler.
pub(crate) fn rearm(hart: &Hart) {
    let next = hart.timers.lock().next_deadline();
    arm(next.min(hart.quantum_end.load(Relaxed)));
}

/// Arms the timer of the calling hart for `deadline`, regardless of its other deadlines.
pub(crate) fn arm(deadline: u64) {
    if HAS_SSTC.load(Relaxed) {
        csr::set_stimecmp(deadline);
    } else {
        sbi::set_timer(deadline);
    }
}
