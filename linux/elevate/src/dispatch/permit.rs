//! [`Permit`] is the right of one thread to use state that it shares with other threads. One of
//! them, the *supervisor*, can revoke this right.
//!
//! The thread calls [`enter`](Permit::enter) before each use of the state and
//! [`leave`](Permit::leave) after it. Uses may nest. Between uses the supervisor may
//! [`revoke`](Permit::revoke) the permit. The next `enter` then waits until the supervisor
//! [grants](Permit::grant) the permit again. Correctness does not depend on the threads' priorities
//! or CPUs.
//!
//! ```text
//!   thread:      depth = 1;  (compiler barrier)   revoked? ──► yes: wait until granted
//!   supervisor:  revoked = 1; (heavy barrier)     depth?   ──► not 0: grant again
//! ```
//!
//! At least one of the two sees the other's store: the thread sees `revoked`, or the supervisor
//! sees `depth`. (Loom checks this in `tests/loom_permit.rs`, with a full fence for the heavy
//! barrier.) If both see the other's store, the supervisor reverts the revocation, and the thread
//! continues.
//!
//! Cost: `enter` and `leave` take two loads and a store each, and no read-modify-write.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, Ordering, compiler_fence};

use Ordering::{Acquire, Relaxed, Release, SeqCst};

#[cfg(not(loom))]
use crate::futex::{futex_wait, futex_wake};

/// The error of a revocation in the middle of a use. The permit was not revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

/// A revocable right of one thread to use shared state.
#[derive(Debug)]
pub struct Permit {
    /// Number of nested uses under way. Written by the thread only.
    depth: AtomicU32,
    revoked: AtomicU32,
    /// Set while the thread waits for `revoked` to change.
    waiting: AtomicU32,
    /// Set when a supervisor that found the thread busy requests to be notified.
    notify_requested: AtomicU32,
}

/// Orders a store before a load for the compiler. The supervisor's heavy barrier orders them for
/// the CPU.
#[inline]
fn light_barrier() {
    #[cfg(not(loom))]
    compiler_fence(SeqCst);
    #[cfg(loom)]
    fence(SeqCst);
}

impl Default for Permit {
    fn default() -> Permit {
        Permit::new()
    }
}

impl Permit {
    /// Creates a permit that is granted and not in use.
    #[must_use]
    pub fn new() -> Permit {
        Permit {
            depth: AtomicU32::new(0),
            revoked: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            notify_requested: AtomicU32::new(0),
        }
    }

    /// Begins a use by the thread. If the permit has been revoked, waits until it is granted again.
    #[inline]
    pub fn enter(&self) {
        if !self.begin() {
            self.wait_until(|| false);
        }
    }

    /// Begins a use as [`enter`](Permit::enter) does, without the wait. Returns false if the permit
    /// has been revoked; the thread must then not use the state before
    /// [`wait_until`](Permit::wait_until) has returned because of a grant, or
    /// [`is_revoked`](Permit::is_revoked) returns false.
    #[inline]
    #[must_use]
    pub fn begin(&self) -> bool {
        let depth = self.depth.load(Relaxed);
        self.depth.store(depth + 1, Relaxed);
        light_barrier();
        depth != 0 || self.revoked.load(Acquire) == 0
    }

    /// Ends a use by the thread. Returns true if it was the outermost use and a supervisor has
    /// [asked](Permit::ask) to be notified.
    #[inline]
    #[must_use]
    pub fn leave(&self) -> bool {
        let depth = self.depth.load(Relaxed);
        debug_assert!(depth > 0);
        self.depth.store(depth - 1, Release);
        light_barrier();
        depth == 1 && self.notify_requested.load(Relaxed) != 0 && self.take_request()
    }

    #[cold]
    fn take_request(&self) -> bool {
        self.notify_requested.swap(0, Relaxed) != 0
    }

    /// Returns whether a use is under way. On another thread the answer may be out of date.
    #[must_use]
    pub fn in_use(&self) -> bool {
        self.depth.load(Acquire) != 0
    }

    /// Waits until the permit is granted or `give_up` returns true. `give_up` is called again after
    /// each [`nudge`](Permit::nudge). Called by the thread itself. Async-signal-safe if `give_up`
    /// is.
    #[cold]
    pub fn wait_until(&self, give_up: impl Fn() -> bool) {
        self.waiting.store(1, SeqCst);
        while self.revoked.load(SeqCst) != 0 && !give_up() {
            #[cfg(not(loom))]
            futex_wait(&self.revoked, 1);
            #[cfg(loom)]
            loom::thread::yield_now();
        }
        self.waiting.store(0, Relaxed);
    }

    /// Makes a thread that waits in [`wait_until`](Permit::wait_until) call `give_up` once more.
    /// The caller first changes the condition that `give_up` checks, and executes a full barrier. A
    /// nudge can be missed, so the caller repeats it until the thread has noticed the change.
    pub fn nudge(&self) {
        if self.waiting.load(SeqCst) != 0 {
            #[cfg(not(loom))]
            futex_wake(&self.revoked);
        }
    }

    /// Revokes the permit, so that the thread is outside of all uses until the permit is granted
    /// again. `barrier` makes all threads pass a full memory barrier
    /// ([`heavy_barrier`](super::heavy_barrier)). Only one supervisor at a time may call this.
    ///
    /// # Errors
    /// [`Busy`] if a use is under way. The permit is then not revoked.
    pub fn revoke(&self, barrier: impl FnOnce()) -> Result<(), Busy> {
        self.revoked.store(1, SeqCst);
        barrier();
        if self.depth.load(Acquire) == 0 {
            return Ok(());
        }
        self.grant();
        self.nudge();
        Err(Busy)
    }

    /// Grants the permit again. This does not wake the thread if it waits; the caller must call
    /// [`nudge`](Permit::nudge) for that, at once or later.
    pub fn grant(&self) {
        self.revoked.store(0, SeqCst);
    }

    /// Returns whether the thread waits in [`wait_until`](Permit::wait_until).
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.waiting.load(SeqCst) != 0
    }

    /// Returns whether the permit has been revoked.
    #[must_use]
    pub fn is_revoked(&self) -> bool {
        self.revoked.load(Acquire) != 0
    }

    /// Requests that the next outermost [`leave`](Permit::leave) returns true. Returns whether a
    /// use is still under way. If none is, the last `leave` may have missed the request, so the
    /// caller must check again at once. `barrier` is that of [`revoke`](Permit::revoke).
    pub fn ask(&self, barrier: impl FnOnce()) -> bool {
        self.notify_requested.store(1, SeqCst);
        barrier();
        self.in_use()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::dispatch::{heavy_barrier, register_barrier};
    use std::cell::UnsafeCell;
    use std::sync::atomic::{AtomicBool, AtomicU64};
    use std::time::{Duration, Instant};

    #[test]
    fn a_permit_in_use_is_not_revoked() {
        let permit = Permit::new();
        permit.enter();
        permit.enter();
        assert_eq!(permit.revoke(|| ()), Err(Busy));
        assert!(permit.ask(|| ()));
        assert!(!permit.leave(), "not the outermost");
        assert!(permit.leave());
        assert_eq!(permit.revoke(|| ()), Ok(()));
        assert!(permit.is_revoked());
        permit.grant();
        permit.enter();
        assert!(!permit.leave(), "asked once, notified once");
    }

    struct PlainCounter(UnsafeCell<u64>);
    // SAFETY: the permit lets only one thread at a time touch the counter.
    unsafe impl Sync for PlainCounter {}

    impl PlainCounter {
        /// Adds one.
        ///
        /// # Safety
        /// No other thread calls this meanwhile.
        unsafe fn increment(&self) {
            // SAFETY: the caller guarantees that no other thread uses the cell.
            unsafe { *self.0.get() += 1 };
        }
    }

    /// A thread uses plain memory all the time. Another thread repeatedly revokes the permit, uses
    /// the memory, and grants the permit again. No addition may be lost.
    #[test]
    fn shared_memory_is_used_by_one_thread_at_a_time() {
        register_barrier().unwrap();
        let (permit, shared, stop) = (
            Permit::new(),
            PlainCounter(UnsafeCell::new(0)),
            AtomicBool::new(false),
        );
        let thread_count = AtomicU64::new(0);
        let mut supervisor_count = 0u64;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    permit.enter();
                    // SAFETY: this thread is within a use, so the permit keeps the other one out.
                    unsafe { shared.increment() };
                    thread_count.fetch_add(1, Relaxed);
                    let _ = permit.leave();
                }
            });
            let began = Instant::now();
            // The race lasts until both threads have used the memory often; the time that this
            // takes depends on the machine's load.
            let is_long_enough = |supervisor_count| {
                thread_count.load(Relaxed) > 1_000
                    && supervisor_count > 1_000
                    && began.elapsed() > Duration::from_millis(100)
            };
            while !is_long_enough(supervisor_count) && began.elapsed() < Duration::from_secs(30) {
                if permit.revoke(heavy_barrier).is_ok() {
                    for _ in 0..10 {
                        // SAFETY: the permit of the only other thread that uses the counter is
                        // revoked.
                        unsafe { shared.increment() };
                        supervisor_count += 1;
                    }
                    permit.grant();
                    permit.nudge();
                } else {
                    std::thread::yield_now();
                }
            }
            stop.store(true, Relaxed);
        });
        let thread_count = thread_count.into_inner();
        assert!(thread_count > 0 && supervisor_count > 0);
        assert_eq!(shared.0.into_inner(), thread_count + supervisor_count);
    }
}
