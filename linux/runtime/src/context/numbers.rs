//! Numbers the runtimes of this process, so that a lock can identify the runtime of its holder.
//!
//! A number is never reused, so a stale number refers to no runtime. The low bits of a number are
//! the index of a slot in a table. A runtime that finds no free slot is [`UNNUMBERED`], and locks
//! do not lend levels in it. Checking whether a runtime is alive costs one load; access to its
//! domain, which is rare, takes a lock.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Mutex, PoisonError};

use upshift_core::Domain;

use crate::host::Linux;
use crate::preempt::permit::Critical;

/// Largest number of runtimes of a process that have numbers at the same time.
const SLOTS: usize = 64;
/// Number of a runtime that found no free slot.
const UNNUMBERED: u64 = u64::MAX;

struct Slot {
    /// The number of the runtime in this slot; 0 if it is free.
    number: AtomicU64,
    domain: Mutex<Option<Domain<Linux>>>,
}

static TABLE: [Slot; SLOTS] = [const {
    Slot {
        number: AtomicU64::new(0),
        domain: Mutex::new(None),
    }
}; SLOTS];

/// A runtime's number, valid while the runtime lives.
#[derive(Debug)]
pub(crate) struct Number(u64);

impl Number {
    pub(crate) fn new(domain: &Domain<Linux>) -> Number {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        for (index, slot) in TABLE.iter().enumerate() {
            let mut entry = slot.domain.lock().unwrap_or_else(PoisonError::into_inner);
            if entry.is_none() {
                *entry = Some(domain.clone());
                let number = NEXT.fetch_add(1, Relaxed) * SLOTS as u64 + index as u64;
                slot.number.store(number, Release);
                return Number(number);
            }
        }
        Number(UNNUMBERED)
    }

    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0
    }

    pub(crate) fn is_numbered(&self) -> bool {
        self.0 != UNNUMBERED
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        if self.is_numbered() {
            let slot = slot_of(self.0);
            slot.number.store(0, Release);
            let domain = slot
                .domain
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            // Dropped outside of the lock, since it may be the last handle to the domain.
            drop(domain);
        }
    }
}

fn slot_of(number: u64) -> &'static Slot {
    &TABLE[(number % SLOTS as u64) as usize]
}

/// Returns whether the runtime with this number is alive. If not, none of its coroutines is being
/// polled.
pub(crate) fn is_alive(number: u64) -> bool {
    slot_of(number).number.load(Acquire) == number
}

/// Runs `f` with the domain of the runtime with this number, if that runtime is alive. `f` must not
/// run user code.
pub(crate) fn with(number: u64, f: impl FnOnce(&Domain<Linux>)) {
    let _critical = Critical::enter();
    let slot = slot_of(number);
    let domain = slot.domain.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(domain) = &*domain
        && slot.number.load(Relaxed) == number
    {
        f(domain);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use upshift_core::Config;

    #[test]
    fn a_number_refers_to_one_domain_for_ever() {
        let domain = Domain::new(Linux::new(), Config::default());
        let first = Number::new(&domain);
        let number = first.get();
        assert!(first.is_numbered() && is_alive(number));
        let mut calls = 0;
        with(number, |_| calls += 1);
        drop(first);
        let second = Number::new(&domain);
        assert_ne!(second.get(), number);
        assert!(!is_alive(number));
        with(number, |_| calls += 1);
        assert_eq!(calls, 1);
    }
}
