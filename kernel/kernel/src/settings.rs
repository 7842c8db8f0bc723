//! Sizes that the kernel's command line can set: `threads=N`, `stack=KIB`.

use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;

use os_abi::layout::STACK_SIZE;

use crate::machine::Machine;
use crate::memory::PAGE;

/// Default number of threads, of all processes.
const THREADS: usize = 512;
/// Maximum number of threads: a place has 16 bits.
const MOST_THREADS: usize = 8192;

static THREADS_SAID: AtomicUsize = AtomicUsize::new(THREADS);
static STACK_SAID: AtomicUsize = AtomicUsize::new(STACK_SIZE);

/// Takes the settings of the command line, while booting. An impossible value ends the machine.
pub(crate) fn set(machine: &Machine) {
    if let Some(threads) = machine.number("threads", MOST_THREADS) {
        THREADS_SAID.store(threads, Relaxed);
    }
    if let Some(kib) = machine.number("stack", STACK_SIZE >> 10) {
        STACK_SAID.store((kib << 10).next_multiple_of(PAGE), Relaxed);
    }
}

/// Returns the maximum number of threads, of all processes.
pub(crate) fn threads() -> usize {
    THREADS_SAID.load(Relaxed)
}

/// Returns the bytes of the stack of a program's first thread, mapped from the beginning.
pub(crate) fn first_stack() -> usize {
    STACK_SAID.load(Relaxed)
}
