//! Allocates memory for devices: contiguous frames that a device may read and write.
//!
//! ```text
//!            new              lend             reclaim
//!  (frames) ─────► Dma: held ──────► InDevice ────────► Dma: held ──► dropped: frames
//!                                      │ dropped
//!                                      ▼
//!                                   never used again
//! ```
//!
//! While a device may access the memory, the kernel has no reference to it, because [`InDevice`]
//! provides none. Dropping an [`InDevice`] leaks the memory, because the device may still write to
//! it. A function that passes the address to a device is `unsafe`, and must hold the [`InDevice`]
//! until the device has finished.

use core::ops::{Deref, DerefMut};

use super::frames::{allocate_block, free_block};
use super::{OutOfMemory, PAGE, PhysAddr};

/// Frames for a device, while the kernel owns them.
#[derive(Debug)]
pub(crate) struct Dma {
    start: PhysAddr,
    order: usize,
}

impl Dma {
    /// Allocates at least `bytes` zeroed bytes, aligned to their size.
    pub(crate) fn new(bytes: usize) -> Result<Dma, OutOfMemory> {
        let order = order_of(bytes);
        let start = allocate_block(order).ok_or(OutOfMemory)?;
        let mut dma = Dma { start, order };
        dma.fill(0);
        Ok(dma)
    }

    /// Lends the memory to the device, which may access it from now on.
    pub(crate) fn lend(self) -> InDevice {
        let dma = core::mem::ManuallyDrop::new(self);
        InDevice {
            start: dma.start,
            order: dma.order,
        }
    }

    fn len(&self) -> usize {
        PAGE << self.order
    }
}

impl Deref for Dma {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the value owns this block of frames, and no device has it.
        unsafe { core::slice::from_raw_parts(self.start.direct() as *const u8, self.len()) }
    }
}

impl DerefMut for Dma {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed mutably.
        unsafe { core::slice::from_raw_parts_mut(self.start.direct() as *mut u8, self.len()) }
    }
}

impl Drop for Dma {
    fn drop(&mut self) {
        // SAFETY: the block was allocated with this order, and no device has it.
        unsafe { free_block(self.start, self.order) };
    }
}

/// Returns the order of the smallest block with at least `bytes` bytes.
fn order_of(bytes: usize) -> usize {
    let frames = bytes.div_ceil(PAGE).max(1);
    frames.next_power_of_two().ilog2() as usize
}

/// Frames that a device may access.
#[derive(Debug)]
pub(crate) struct InDevice {
    start: PhysAddr,
    order: usize,
}

impl InDevice {
    pub(crate) fn address(&self) -> PhysAddr {
        self.start
    }

    /// Returns the memory at an address that a driver has stored instead of the value.
    ///
    /// # Safety
    /// A [`Dma::new`] of `bytes` bytes was lent at this address, and its [`InDevice`] no longer
    /// exists.
    pub(crate) unsafe fn from_raw(start: PhysAddr, bytes: usize) -> InDevice {
        InDevice {
            start,
            order: order_of(bytes),
        }
    }

    /// Reclaims the memory from the device.
    ///
    /// # Safety
    /// The device no longer accesses the memory, or never got its address.
    pub(crate) unsafe fn reclaim(self) -> Dma {
        Dma {
            start: self.start,
            order: self.order,
        }
    }
}
