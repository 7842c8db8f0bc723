//! The platform's interrupt controller: which device, for which hart.
//!
//! All devices interrupt one hart, the first; its handler wakes coroutines,
//! which run where they like.

use super::Register;
use crate::memory::PhysAddr;

/// The controller, as one hart sees it. A *context* is a hart in a mode; the
/// device tree numbers them.
pub(crate) struct Plic {
    base: usize,
    context: usize,
}

impl Plic {
    /// The controller at a physical address, for a context: its threshold is
    /// opened. `None` if no device can be there.
    pub(crate) fn new(base: PhysAddr, context: usize) -> Option<Plic> {
        let plic = Plic {
            base: base.get(),
            context,
        };
        plic.register(0x20_0000 + 0x1000 * context)?.write(0);
        Some(plic)
    }

    fn register(&self, offset: usize) -> Option<Register<u32>> {
        Register::new(PhysAddr::new(self.base.checked_add(offset)?))
    }

    /// Lets a source through.
    pub(crate) fn enable(&self, source: u32) {
        let word = 4 * (source as usize / 32);
        if let Some(priority) = self.register(4 * source as usize) {
            priority.write(1);
        }
        if let Some(enable) = self.register(0x2000 + 0x80 * self.context + word) {
            enable.write(enable.read() | 1 << (source % 32));
        }
    }

    /// Calls `f` with each pending source in turn.
    pub(crate) fn serve(&self, mut f: impl FnMut(u32)) {
        let Some(claim) = self.register(0x20_0004 + 0x1000 * self.context) else {
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
