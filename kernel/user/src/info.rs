//! The page `INFO`, in which the kernel describes the process to its program. It is read-only.

use os_abi::{ProcessInfo, layout};

pub(crate) fn info() -> &'static ProcessInfo {
    // SAFETY: the kernel has mapped this page and filled it with the structure, and nobody writes
    // to it afterwards.
    unsafe { &*(layout::INFO as *const ProcessInfo) }
}

/// Returns the argument that the parent passed to `spawn`.
#[must_use]
pub fn argument() -> &'static [u8] {
    let info = info();
    &info.argument[..info.argument_len as usize]
}

/// Returns the number of this process.
#[must_use]
pub fn process_number() -> usize {
    info().process as usize
}

/// Returns the frequency of the clock, in ticks per second.
#[must_use]
pub fn ticks_per_second() -> u64 {
    info().ticks_per_second
}
