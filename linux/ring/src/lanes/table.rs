//! Which direct descriptors are known to hold nothing. Pure; owner only.
//!
//! ```text
//!          1 taken                  2 nothing is left
//!   empty ─────────► in use ───────────────────────────► empty
//!                      │  └──── 3 a file is left ───────► filled ── 4 the kernel says that it is closed ──► empty
//!                      └─────── 5 not known ────────────► retired ◄── 6 the kernel will not close it ── filled
//! ```

use super::LANES;
use super::course::Left;

/// Bits of lanes. What is in neither is in use, or retired.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Table {
    empty: u32,
    filled: u32,
}

impl Table {
    /// Of so many descriptors, all empty.
    pub(super) const fn new(lanes: u32) -> Table {
        Table {
            empty: u32::MAX >> (LANES - lanes),
            filled: 0,
        }
    }

    /// 1: an empty one of these.
    pub(super) fn take(&mut self, of: u32) -> Option<u32> {
        let index = (self.empty & of).trailing_zeros();
        (index < LANES).then(|| {
            self.empty &= !(1 << index);
            index
        })
    }

    /// 2, 3, 5: no entry names it any more.
    pub(super) fn ended(&mut self, index: u32, left: Left) {
        match left {
            Left::Nothing => self.empty |= 1 << index,
            Left::File => self.filled |= 1 << index,
            Left::Unknown => {}
        }
    }

    /// Those to close.
    pub(super) fn filled(self) -> u32 {
        self.filled
    }

    /// 4: these have been closed.
    pub(super) fn closed(&mut self, lanes: u32) {
        debug_assert_eq!(self.filled & lanes, lanes);
        self.filled &= !lanes;
        self.empty |= lanes;
    }

    /// 6: those to close, which stay as they are. Returns how many.
    pub(super) fn retire(&mut self) -> u32 {
        std::mem::take(&mut self.filled).count_ones()
    }
}
