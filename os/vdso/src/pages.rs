//! The pages that the kernel and the program both look at, word by word.
//!
//! They are mapped in every process before it starts (`TRACE` if the word `TRACING` of
//! the shared page says so), and hold nothing but words that both sides access
//! atomically; so a reference to a word is sound for as long as the process lives. An
//! access is a load or a store.

use core::arch::asm;
use core::sync::atomic::AtomicU64;

use os_abi::layout;
use os_abi::thread::LINE_WORDS;

const WORDS: usize = layout::PAGE / 8;

#[inline]
fn word(page: usize, index: usize) -> &'static AtomicU64 {
    assert!(index < WORDS);
    // SAFETY: within a page of the module's.
    unsafe { &*((page as *const AtomicU64).add(index)) }
}

/// A word of the page that is the process's own (`os_abi::shared`).
#[inline]
pub(crate) fn shared(index: usize) -> &'static AtomicU64 {
    word(layout::SHARED, index)
}

/// A word of the page of traces (`os_abi::trace`), while `TRACING` is not 0.
#[inline]
pub(crate) fn trace(index: usize) -> &'static AtomicU64 {
    word(layout::TRACE, index)
}

/// The global bitmap, which only the kernel writes.
#[inline]
pub(crate) fn global() -> &'static AtomicU64 {
    word(layout::GLOBAL, 0)
}

/// The first word of the calling thread's line.
#[inline]
fn first() -> *const AtomicU64 {
    let first;
    // SAFETY: reads a register that the kernel has set and nothing else uses. `pure`:
    // within a call, whatever its length, it is the same thread.
    unsafe { asm!("mv {}, tp", out(reg) first, options(pure, nomem, nostack, preserves_flags)) };
    first
}

/// A word of the calling thread's line (`os_abi::thread`), by the register in which the
/// kernel has put the address of the line.
#[inline]
pub(crate) fn line(word: usize) -> &'static AtomicU64 {
    assert!(word < LINE_WORDS);
    // SAFETY: within the line, which is within a page of the module's.
    unsafe { &*first().add(word) }
}

/// A word of the line of a thread of the process.
#[inline]
pub(crate) fn line_of(index: usize, word_of_line: usize) -> &'static AtomicU64 {
    assert!(word_of_line < LINE_WORDS);
    word(layout::THREADS, index * LINE_WORDS + word_of_line)
}

/// The number of the calling thread in its process.
pub(crate) fn line_index() -> usize {
    (first().addr() - layout::THREADS) / (8 * LINE_WORDS)
}
