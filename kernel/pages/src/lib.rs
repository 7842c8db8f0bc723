//! The pages that the kernel and a program both look at, word by word, as the program's side
//! sees them: that of the library and that of the vDSO.
//!
//! They are mapped in every process before it starts (`TRACE` if the word `TRACING` of the
//! shared page says so, a page of the completion ring when there has been a completion in it), and
//! hold nothing but words that both sides access atomically; so a reference to a word is sound
//! for as long as the program runs. An access is a load or a store.
//!
//! Only programs link it: in the kernel these addresses are those of whatever process is loaded.

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
    // SAFETY: within a page of the module's.
    unsafe { &*((page as *const AtomicU64).add(index)) }
}

/// A word of the page that is the process's own (`os_abi::shared`).
#[inline]
#[must_use]
pub fn shared(index: usize) -> &'static AtomicU64 {
    word(layout::SHARED, index)
}

/// A word of a page of the completion ring in which there has been a completion.
#[inline]
#[must_use]
pub fn completion(page: usize, index: usize) -> &'static AtomicU64 {
    assert!(page < RING_PAGES);
    word(layout::COMPLETIONS + page * layout::PAGE, index)
}

/// A word of the page of traces (`os_abi::trace`), while `TRACING` is not 0.
#[inline]
#[must_use]
pub fn trace(index: usize) -> &'static AtomicU64 {
    word(layout::TRACE, index)
}

/// The global bitmap, which only the kernel writes.
#[inline]
#[must_use]
pub fn global() -> &'static AtomicU64 {
    word(layout::GLOBAL, 0)
}

/// The clock, in ticks.
#[inline]
#[must_use]
pub fn time() -> u64 {
    let ticks;
    // SAFETY: reads the clock.
    unsafe { asm!("rdtime {}", out(reg) ticks, options(nomem, nostack, preserves_flags)) };
    ticks
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

/// The index of the calling thread among those of the process.
#[must_use]
pub fn line_index() -> usize {
    (first().addr() - layout::THREADS) / (8 * LINE_WORDS)
}

/// A word of the calling thread's line (`os_abi::thread`), by the register in which the
/// kernel has put the address of the line.
#[inline]
#[must_use]
pub fn line(word: usize) -> &'static AtomicU64 {
    assert!(word < LINE_WORDS);
    // SAFETY: within the line, which is within a page of the module's.
    unsafe { &*first().add(word) }
}

/// A word of the line of a thread of the process.
#[inline]
#[must_use]
pub fn line_of(index: usize, word_of_line: usize) -> &'static AtomicU64 {
    assert!(word_of_line < LINE_WORDS);
    word(layout::THREADS, index * LINE_WORDS + word_of_line)
}
