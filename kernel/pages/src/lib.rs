//! Access to the words of the pages that the kernel and a program share, for the library of user
//! programs and for the vDSO.
//!
//! Most pages are mapped in every process before the process starts. `TRACE` is mapped only if the
//! word `TRACING` of the shared page is set. A page of the completion ring is mapped by the first
//! call whose completion may be written to it. Both sides access the words atomically, so a
//! reference to a word is sound while the program runs. Words are only loaded and stored; there are
//! no read-modify-write operations.
//!
//! Each thread has a *line*, `LINE_WORDS` words in the page of threads (`os_abi::thread`).
//!
//! Only programs link this crate, because in the kernel these addresses belong to the loaded
//! process.

#![no_std]

pub mod critical;

use core::arch::asm;
use core::sync::atomic::AtomicU64;

use os_abi::layout;
use os_abi::shared::RING_PAGES;
use os_abi::thread::LINE_WORDS;

const WORDS: usize = layout::PAGE / 8;

#[inline]
fn word(page: usize, index: usize) -> &'static AtomicU64 {
    assert!(index < WORDS);
    // SAFETY: the word is within a page of this module, which is mapped and aligned.
    unsafe { &*((page as *const AtomicU64).add(index)) }
}

/// Returns a word of the page that the kernel shares with this process alone (`os_abi::shared`).
#[inline]
#[must_use]
pub fn shared(index: usize) -> &'static AtomicU64 {
    word(layout::SHARED, index)
}

/// Returns a word of a mapped page of the completion ring.
#[inline]
#[must_use]
pub fn completion(page: usize, index: usize) -> &'static AtomicU64 {
    assert!(page < RING_PAGES);
    word(layout::COMPLETIONS + page * layout::PAGE, index)
}

/// Returns a word of the page of traces (`os_abi::trace`), which is mapped while `TRACING` is not
/// 0.
#[inline]
#[must_use]
pub fn trace(index: usize) -> &'static AtomicU64 {
    word(layout::TRACE, index)
}

/// Returns the global bitmap, which only the kernel writes: bit L is set if work of level L waits
/// for a hart.
#[inline]
#[must_use]
pub fn global() -> &'static AtomicU64 {
    word(layout::GLOBAL, 0)
}

/// Returns the clock, in ticks.
#[inline]
#[must_use]
pub fn time() -> u64 {
    let ticks;
    // SAFETY: the instruction only reads the clock.
    unsafe { asm!("rdtime {}", out(reg) ticks, options(nomem, nostack, preserves_flags)) };
    ticks
}

/// Returns the first word of the calling thread's line.
#[inline]
fn line_start() -> *const AtomicU64 {
    let first;
    // SAFETY: the instruction reads a register that the kernel has set and no other code uses.
    // `pure` is right because the thread does not change during a call.
    unsafe { asm!("mv {}, tp", out(reg) first, options(pure, nomem, nostack, preserves_flags)) };
    first
}

/// Returns the index of the calling thread in its process.
#[must_use]
pub fn line_index() -> usize {
    (line_start().addr() - layout::THREADS) / (8 * LINE_WORDS)
}

/// Returns a word of the calling thread's line (`os_abi::thread`), whose address the kernel has put
/// into a register.
#[inline]
#[must_use]
pub fn line(word: usize) -> &'static AtomicU64 {
    assert!(word < LINE_WORDS);
    // SAFETY: the word is within the line, which is within a mapped page.
    unsafe { &*line_start().add(word) }
}

/// Returns a word of the line of thread `index` of the process.
#[inline]
#[must_use]
pub fn line_of(index: usize, word_of_line: usize) -> &'static AtomicU64 {
    assert!(word_of_line < LINE_WORDS);
    word(layout::THREADS, index * LINE_WORDS + word_of_line)
}
