//! The worker of a calibration: a thread that runs when it is elevated and does what the mode says.
//!
//! Bounded: whatever the mode, it ends when told to or at the deadline.

use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64};
use std::time::Instant;

use crate::elevated::Elevated;
use crate::futex::{futex_wait_for, futex_wake};
use crate::priority::Priority;
use crate::sys::current_tid;

/// Demotes itself whenever it runs.
pub(super) const SWITCH: u32 = 0;
/// Keeps the CPU busy.
pub(super) const SPIN: u32 = 1;
/// Answers every ball.
pub(super) const HOPS: u32 = 2;
/// Ends.
pub(super) const STOP: u32 = 3;
/// Sleeps.
pub(super) const PAUSE: u32 = 4;

/// The longest sleep in a futex, so that no wait outlives the calibration, ns.
const NAP_NS: u64 = 50_000_000;

/// What the two threads share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) mode: AtomicU32,
    /// The worker's tid once it runs, else 0.
    pub(super) tid: AtomicI32,
    /// The worker may begin: it has been elevated.
    pub(super) ready: AtomicBool,
    /// 0: the measurer has it; 1: the worker.
    pub(super) ball: AtomicU32,
    /// Rounds of the worker's loop while it kept the CPU busy.
    pub(super) spins: AtomicU64,
    pub(super) deadline: Instant,
}

impl Shared {
    pub(super) fn is_over(&self) -> bool {
        Instant::now() >= self.deadline
    }
}

/// The thread's body. `guard` is its own, filled in before it is told to begin.
pub(super) fn work(shared: &Shared, demoted: Priority, guard: &OnceLock<Elevated>) {
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
            HOPS => {
                if shared.ball.load(Acquire) == 1 {
                    shared.ball.store(0, Release);
                    futex_wake(&shared.ball);
                } else {
                    wait(&shared.ball, 0);
                }
            }
            PAUSE => wait(&shared.ball, 0),
            _ => return,
        }
    }
}

/// Sleeps while `word` is `value`, 50 ms at most.
pub(super) fn wait(word: &AtomicU32, value: u32) {
    futex_wait_for(word, value, NAP_NS);
}

/// Changes what the worker does, and wakes it if it sleeps.
pub(super) fn tell(shared: &Shared, mode: u32) {
    shared.mode.store(mode, Release);
    shared.ball.store(0, Relaxed);
    futex_wake(&shared.ball);
}
