//! The partner of a calibration: a thread that does what the measurer tells it to do (its *mode*).
//!
//! In every mode the partner ends on request or at the deadline.

use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64};
use std::time::Instant;

use crate::elevated::Elevated;
use crate::futex::{futex_wait_for, futex_wake};
use crate::priority::Priority;
use crate::sys::current_tid;

/// Mode in which the partner demotes itself whenever it runs.
pub(super) const SWITCH: u32 = 0;
/// Mode in which the partner keeps the CPU busy.
pub(super) const SPIN: u32 = 1;
/// Mode in which the partner passes the token back.
pub(super) const PING_PONG: u32 = 2;
/// Mode in which the partner ends.
pub(super) const STOP: u32 = 3;
/// Mode in which the partner sleeps.
pub(super) const SLEEP: u32 = 4;

/// Maximum time of a sleep in a futex, in nanoseconds, so that no wait outlives the calibration.
const MAX_SLEEP_NS: u64 = 50_000_000;

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) mode: AtomicU32,
    /// The partner's tid once it runs, else 0.
    pub(super) tid: AtomicI32,
    /// Set when the partner has been elevated and may begin.
    pub(super) ready: AtomicBool,
    /// The holder of the token: 0 for the measurer, 1 for the partner.
    pub(super) token: AtomicU32,
    /// Number of rounds of the partner's loop while it keeps the CPU busy.
    pub(super) spins: AtomicU64,
    pub(super) deadline: Instant,
}

impl Shared {
    pub(super) fn is_over(&self) -> bool {
        Instant::now() >= self.deadline
    }
}

/// Runs the partner. `guard` is the partner's own guard, set before `ready`.
pub(super) fn run_partner(shared: &Shared, demoted: Priority, guard: &OnceLock<Elevated>) {
    shared.tid.store(current_tid(), Release);
    while !shared.ready.load(Acquire) {
        if shared.is_over() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_micros(100));
    }
    let Some(guard) = guard.get() else { return };
    let mut rounds = 0u64;
    loop {
        rounds = rounds.wrapping_add(1);
        if rounds.is_multiple_of(64) && shared.is_over() {
            return;
        }
        match shared.mode.load(Acquire) {
            SWITCH => {
                if guard.set(demoted).is_err() {
                    return;
                }
            }
            SPIN => {
                shared.spins.store(rounds, Relaxed);
                std::hint::spin_loop();
            }
            PING_PONG => {
                if shared.token.load(Acquire) == 1 {
                    shared.token.store(0, Release);
                    futex_wake(&shared.token);
                } else {
                    wait(&shared.token, 0);
                }
            }
            SLEEP => wait(&shared.token, 0),
            _ => return,
        }
    }
}

/// Sleeps while `word` is `value`, for at most [`MAX_SLEEP_NS`].
pub(super) fn wait(word: &AtomicU32, value: u32) {
    futex_wait_for(word, value, MAX_SLEEP_NS);
}

pub(super) fn set_mode(shared: &Shared, mode: u32) {
    shared.mode.store(mode, Release);
    shared.token.store(0, Relaxed);
    futex_wake(&shared.token);
}
