//! Traces of user coroutines: the vDSO writes them to a page, which the kernel empties whenever a
//! thread of the process enters the kernel.
//!
//! The page [`TRACE`](crate::layout::TRACE) exists only while the kernel traces, and
//! [`TRACING`](crate::shared::TRACING) is set. A thread claims an entry by incrementing [`NEXT`],
//! and fills its words in order; the kernel reads the entries in order and resets the last word to
//! 0. A thread that finds the page full makes any system call, so that the kernel empties the page.
//! The kernel does not trust the entries.

/// Number of all entries that have been claimed (program → kernel).
pub const NEXT: usize = 0;
/// Number of entries for which the page had no space (program → kernel).
pub const LOST: usize = 1;
/// First of the words that name the hart of each thread (kernel → program).
pub const HARTS: usize = 8;
/// First word of the entries.
pub const FIRST: usize = HARTS + crate::thread::MAX_THREADS;
/// Number of words of an entry: time, id of the coroutine, and the [`pack`]ed change.
pub const ENTRY_WORDS: usize = 3;
/// Number of entries of the page.
pub const ENTRIES: usize = (512 - FIRST) / ENTRY_WORDS;

/// A change of state: the coroutine has entered `state`, a number of `upshift_core::State`, with a
/// level, during a poll by this thread on this hart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// State that was entered.
    pub state: u8,
    /// Level of the coroutine.
    pub level: u8,
    /// Thread that polled the coroutine.
    pub thread: u8,
    /// Hart on which the thread ran.
    pub hart: u8,
}

/// Returns the change as a word, which is never 0.
#[must_use]
pub const fn pack(change: Change) -> u64 {
    let bytes = [change.state, change.level, change.thread, change.hart];
    1 << 32 | u32::from_le_bytes(bytes) as u64
}

/// Returns the change in a word, or `None` for 0, an entry that is not filled.
#[must_use]
pub const fn unpack(word: u64) -> Option<Change> {
    if word == 0 {
        return None;
    }
    let [state, level, thread, hart] = (word as u32).to_le_bytes();
    Some(Change {
        state,
        level,
        thread,
        hart,
    })
}
