//! Executes submission queue entries by one of two drivers: the kernel's io_uring, or the readiness
//! driver, which waits for descriptors and makes nonblocking calls.
//!
//! Only this module distinguishes the two drivers. Both take entries and return completions
//! (`user_data`, result, flags), and both find receive buffers in the same ring in memory. All
//! other code of this crate is therefore the same for both, and an [`Operation`](crate::Operation)
//! does not know its driver.
//!
//! Each call chooses the driver by a branch, which always goes the same way for a ring.
//! `iteration.rs` branches once per batch of completions that it reads, and once per submit. Only
//! the thread that owns the ring may use this module.

use crate::config::{Config, Driver, Mode};
use crate::owner::Proxy;
use crate::probe;
use crate::readiness::Readiness;
use crate::remote::Kick;
use crate::uring::Uring;
use crate::watch::RingWatch;
use io_uring::squeue::Entry;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

pub(crate) enum Backend {
    Kernel(Uring),
    Readiness(Box<Readiness>),
}

macro_rules! both {
    ($self:expr, $backend:ident => $call:expr) => {
        match $self {
            Backend::Kernel($backend) => $call,
            Backend::Readiness($backend) => $call,
        }
    };
}

impl Backend {
    pub(crate) fn new(config: &Config) -> io::Result<Self> {
        let readiness = || Ok(Self::Readiness(Box::new(Readiness::new(config)?)));
        match config.driver {
            Driver::Ring => Ok(Self::Kernel(Uring::new(config)?)),
            Driver::Readiness => readiness(),
            Driver::Auto => match probe::ring().and_then(|()| Uring::new(config)) {
                Ok(uring) => Ok(Self::Kernel(uring)),
                Err(error) if probe::is_about_io_uring(&error) => readiness(),
                Err(error) => Err(error),
            },
        }
    }

    pub(crate) fn mode(&self) -> Mode {
        match self {
            Self::Kernel(uring) => uring.mode(),
            Self::Readiness(_) => Mode::Readiness,
        }
    }

    /// Returns whether the completion of a request that succeeds can be suppressed.
    pub(crate) fn skips_success(&self) -> bool {
        match self {
            Self::Kernel(uring) => uring.skips_success(),
            // The readiness driver makes no completions for cancellations.
            Self::Readiness(_) => true,
        }
    }

    pub(crate) fn watch(&self, levels: Arc<AtomicU64>, kick: &Arc<Kick>) -> io::Result<RingWatch> {
        match self {
            Self::Kernel(uring) => uring.watch(levels, kick.clone()),
            Self::Readiness(readiness) => readiness.watch(levels),
        }
    }

    pub(crate) fn set_proxy(&self, proxy: Box<dyn Proxy>) {
        if let Self::Kernel(uring) = self {
            uring.set_proxy(proxy);
        }
    }

    /// Returns whether the calling thread may make the system calls. With readiness, any owner may.
    #[inline]
    pub(crate) fn is_on_issuer_thread(&self) -> bool {
        match self {
            Self::Kernel(uring) => uring.is_on_issuer_thread(),
            Self::Readiness(_) => true,
        }
    }

    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        both!(self, backend => backend.is_full())
    }

    /// Queues an entry of a level; no system call. Returns false if the queue is full.
    ///
    /// # Safety
    /// The memory that the entry points to stays valid until its terminal completion.
    #[inline]
    #[must_use]
    pub(crate) unsafe fn push(&self, entry: &Entry, level: u8) -> bool {
        match self {
            // SAFETY: the caller upholds the requirements of this call.
            Self::Kernel(uring) => unsafe { uring.push(entry) },
            // SAFETY: the caller upholds the requirements of this call.
            Self::Readiness(readiness) => unsafe { readiness.push(entry, level) },
        }
    }

    #[inline]
    pub(crate) fn pending(&self) -> usize {
        both!(self, backend => backend.pending())
    }

    /// Returns whether there may be completions that only an enter brings to the queue.
    #[inline]
    pub(crate) fn owes_completions(&self) -> bool {
        both!(self, backend => backend.owes_completions())
    }

    pub(crate) fn has_overflowed(&self) -> bool {
        match self {
            Self::Kernel(uring) => uring.has_overflowed(),
            Self::Readiness(_) => false,
        }
    }

    /// Returns whether there are completions to reap or to fetch. A few loads.
    #[inline]
    pub(crate) fn has_completions(&self) -> bool {
        both!(self, backend => backend.has_completions())
    }

    /// Returns whether there are completions to reap or to fetch. The readiness driver may make a
    /// system call.
    pub(crate) fn has_arrivals(&self) -> bool {
        match self {
            Self::Kernel(uring) => uring.has_completions(),
            Self::Readiness(readiness) => readiness.has_arrivals(),
        }
    }

    /// Returns whether there are completions, or entries to hand over. With `busy`, also returns
    /// true if an operation is waiting and only an enter can bring its completion. A few loads.
    #[inline]
    pub(crate) fn is_due(&self, busy: bool) -> bool {
        match self {
            Self::Kernel(uring) => uring.has_completions() || uring.pending() != 0,
            Self::Readiness(readiness) => readiness.is_due(busy),
        }
    }

    /// Does the part of an enter that any thread can do. Returns true if an enter by the issuer is
    /// due.
    pub(crate) fn publish(&self) -> bool {
        match self {
            Self::Kernel(uring) => {
                uring.publish();
                uring.pending() != 0 || uring.owes_completions()
            }
            Self::Readiness(readiness) => {
                readiness.enter(true);
                false
            }
        }
    }

    /// Hands all entries over without waiting. With `fetch`, also moves the completions that the
    /// kernel holds back into the queue.
    pub(crate) fn enter(&self, fetch: bool) -> io::Result<usize> {
        match self {
            Self::Kernel(uring) => uring.enter(fetch),
            Self::Readiness(readiness) => Ok(readiness.enter(fetch)),
        }
    }

    /// Hands all entries over without waiting. If cancellations among the entries end operations,
    /// the completions of those operations are in the queue afterwards.
    pub(crate) fn hand_over_and_fetch(&self) -> io::Result<usize> {
        match self {
            Self::Kernel(uring) => uring.enter(true),
            Self::Readiness(readiness) => Ok(readiness.enter(false)),
        }
    }

    pub(crate) fn enter_and_wait(&self, want: u32, timeout: Option<Duration>) -> io::Result<usize> {
        both!(self, backend => backend.enter_and_wait(want, timeout))
    }

    /// Registers a ring of `entries` (a power of two) buffers at `address`.
    ///
    /// # Safety
    /// The memory stays valid until [`unregister_buffers`](Self::unregister_buffers) or
    /// [`close`](Self::close).
    pub(crate) unsafe fn register_buffers(
        &self,
        address: u64,
        entries: u16,
        group: u16,
    ) -> io::Result<()> {
        match self {
            // SAFETY: the caller upholds the requirements of this call.
            Self::Kernel(uring) => unsafe { uring.register_buffers(address, entries, group) },
            Self::Readiness(readiness) => {
                // SAFETY: the caller upholds the requirements of this call.
                unsafe { readiness.register_buffers(address, entries, group) };
                Ok(())
            }
        }
    }

    pub(crate) fn unregister_buffers(&self, group: u16) {
        both!(self, backend => backend.unregister_buffers(group));
    }

    /// Returns the number of `io_uring_enter` calls, or of their equivalents.
    pub(crate) fn enters(&self) -> u64 {
        both!(self, backend => backend.enters.get())
    }

    pub(crate) fn submitted(&self) -> u64 {
        both!(self, backend => backend.submitted.get())
    }

    /// Closes the instance.
    ///
    /// # Safety
    /// Called once, as the last use of `self`; nothing is in flight.
    pub(crate) unsafe fn close(&self) {
        match self {
            // SAFETY: the caller upholds the requirements of this call.
            Self::Kernel(uring) => unsafe { uring.close() },
            Self::Readiness(readiness) => readiness.close(),
        }
    }
}
