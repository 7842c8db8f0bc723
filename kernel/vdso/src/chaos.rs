//! Fault injection for tests (*chaos*) in a program: see `kernel/src/chaos.rs`.
//!
//! The scheduler's chaos mode shuffles the ready coroutines of a level, and requests preemption at
//! every other pick. A program that honoured every request would keep yielding, and a program that
//! yields until `upshift_need_preempt` returns 0 might never advance. Therefore only one request in
//! four, at random, is reported to the program.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use os_abi::shared;

/// State of the random number generator; 0 without chaos.
static STATE: AtomicU64 = AtomicU64::new(0);

/// Returns the seed that the kernel has given this process; `None` without chaos.
pub(crate) fn seed() -> Option<u64> {
    match os_pages::shared(shared::CHAOS).load(Relaxed) {
        0 => None,
        seed => Some(seed),
    }
}

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

/// Returns whether the thread yields its hart after this poll although no work is more urgent.
#[inline]
pub(crate) fn forces_yield() -> bool {
    random(8) == Some(0)
}
