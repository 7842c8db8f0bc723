//! Chaos in a program: see `kernel/src/chaos.rs`.
//!
//! The scheduler's chaos mode shuffles the ready coroutines of a level, and requests preemption at
//! every other pick. A program that honoured every request would yield its hart after each poll,
//! and a program that calls [`honours_preemption`] until the answer is false would never advance.
//! Therefore a quarter of the requests are honoured. request in four is honoured.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use os_abi::shared;

static STATE: AtomicU64 = AtomicU64::new(0);

/// Returns the seed that the kernel has given this process; `None` without chaos.
pub(crate) fn seed() -> Option<u64> {
    match os_pages::shared(shared::CHAOS).load(Relaxed) {
        0 => None,
        seed => Some(seed),
    }
}

/// Enables chaos if there is a seed.
pub(crate) fn init() {
    STATE.store(seed().unwrap_or(0), Relaxed);
}

/// Returns a number below `limit`; `None` without chaos.
#[inline]
fn random(limit: u64) -> Option<u64> {
    let mut state = STATE.load(Relaxed);
    if state == 0 {
        return None;
    }
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    // Two threads may draw the same number, which is harmless.
    STATE.store(state, Relaxed);
    Some((state >> 16) % limit)
}

/// Returns whether a request for preemption is honoured; always true without chaos.
#[inline]
pub(crate) fn honours_preemption() -> bool {
    random(4).is_none_or(|number| number == 0)
}

/// Returns whether the thread yields its hart after this poll without a reason.
#[inline]
pub(crate) fn forces_yield() -> bool {
    random(8) == Some(0)
}
