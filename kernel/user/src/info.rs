//! The kernel's information for a program about itself: the page `INFO`, read-only.

use os_abi::{ProcessInfo, layout};

pub(crate) fn info() -> &'static ProcessInfo {
    // SAFETY: the kernel has mapped this page and filled it with the structure;
    // it is never written.
    unsafe { &*(layout::INFO as *const ProcessInfo) }
}

/// Returns the argument that `spawn` got for this program.
#[must_use]
pub fn argument() -> &'static [u8] {
    let info = info();
    &info.argument[..info.argument_len as usize]
}

/// The number of this process.
#[must_use]
pub fn process_number() -> usize {
    info().process as usize
}

/// Ticks of the clock per second.
#[must_use]
pub fn ticks_per_second() -> u64 {
    info().ticks_per_second
}
