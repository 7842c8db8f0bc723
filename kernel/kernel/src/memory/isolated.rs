//! The isolated build: page tables of programs map nothing of the kernel except its *gate*, the
//! code that changes the table on each trap (`arch/gate.rs`), as with page-table isolation (KPTI)
//! in Linux.
//!
//! A change flushes no translation, because each space has its own ASID and no page is global. The
//! kernel has ASID 0. When a space ends, its ASID is assigned to another space; a hart flushes the
//! translations of this ASID once, before it first runs the new space.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use super::pagetable::{Mapping, PageTable};
use super::{KERNEL_TABLE, OutOfMemory};
use crate::arch::lock::{IrqLock, Once};
use crate::arch::{csr, gate, hart_index};
use crate::command_line::refuse;

/// Maximum number of ASIDs in use: two for each process, because `exec` needs two.
pub(crate) const ASIDS: usize = 512;

/// Position of the ASID in `satp`.
const SHIFT: u32 = 44;

/// Bitmap of the ASIDs in use, and the number of ASIDs.
static IN_USE: IrqLock<([u64; ASIDS / 64], usize)> = IrqLock::new(([0; ASIDS / 64], 0));

/// Table that maps only the gate.
static GATE_TABLE: Once<PageTable> = Once::new();

/// Sets up the gate and the ASIDs. Called while booting, on the kernel's table.
pub(super) fn init() -> Result<(), OutOfMemory> {
    let (text, words) = gate::pages();
    let mut table = PageTable::new()?;
    table.map_direct(text, Mapping::KERNEL_TEXT)?;
    table.map_direct(words, Mapping::KERNEL_DATA)?;
    GATE_TABLE.set(table);
    gate::set_kernel(KERNEL_TABLE.get().satp());
    let last = csr::last_asid();
    if last == 0 {
        refuse("this processor has no ASIDs; build without --isolated");
    }
    let mut in_use = IN_USE.lock();
    in_use.0[0] = 1;
    in_use.1 = ASIDS.min(last + 1);
    Ok(())
}

/// The ASID of a space, which distinguishes its translations from those of other spaces.
pub(crate) struct Asid {
    asid: usize,
    /// Bitmap of the harts that have run the space.
    harts: AtomicU64,
}

impl Asid {
    /// Takes an ASID. O(ASIDs / 64).
    ///
    /// # Errors
    /// [`OutOfMemory`] if all ASIDs are in use.
    pub(crate) fn new() -> Result<Asid, OutOfMemory> {
        let mut in_use = IN_USE.lock();
        let count = in_use.1;
        let free = |(at, word): (usize, &u64)| {
            let bit = word.trailing_ones() as usize;
            (bit < 64).then_some(at * 64 + bit)
        };
        let asid = in_use.0.iter().enumerate().find_map(free);
        let asid = asid.filter(|asid| *asid < count).ok_or(OutOfMemory)?;
        in_use.0[asid / 64] |= 1 << (asid % 64);
        Ok(Asid {
            asid,
            harts: AtomicU64::new(0),
        })
    }

    #[cfg(feature = "selftest")]
    pub(crate) fn asid(&self) -> usize {
        self.asid
    }

    pub(super) fn satp(&self, table: &PageTable) -> usize {
        table.satp() | self.asid << SHIFT
    }

    /// Sets the table that the calling hart uses in user mode.
    ///
    /// # Safety
    /// The table contains the gate, and lives until another table is set or [`leave`] is called.
    pub(super) unsafe fn enter(&self, satp: usize) {
        let hart = hart_index();
        if self.harts.fetch_or(1 << hart, Relaxed) & 1 << hart == 0 {
            csr::flush_translations_of(self.asid);
        }
        // SAFETY: the caller guarantees that the table contains the gate and stays alive.
        unsafe { gate::set_program(hart, satp) };
    }
}

impl Drop for Asid {
    fn drop(&mut self) {
        IN_USE.lock().0[self.asid / 64] &= !(1 << (self.asid % 64));
    }
}

/// Does nothing, because the gate has already installed the kernel's table on the calling hart.
pub(super) fn leave() {}

/// Returns the table whose upper half every program shares.
pub(crate) fn upper_half_table() -> &'static PageTable {
    GATE_TABLE.get()
}
