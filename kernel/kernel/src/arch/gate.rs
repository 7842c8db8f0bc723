//! The gate: the code that switches between the page table of a program and that of the kernel. In
//! an isolated kernel (feature `isolated`) it is the only part of the kernel that the page tables
//! of programs map.
//!
//! ```text
//!            program's table            both tables              kernel's table
//!  trap ──►  user_trap (`trap.rs`) ──►  csrw satp, kernel's ──►  registers to the context
//!  sret ◄──  registers of the gate ◄──  csrw satp, program's ◄── registers from the context
//! ```
//!
//! The gate consists of a page of text and a page with a [`Gate`] for each hart. Both have the same
//! addresses as in the kernel, and user mode can access neither. Tables differ by ASID, so no
//! translation is flushed on the way.

use core::ops::Range;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;

use crate::MAX_HARTS;
use crate::memory::{PAGE, PhysAddr};

/// Words that the assembly of `trap.rs` needs while the table of a program is installed.
#[repr(C)]
pub(super) struct Gate {
    /// `satp` of the kernel.
    kernel: AtomicUsize,
    /// `satp` of the program that runs on the hart, or ran there last.
    program: AtomicUsize,
    /// Context that receives the registers of the running thread.
    context: AtomicUsize,
    /// Register a1 of the program, while the kernel uses the register.
    a1: AtomicUsize,
}

pub(super) const KERNEL: usize = core::mem::offset_of!(Gate, kernel);
pub(super) const PROGRAM: usize = core::mem::offset_of!(Gate, program);
pub(super) const CONTEXT: usize = core::mem::offset_of!(Gate, context);
pub(super) const A1: usize = core::mem::offset_of!(Gate, a1);

#[repr(C, align(4096))]
struct Gates([Gate; MAX_HARTS]);

static GATES: Gates = Gates(
    [const {
        Gate {
            kernel: AtomicUsize::new(0),
            program: AtomicUsize::new(0),
            context: AtomicUsize::new(0),
            a1: AtomicUsize::new(0),
        }
    }; MAX_HARTS],
);

const _: () = assert!(size_of::<Gates>() == PAGE);

unsafe extern "C" {
    static __gate_start: u8;
    static __gate_end: u8;
}

pub(super) fn of(hart: usize) -> &'static Gate {
    &GATES.0[hart]
}

/// Returns the physical ranges of the gate: text, and words.
pub(crate) fn pages() -> (Range<usize>, Range<usize>) {
    let physical = |address: usize| PhysAddr::of_image(address).get();
    let text = physical(&raw const __gate_start as usize)..physical(&raw const __gate_end as usize);
    let words = physical(&raw const GATES as usize);
    (text, words..words + PAGE)
}

/// Sets the table that every hart uses in the kernel. Called while booting.
pub(crate) fn set_kernel(satp: usize) {
    for gate in &GATES.0 {
        gate.kernel.store(satp, Relaxed);
    }
}

/// Sets the table that a hart uses in user mode from now on.
///
/// # Safety
/// The table contains the gate, and lives until another table is set or the hart stays in the
/// kernel.
pub(crate) unsafe fn set_program(hart: usize, satp: usize) {
    GATES.0[hart].program.store(satp, Relaxed);
}
