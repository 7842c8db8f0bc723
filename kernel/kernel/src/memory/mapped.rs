//! The default build: the kernel is in every table, inaccessible to user mode, and a hart keeps the
//! table of a program while it is in the kernel. `isolated.rs` is the alternative.

use super::pagetable::PageTable;
use super::{KERNEL_TABLE, OutOfMemory};
use crate::arch::csr;

/// Stands for the ASID of a space, which has none: a change of the table flushes all translations.
pub(super) struct Asid;

impl Asid {
    pub(super) fn new() -> Result<Asid, OutOfMemory> {
        Ok(Asid)
    }

    /// Returns the word for the `satp` register.
    pub(super) fn satp(&self, table: &PageTable) -> usize {
        table.satp()
    }

    /// Installs the table of a program on the calling hart.
    ///
    /// # Safety
    /// The table maps the kernel, and lives until another one is given or [`leave`] is called.
    pub(super) unsafe fn enter(&self, satp: usize) {
        // SAFETY: passed on.
        unsafe { csr::set_satp(satp) };
    }
}

/// Removes the table of a program from the calling hart.
pub(super) fn leave() {
    super::install_kernel_table();
}

/// Returns the table whose upper half is that of every program.
pub(super) fn visible() -> &'static PageTable {
    KERNEL_TABLE.get()
}
