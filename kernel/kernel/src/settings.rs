//! Sizes that the kernel's command line can set: `threads=N`, `stack=KIB`.

use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;

use os_abi::layout::STACK_SIZE;

use crate::machine::Machine;
use crate::memory::PAGE;

/// Default value of `threads=N`.
const DEFAULT_THREADS: usize = 512;
/// Maximum value of `threads=N`. It is far below 2¹⁶, because a queue slot index has 16 bits.
const MAX_THREAD_LIMIT: usize = 8192;

/// Maximum number of threads of all programs.
static THREAD_LIMIT: AtomicUsize = AtomicUsize::new(DEFAULT_THREADS);
/// Size of the stack of a program's first thread, in bytes.
static FIRST_STACK: AtomicUsize = AtomicUsize::new(STACK_SIZE);

/// Applies the settings of the command line, while booting. Stops the machine if a value is
/// invalid.
pub(crate) fn set(machine: &Machine) {
    if let Some(threads) = machine.number("threads", MAX_THREAD_LIMIT) {
        THREAD_LIMIT.store(threads, Relaxed);
    }
    if let Some(kib) = machine.number("stack", STACK_SIZE >> 10) {
        FIRST_STACK.store((kib << 10).next_multiple_of(PAGE), Relaxed);
    }
}

pub(crate) fn threads() -> usize {
    THREAD_LIMIT.load(Relaxed)
}

/// Returns the size of the stack of a program's first thread in bytes; it is mapped when the
/// program starts.
pub(crate) fn first_stack() -> usize {
    FIRST_STACK.load(Relaxed)
}
