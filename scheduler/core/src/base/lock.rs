//! The lock of a vCPU's ready queues: held for a few instructions, and biased to the thread that serves the vCPU.
//!
//! No user code, no allocation and no upcall but [`Host::relax`] and [`Host::heavy_barrier`] happens under it. The owner takes it once
//! or more per poll; thieves, and `reprio` from elsewhere, take it now and then. A thread that can be
//! interrupted by something that takes it too must not hold it then: wakes from
//! interrupt handlers use the inbox instead.
//!
//! # Bias
//!
//! While it is biased the owner takes and gives it back without an atomic step:
//!
//! ```text
//!   owner:  inside = true;    (compiler barrier)  biased? ──► yes: it has it   no: inside = false, and as the others do
//!   other:  held.swap(true);  biased = false;  (heavy barrier)  inside? ──► wait until it is not
//! ```
//!
//! The heavy barrier orders the owner's two steps: either the owner sees that the bias has gone, or the other one sees that it is inside;
//! never neither (`tests/loom_bias.rs`, with full fences for both barriers). It is the protocol of a store and a load on both sides, of
//! which the owner's side is the one that is done a thousand times as often.
//!
//! The bias comes back under `held`, by the owner: when it has taken the lock [`REBIAS_AFTER`] times and no other thread has. That many
//! atomic steps cost what a heavy barrier does, so the two together cost at most twice what the better of *always biased* and *never*
//! does, whatever the others do (ski rental). On a host without heavy barriers it is never biased.

use super::host::Host;
use crate::sync::{AtomicBool, AtomicU32, Ordering, light_barrier};

/// Atomic steps that cost as much as a heavy barrier: 5 ns each, and 20 µs where CPUs are virtual: 10 for the thread that makes it, and an
/// interrupt of the owner.
const REBIAS_AFTER: u32 = if cfg!(loom) { 1 } else { 4096 };

/// A spin lock without data: it guards the fields its vCPU says it guards.
pub(crate) struct Lock {
    /// The owner has it by its bias, or tries. Written by the owner.
    inside: AtomicBool,
    /// The owner need not take `held`. Written by the holder of `held`.
    biased: AtomicBool,
    /// A thread has it that is not there by its bias.
    held: AtomicBool,
    /// How often the owner has taken `held` since another thread has. Under `held`.
    streak: AtomicU32,
    /// What the lock guards, for the model checker.
    #[cfg(loom)]
    content: loom::cell::UnsafeCell<()>,
}

impl Lock {
    pub(crate) fn new() -> Lock {
        Lock {
            inside: AtomicBool::new(false),
            biased: AtomicBool::new(false),
            held: AtomicBool::new(false),
            streak: AtomicU32::new(0),
            #[cfg(loom)]
            content: loom::cell::UnsafeCell::new(()),
        }
    }

    #[inline]
    fn guard<'a>(&'a self, flag: &'a AtomicBool) -> Guard<'a> {
        Guard {
            flag,
            #[cfg(loom)]
            access: Some(self.content.get_mut()),
        }
    }

    /// Takes the lock, spinning with the host's blessing.
    ///
    /// # Safety
    /// The calling thread serves the vCPU, and has what the thread that served it before has written. (So one thread at a time calls this.)
    #[inline]
    pub(crate) unsafe fn lock_by_owner<H: Host>(&self, host: &H) -> Guard<'_> {
        // The models of hosts without are spared the steps.
        if !cfg!(loom) || host.has_heavy_barrier() {
            self.inside.store(true, Ordering::Relaxed);
            light_barrier();
            if self.biased.load(Ordering::Acquire) {
                return self.guard(&self.inside);
            }
        }
        self.take_by_owner(host)
    }

    /// It is not biased.
    #[inline(never)]
    fn take_by_owner<H: Host>(&self, host: &H) -> Guard<'_> {
        // Before the wait for `held`, whose holder may wait for this.
        self.inside.store(false, Ordering::Release);
        self.take(host);
        if host.has_heavy_barrier() {
            let streak = self.streak.load(Ordering::Relaxed) + 1;
            self.streak.store(streak, Ordering::Relaxed);
            if streak >= REBIAS_AFTER {
                self.biased.store(true, Ordering::Relaxed);
            }
        }
        self.guard(&self.held)
    }

    /// Takes the lock, on any thread.
    pub(crate) fn lock<H: Host>(&self, host: &H) -> Guard<'_> {
        self.take(host);
        if host.has_heavy_barrier() {
            self.streak.store(0, Ordering::Relaxed);
            if self.biased.load(Ordering::Relaxed) {
                self.end_bias(host);
            }
        }
        self.guard(&self.held)
    }

    /// With `held`.
    #[cold]
    fn end_bias<H: Host>(&self, host: &H) {
        self.biased.store(false, Ordering::SeqCst);
        host.heavy_barrier();
        let mut spins = 0;
        // Acquire: what the owner has done inside.
        while self.inside.load(Ordering::Acquire) {
            host.relax(spins);
            spins = spins.saturating_add(1);
        }
    }

    #[inline]
    fn take<H: Host>(&self, host: &H) {
        if !self.try_take() {
            self.wait(host);
        }
    }

    #[cfg(not(loom))]
    #[inline]
    fn try_take(&self) -> bool {
        !self.held.swap(true, Ordering::Acquire)
    }

    /// The checker does not order the store of a swap that failed before the holder's release, and would let it spin for
    /// ever on what it has stored itself.
    #[cfg(loom)]
    fn try_take(&self) -> bool {
        self.held
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    #[cold]
    fn wait<H: Host>(&self, host: &H) {
        let mut spins = 0;
        while self.held.load(Ordering::Relaxed) || !self.try_take() {
            host.relax(spins);
            spins = spins.saturating_add(1);
        }
    }
}

/// Releases the lock when dropped.
pub(crate) struct Guard<'a> {
    /// `inside` or `held`.
    flag: &'a AtomicBool,
    #[cfg(loom)]
    access: Option<loom::cell::MutPtr<()>>,
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        #[cfg(loom)]
        drop(self.access.take());
        self.flag.store(false, Ordering::Release);
    }
}
