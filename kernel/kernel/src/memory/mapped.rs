//! The default build: the kernel is mapped in every table, inaccessible to user mode, and a hart
//! keeps the table of a program while it is in the kernel. `isolated.rs` is the alternative.

use super::pagetable::PageTable;
use super::{KERNEL_TABLE, OutOfMemory};
use crate::arch::csr;

/// Placeholder for the ASID of a space. Without ASIDs, a change of the table flushes all
/// translations.
pub(super) struct Asid;

impl Asid {
    pub(super) fn new() -> Result<Asid, OutOfMemory> {
        Ok(Asid)
    }

    pub(super) fn satp(&self, table: &PageTable) -> usize {
        table.satp()
    }

    /// Installs the table of a program on the calling hart.
    ///
    /// # Safety
    /// The table maps the kernel, and lives until another table is installed or [`leave`] is
    /// called.
    pub(super) unsafe fn enter(&self, satp: usize) {
        // SAFETY: the caller guarantees that the table maps the kernel and stays alive.
        unsafe { csr::set_satp(satp) };
    }
}

/// Replaces the table of a program on the calling hart by the kernel's table.
pub(super) fn leave() {
    super::install_kernel_table();
}

/// Returns the table whose upper half every program shares.
pub(super) fn upper_half_table() -> &'static PageTable {
    KERNEL_TABLE.get()
}
