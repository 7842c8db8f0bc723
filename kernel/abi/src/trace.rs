//! Traces of user coroutines: a page that the vDSO writes to and the kernel empties whenever a
//! thread of the process enters it.
//!
//! The page [`TRACE`](crate::layout::TRACE) exists only while the kernel traces, and
//! [`TRACING`](crate::shared::TRACING) is set then. A thread takes a place by adding to [`NEXT`],
//! fills its words, the last one last; the kernel reads them in order and makes the last one 0
//! again. A program that finds the page full makes any system call. The kernel does not trust the
//! entries.

/// Entries ever begun (program → kernel).
pub const NEXT: usize = 0;
/// Entries that found no place (program → kernel).
pub const LOST: usize = 1;
/// The first of a word for each thread: the hart it runs on (kernel → program).
pub const HARTS: usize = 8;
/// The first word of the entries.
pub const FIRST: usize = HARTS + crate::thread::MAX_THREADS;
/// Words of an entry: time, id of the coroutine, and the [`pack`]ed change.
pub const ENTRY_WORDS: usize = 3;
/// Entries of the page.
pub const ENTRIES: usize = (512 - FIRST) / ENTRY_WORDS;

/// A change of state: the coroutine has entered `state`, a number of `upshift_core::State`, with a
/// level, in the poll of a thread on a hart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The state that was entered.
    pub state: u8,
    /// The level of the coroutine.
    pub level: u8,
    /// The thread that did it.
    pub thread: u8,
    /// The hart it ran on.
    pub hart: u8,
}

/// Never 0.
#[must_use]
pub const fn pack(change: Change) -> u64 {
    let bytes = [change.state, change.level, change.thread, change.hart];
    1 << 32 | u32::from_le_bytes(bytes) as u64
}

/// The other way round; `None` for 0, a place that is not filled.
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
