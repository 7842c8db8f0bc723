//! Takes completions out of the ring, and waits for them.
//!
//! [`drain`] runs in the loop of a thread that serves a vCPU, or in the handler of a user
//! interrupt. The handler may stop a thread anywhere, so [`drain`] allocates nothing and only sets
//! atomics. One thread at a time drains, namely the thread that changes the word `DRAINING` to 1.
//! After this thread has changed the word back to 0, it checks the ring once more, so other threads
//! need not wait.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use os_abi::Error;
use os_abi::shared::{DRAINING, HANDLER, RING_HEAD, RING_TAIL, completion};

use super::operations;
use crate::{lock, sys, vdso};
use os_pages::shared as word;

/// Returns the words of completion number `n`, which must have arrived.
fn completion_words(n: u64) -> [u64; 3] {
    let (page, first) = completion(n);
    [0, 1, 2].map(|n| os_pages::completion(page, first + n).load(Relaxed))
}

/// Takes completions out like [`drain`]. If the check misses a completion that arrives at the same
/// time, the kernel causes an interrupt. Costs two loads if the ring is empty.
#[inline]
pub(crate) fn drain_if_any() {
    if word(RING_HEAD).load(Relaxed) != word(RING_TAIL).load(Relaxed) {
        drain();
    }
}

/// Takes all completions out, unless another thread does: stores results in their operations, and
/// wakes coroutines.
#[cold]
fn drain() {
    // Check again, because completions that arrived after the last check but before `DRAINING` was
    // cleared have caused no interrupt.
    while has_completions() {
        lock::enter();
        let claimed = word(DRAINING)
            .compare_exchange(0, 1, SeqCst, SeqCst)
            .is_ok();
        if claimed {
            take_completions();
            word(DRAINING).store(0, SeqCst);
        }
        lock::leave();
        if !claimed {
            return;
        }
    }
}

/// Returns whether there is a completion that has not been taken out.
#[must_use]
pub fn has_completions() -> bool {
    word(RING_HEAD).load(SeqCst) != word(RING_TAIL).load(SeqCst)
}

/// Calls `f` while the kernel treats this program as draining, so that no completion interrupts the
/// program. Completions that arrive meanwhile are taken out afterwards. `f` should be short.
pub fn without_interrupts<R>(f: impl FnOnce() -> R) -> R {
    while word(DRAINING)
        .compare_exchange(0, 1, SeqCst, SeqCst)
        .is_err()
    {
        core::hint::spin_loop();
    }
    let result = f();
    word(DRAINING).store(0, SeqCst);
    drain();
    result
}

/// Takes all completions. The caller has changed `DRAINING` to 1.
fn take_completions() {
    let mut head = word(RING_HEAD).load(Relaxed);
    let tail = word(RING_TAIL).load(Acquire);
    while head != tail {
        let [token, cid, result] = completion_words(head);
        head += 1;
        word(RING_HEAD).store(head, Release);
        operations::complete(token as usize, result as isize);
        // The coroutine is dead if the token was forged.
        vdso::upshift_wake(cid);
    }
}

/// Waits until there is a completion or a wake, unless a coroutine is ready or `stop` returns true.
///
/// No wake is lost, because from `upshift_prepare_park` on each wake ends the wait that follows,
/// and the kernel does not let the thread wait while the ring has a completion that no thread takes
/// out. A thread that resumes for a completion owns the word `DRAINING`.
pub(crate) fn wait_until_ready(stop: &impl Fn() -> bool) {
    if vdso::upshift_prepare_park() != 0 && !stop() {
        let is_draining = sys::park() == Ok(1);
        vdso::upshift_unpark();
        if is_draining {
            lock::enter();
            take_completions();
            word(DRAINING).store(0, SeqCst);
            lock::leave();
            drain();
        }
    } else {
        vdso::upshift_unpark();
    }
}

/// Ends the calls that were in flight at a `fork` with an error in the child, because they belong
/// to the parent.
pub(crate) fn fail_inherited_calls() {
    operations::complete_all(Error::NotInherited.code(), |cid| {
        vdso::upshift_wake(cid);
    });
}

pub(crate) fn enable_interrupts() {
    word(HANDLER).store(on_interrupt as *const () as u64, SeqCst);
}

static INTERRUPTS: AtomicU64 = AtomicU64::new(0);

/// Returns the number of interrupts of this program for completions.
#[must_use]
pub fn interrupts() -> u64 {
    INTERRUPTS.load(Relaxed)
}

/// Entry of the handler that the kernel calls for a completion. The kernel preserves all registers.
extern "C" fn on_interrupt() -> ! {
    INTERRUPTS.fetch_add(1, Relaxed);
    vdso::upshift_interrupt(1);
    drain();
    vdso::upshift_interrupt(0);
    loop {
        // This call does not return.
        let _ = sys::return_from_interrupt();
    }
}
