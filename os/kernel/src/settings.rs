//! Sizes that the kernel's command line may say: `threads=N`, `stack=KIB`.

use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;

use os_abi::layout::STACK_SIZE;

use crate::memory::PAGE;
use crate::println;

/// Threads of all processes, if nothing else is said.
const THREADS: usize = 512;
/// The most that may be said: a place has 16 bits.
const MOST_THREADS: usize = 8192;

static THREADS_SAID: AtomicUsize = AtomicUsize::new(THREADS);
static STACK_SAID: AtomicUsize = AtomicUsize::new(STACK_SIZE);

/// Takes what the command line says, while booting. What is not possible is told, and left.
pub(crate) fn set(threads: Option<&str>, stack: Option<&str>) {
    let number = |word: Option<&str>, name: &str, most: usize| {
        let word = word?;
        let number = word.parse().ok().filter(|n| (1..=most).contains(n));
        if number.is_none() {
            println!("upshift: {name}={word}: say a number from 1 to {most}");
        }
        number
    };
    if let Some(threads) = number(threads, "threads", MOST_THREADS) {
        THREADS_SAID.store(threads, Relaxed);
    }
    if let Some(kib) = number(stack, "stack", STACK_SIZE >> 10) {
        STACK_SAID.store((kib << 10).next_multiple_of(PAGE), Relaxed);
    }
}

/// The most threads, of all processes.
pub(crate) fn threads() -> usize {
    THREADS_SAID.load(Relaxed)
}

/// Bytes of the stack of a program's first thread, which it has from the beginning.
pub(crate) fn first_stack() -> usize {
    STACK_SAID.load(Relaxed)
}
