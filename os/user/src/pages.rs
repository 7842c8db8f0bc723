//! The pages that the kernel and the program both look at, word by word.
//!
//! They are mapped in every process before it starts, and hold nothing but words that
//! both sides access atomically; so a reference to a word is sound for as long as the
//! program runs. An access is a load or a store.

use core::arch::asm;
use core::sync::atomic::AtomicU64;

use os_abi::layout;
use os_abi::shared::RING_PAGES;
use os_abi::thread::LINE_WORDS;

const WORDS: usize = layout::PAGE / 8;

/// A word of the page that is the process's own (`os_abi::shared`).
#[inline]
pub(crate) fn shared(index: usize) -> &'static AtomicU64 {
    assert!(index < WORDS);
    // SAFETY: within the page; see the module.
    unsafe { &*((layout::SHARED as *const AtomicU64).add(index)) }
}

/// A word of a page of the completion ring in which there has been a completion: the
/// kernel maps it before.
#[inline]
pub(crate) fn completion(page: usize, index: usize) -> &'static AtomicU64 {
    assert!(page < RING_PAGES && index < WORDS);
    let page = (layout::COMPLETIONS + page * layout::PAGE) as *const AtomicU64;
    // SAFETY: within the page; see the module.
    unsafe { &*page.add(index) }
}

/// The first word of the calling thread's line.
#[inline]
fn first() -> *const AtomicU64 {
    let first;
    // SAFETY: reads a register that the kernel has set and nothing else uses; `pure`,
    // for a call that returns has stayed on one thread.
    unsafe { asm!("mv {}, tp", out(reg) first, options(pure, nomem, nostack, preserves_flags)) };
    first
}

/// The index of the calling thread among those of the process.
pub(crate) fn line_index() -> usize {
    (first().addr() - layout::THREADS) / (8 * LINE_WORDS)
}

/// A word of the calling thread's line (`os_abi::thread`), by the register in which the
/// kernel has put the address of the line.
#[inline]
pub(crate) fn line(word: usize) -> &'static AtomicU64 {
    assert!(word < LINE_WORDS);
    // SAFETY: within the line, which is within a page; see the module.
    unsafe { &*first().add(word) }
}
