//! Driver of the platform-level interrupt controller (PLIC), which routes interrupt sources to
//! harts.

use super::Register;
use crate::machine::{Device, Kind};
use crate::memory::PhysAddr;

/// The controller. A *context* is a hart in a privilege mode; the device tree numbers the contexts.
pub(crate) struct Plic {
    base: usize,
}

impl Plic {
    pub(crate) fn new(device: Device) -> Option<Plic> {
        let base = device.base().get();
        (device.kind() == Kind::Plic).then_some(Plic { base })
    }

    fn register(&self, offset: usize) -> Option<Register<u32>> {
        let address = PhysAddr::new(self.base.checked_add(offset)?);
        // SAFETY: according to the device tree this is a PLIC, which accesses no memory.
        unsafe { Register::new(address) }
    }

    /// Lowers the threshold of a context to 0, so that sources of any priority interrupt the
    /// context.
    pub(crate) fn open(&self, context: usize) {
        self.set_threshold(context, 0);
    }

    /// Raises the threshold of a context, so that no source interrupts the context.
    #[cfg(feature = "selftest")]
    pub(crate) fn close(&self, context: usize) {
        self.set_threshold(context, 7);
    }

    fn set_threshold(&self, context: usize, value: u32) {
        if let Some(threshold) = self.register(0x20_0000 + 0x1000 * context) {
            threshold.write(value);
        }
    }

    /// Enables or disables a source for a context. The caller serializes calls for all sources.
    pub(crate) fn enable(&self, source: u32, context: usize, enabled: bool) {
        let (word, bit) = (4 * (source as usize / 32), 1 << (source % 32));
        if let Some(priority) = self.register(4 * source as usize) {
            priority.write(1);
        }
        if let Some(enable) = self.register(0x2000 + 0x80 * context + word) {
            let others = enable.read() & !bit;
            enable.write(others | if enabled { bit } else { 0 });
        }
    }

    /// Calls `f` with each source that is pending for a context.
    pub(crate) fn serve(&self, context: usize, mut f: impl FnMut(u32)) {
        let Some(claim) = self.register(0x20_0004 + 0x1000 * context) else {
            return;
        };
        loop {
            match claim.read() {
                0 => return,
                source => {
                    f(source);
                    claim.write(source);
                }
            }
        }
    }
}
