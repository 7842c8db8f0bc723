//! Chaos in a program: see `kernel/src/chaos.rs`.
//!
//! The scheduler's chaos mode shuffles what is ready at one level, and asks for
//! preemption at every other pick. A program that heeded that always would give its hart away
//! after each poll, and one that asks [`honours`] until the answer is no would never get
//! anywhere: so it is heeded one time in four.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use os_abi::shared;

static STATE: AtomicU64 = AtomicU64::new(0);

/// The seed that the kernel has given this process; `None`: no chaos.
pub(crate) fn seed() -> Option<u64> {
    match os_pages::shared(shared::CHAOS).load(Relaxed) {
        0 => None,
        seed => Some(seed),
    }
}

/// Switches it on, if there is a seed.
pub(crate) fn init() {
    STATE.store(seed().unwrap_or(0), Relaxed);
}

/// A number below `limit`; `None`: no chaos.
#[inline]
fn random(limit: u64) -> Option<u64> {
    let mut state = STATE.load(Relaxed);
    if state == 0 {
        return None;
    }
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    // Two threads may draw the same number: no harm.
    STATE.store(state, Relaxed);
    Some((state >> 16) % limit)
}

/// Is a request for preemption heeded? Without chaos always.
#[inline]
pub(crate) fn honours() -> bool {
    random(4).is_none_or(|number| number == 0)
}

/// Does the thread give its hart away after this poll, for no reason?
#[inline]
pub(crate) fn yields() -> bool {
    random(8) == Some(0)
}
