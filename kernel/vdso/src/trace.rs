//! Records the state changes of coroutines for the kernel (`os_abi::trace`). Costs a load while
//! tracing is off.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use os_abi::number;
use os_abi::shared::TRACING;
use os_abi::trace::{Change, ENTRIES, ENTRY_WORDS, FIRST, HARTS, LOST, NEXT, pack};
use upshift_core::{CoroutineId, Host, Level, State};

use crate::host::{self, VdsoHost};
use os_pages::trace as word;

#[inline]
pub(crate) fn is_on() -> bool {
    os_pages::shared(TRACING).load(Relaxed) != 0
}

#[cold]
pub(crate) fn record_state(id: CoroutineId, level: Level, state: State) {
    let time = VdsoHost.now();
    let thread = os_pages::line_index();
    let hart = word(HARTS + thread).load(Relaxed);
    let Some(entry) = claim_entry().or_else(|| {
        // The kernel empties the page whenever a thread enters the kernel.
        host::call(number::clock, 0, 0);
        claim_entry()
    }) else {
        word(LOST).fetch_add(1, Relaxed);
        return;
    };
    let change = Change {
        state: state as u8,
        level: level.get(),
        thread: thread as u8,
        hart: hart as u8,
    };
    word(entry).store(time, Relaxed);
    word(entry + 1).store(id.to_u64(), Relaxed);
    word(entry + 2).store(pack(change), Release);
}

/// Claims a free entry for the caller, and returns the index of its first word.
fn claim_entry() -> Option<usize> {
    let next = word(NEXT);
    loop {
        let seen = next.load(Acquire);
        let entry = FIRST + seen as usize % ENTRIES * ENTRY_WORDS;
        if word(entry + 2).load(Acquire) != 0 {
            return None;
        }
        let claimed = next.compare_exchange(seen, seen + 1, Acquire, Relaxed);
        if claimed.is_ok() {
            return Some(entry);
        }
    }
}
