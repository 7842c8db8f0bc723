//! The spin lock of the ready queues of a vCPU. It is held for a few instructions, and biased to
//! its *owner*, the thread that serves the vCPU.
//!
//! Under the lock, no user code runs and no memory is allocated. The lock itself calls the host
//! only to wait ([`Host::relax`]) and to end a bias ([`Host::heavy_barrier`]). The owner takes the
//! lock once or more per poll; thieves, and `reprio` from other threads, take it now and then. An
//! interrupt handler must not take the lock, because the interrupted thread may hold it. The
//! handler's wakes use the inbox instead.
//!
//! # Bias
//!
//! While the lock is biased, the owner takes and releases it without an atomic read-modify-write:
//!
//! ```text
//!   owner:  inside = true; (compiler barrier) biased? ──► yes: taken
//!                                                     └─► no: inside = false, then like the others
//!   other:  held.swap(true); biased = false; (heavy barrier) inside? ──► wait until it is false
//! ```
//!
//! The heavy barrier orders the owner's store before its load, so at least one side sees the other.
//! Either the owner sees that the bias has ended, or the other thread sees that the owner is
//! inside. This is Dekker's protocol, and its cheap side is the one that runs a thousand times as
//! often. (`tests/loom_bias.rs` checks it, with full fences for both barriers.)
//!
//! The owner sets the bias again, under `held`, when it has taken the lock [`REBIAS_AFTER`] times
//! since another thread last took it. That many atomic exchanges cost as much as a heavy barrier.
//! By the ski-rental argument, the total cost is at most twice that of the better of two policies,
//! *always biased* and *never biased*, whatever the other threads do. On a host without heavy
//! barriers the lock is never biased.

use super::host::Host;
use crate::sync::{AtomicBool, AtomicU32, Ordering, light_barrier};

/// Number of atomic exchanges, of 5 ns each, that cost as much as a heavy barrier. Where CPUs are
/// virtual, a barrier costs 20 µs, half for the calling thread and half for the interrupt of the
/// owner.
const REBIAS_AFTER: u32 = if cfg!(loom) { 1 } else { 4096 };

/// The fields that the lock guards are in `Guarded` of the vCPU.
pub(crate) struct Lock {
    /// Set while the owner holds the lock by its bias, or tries to take it. Written by the owner.
    inside: AtomicBool,
    /// Set while the owner need not take `held`. Written by the holder of `held`.
    biased: AtomicBool,
    /// Set while a thread holds the lock without the bias.
    held: AtomicBool,
    /// Number of times the owner has taken `held` since another thread last took it. Guarded by
    /// `held`.
    streak: AtomicU32,
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

    /// Takes the lock. Spins with [`Host::relax`] while another thread has it.
    ///
    /// # Safety
    /// The calling thread serves the vCPU, and synchronizes with the thread that served the vCPU
    /// before. So only one thread at a time calls this.
    #[inline]
    pub(crate) unsafe fn lock_by_owner<H: Host>(&self, host: &H) -> Guard<'_> {
        // Models of hosts without a heavy barrier skip these steps, to have fewer states.
        if !cfg!(loom) || host.has_heavy_barrier() {
            self.inside.store(true, Ordering::Relaxed);
            light_barrier();
            if self.biased.load(Ordering::Acquire) {
                return self.guard(&self.inside);
            }
        }
        self.take_by_owner(host)
    }

    #[inline(never)]
    fn take_by_owner<H: Host>(&self, host: &H) -> Guard<'_> {
        // Cleared before the wait for `held`, whose holder may be waiting until this flag is clear.
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

    /// Clears `biased`, and waits until the owner is not inside. The caller has `held`.
    #[cold]
    fn end_bias<H: Host>(&self, host: &H) {
        self.biased.store(false, Ordering::SeqCst);
        host.heavy_barrier();
        let mut spins = 0;
        // Acquire: orders the owner's writes inside the lock before this.
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

    /// Takes `held` with a compare-exchange, because loom does not order the store of a failed swap
    /// before the holder's release, and would let the thread spin for ever on its own store.
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

pub(crate) struct Guard<'a> {
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
