//! The ticker of a vCPU: a thread that wakes for an instant every [`PERIOD`] while polls are suspended, so that the kernel picks again.
//!
//! A thread that wakes gets the CPU at once only if it is what the kernel would pick at that moment, among all that are ready. Another one that is
//! ready with an earlier deadline (a worker on its way into its sleep, most often) leaves the watcher, and the next worker, to wait until the slice of
//! the poll has been used *and* the kernel looks, which it does at its tick: up to 4 ms later. It also looks when any thread wakes on the CPU. This one has the
//! shortest slice, does nothing, and sleeps again: the wait ends a [`PERIOD`] later at most. To set the watcher's own timer would not do: the watcher is awake already.
//!
//! It costs a timer and two switches of threads in a millisecond (25 µs, reckoned from what timers cost alone); none where no poll was suspended for [`SELDOM`].

use std::sync::atomic::Ordering::{Acquire, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::thread;
use std::time::Duration;

use upshift_core::preempt::{KEPT, SELDOM};
use upshift_elevate::futex::{futex_wait, futex_wake};

use super::slice::Punctual;
use super::vcpu::Preemptible;
use crate::time::clock;

/// Half of the longest time for which a suspended poll may be kept.
const PERIOD: Duration = Duration::from_nanos(KEPT / 2);

/// When it ticks.
#[derive(Default)]
pub(super) struct Ticker {
    /// At least until then, ns.
    until: AtomicU64,
    /// A futex: 1 while it rests.
    rests: AtomicU32,
}

impl Ticker {
    /// A poll has been stopped at `now`, ns.
    pub(super) fn go_on(&self, now: u64) {
        self.until.store(now + SELDOM, SeqCst);
        self.wake();
    }

    /// It looks whether the vCPU has ended.
    pub(super) fn wake(&self) {
        if self.rests.load(SeqCst) != 0 && self.rests.swap(0, SeqCst) != 0 {
            futex_wake(&self.rests);
        }
    }

    fn is_wanted(&self, vcpu: &Preemptible) -> bool {
        vcpu.tally.suspended.load(SeqCst) != 0 || clock::now() < self.until.load(SeqCst)
    }
}

/// Runs until the vCPU has ended.
pub(super) fn run(vcpu: &Preemptible) {
    let _punctual = Punctual::begin();
    let ticker = &vcpu.ticker;
    while !vcpu.orders.ended.load(Acquire) {
        if ticker.is_wanted(vcpu) {
            thread::sleep(PERIOD);
            continue;
        }
        // First it says that it rests, then it looks once more; what wants it does the reverse.
        ticker.rests.store(1, SeqCst);
        if ticker.is_wanted(vcpu) || vcpu.orders.ended.load(SeqCst) {
            ticker.rests.store(0, SeqCst);
        }
        while ticker.rests.load(SeqCst) != 0 {
            futex_wait(&ticker.rests, 1);
        }
    }
}
