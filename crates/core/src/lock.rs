//! The lock of a vCPU's ready queues: a flag, held for a few instructions.
//!
//! No user code, no allocation and no upcall but [`Host::relax`] happens under
//! it. The owner takes it once per poll, uncontended (one atomic exchange);
//! thieves, and `reprio` from elsewhere, take it now and then. A thread that can be
//! interrupted by something that takes it too must not hold it then: wakes from
//! interrupt handlers use the inbox instead.

use crate::host::Host;
use crate::sync::{AtomicBool, Ordering};

/// A spin lock without data: it guards the fields its vCPU says it guards.
pub(crate) struct Lock {
    held: AtomicBool,
}

impl Lock {
    pub(crate) fn new() -> Lock {
        Lock {
            held: AtomicBool::new(false),
        }
    }

    /// Takes the lock if it is free.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<Guard<'_>> {
        if self.take() {
            Some(Guard { lock: self })
        } else {
            None
        }
    }

    #[cfg(not(loom))]
    #[inline]
    fn take(&self) -> bool {
        !self.held.swap(true, Ordering::Acquire)
    }

    /// The checker does not order the store of a swap that failed before the holder's release, and would let it spin for
    /// ever on what it has stored itself.
    #[cfg(loom)]
    fn take(&self) -> bool {
        self.held
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// Takes the lock, spinning with the host's blessing.
    #[inline]
    pub(crate) fn lock<H: Host>(&self, host: &H) -> Guard<'_> {
        match self.try_lock() {
            Some(guard) => guard,
            None => self.lock_slow(host),
        }
    }

    #[cold]
    fn lock_slow<H: Host>(&self, host: &H) -> Guard<'_> {
        let mut spins = 0;
        loop {
            if !self.held.load(Ordering::Relaxed)
                && let Some(guard) = self.try_lock()
            {
                return guard;
            }
            host.relax(spins);
            spins = spins.saturating_add(1);
        }
    }
}

/// Releases the lock when dropped.
pub(crate) struct Guard<'a> {
    lock: &'a Lock,
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.lock.held.store(false, Ordering::Release);
    }
}
