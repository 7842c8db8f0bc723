//! RISC-V: registers, traps, firmware, and the devices of every machine.
//!
//! This module, `memory` and the virtio drivers are the only places with `unsafe`, and each block
//! states its reason. The module contains no policy.

pub(crate) mod boot;
pub(crate) mod csr;
pub(crate) mod finisher;
#[cfg(feature = "isolated")]
pub(crate) mod gate;
pub(crate) mod host;
#[cfg(feature = "kernel-threads")]
pub(crate) mod kernel_thread;
pub(crate) mod lock;
pub(crate) mod plic;
pub(crate) mod sbi;
pub(crate) mod trap;
pub(crate) mod uart;

use core::arch::asm;
use core::ptr::{read_volatile, write_volatile};

use crate::memory::PhysAddr;

/// Returns the number of the calling hart: the index of its vCPU, not the hart id of the firmware.
/// From `boot.rs` on, `tp` contains this number.
#[inline]
pub(crate) fn hart_index() -> usize {
    let index;
    // SAFETY: reads `tp`, which only `boot.rs` and `trap.rs` write.
    unsafe { asm!("mv {}, tp", out(reg) index, options(nomem, nostack)) };
    index
}

/// A device register of one byte or word.
#[derive(Clone, Copy)]
pub(crate) struct Register<T>(*mut T);

// SAFETY: the value is an address; each access through it is a separate volatile access.
unsafe impl<T> Send for Register<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Register<T> {}

impl<T: Copy> Register<T> {
    /// Returns the register at a physical address, or `None` if the address is unaligned or not
    /// below [`crate::memory::DEVICE_END`].
    ///
    /// # Safety
    /// No value written to the register makes the device access memory other than the memory
    /// allocated for it (`memory/dma.rs`).
    pub(crate) unsafe fn new(address: PhysAddr) -> Option<Register<T>> {
        let end = address.get().checked_add(size_of::<T>())?;
        let is_aligned = address.get().is_multiple_of(align_of::<T>());
        (end <= crate::memory::DEVICE_END && is_aligned)
            .then(|| Register(address.direct() as *mut T))
    }

    pub(crate) fn read(self) -> T {
        // SAFETY: device space is mapped for as long as the kernel runs and contains no Rust
        // object; the constructor has checked the alignment.
        unsafe { read_volatile(self.0) }
    }

    pub(crate) fn write(self, value: T) {
        // SAFETY: as above; and the caller of `new` guarantees that no written value harms memory.
        unsafe { write_volatile(self.0, value) };
    }
}
