//! Functions that access a control and status register, or execute a fence or `wfi`. Each is a
//! single instruction, except the functions that change the page table.
//!
//! The module contains only the registers that the kernel uses. Every function here may be called
//! at any time in S-mode except [`set_satp`], which affects every pointer.

use core::arch::asm;

/// Top bit of `scause`: the trap is an interrupt.
pub(crate) const INTERRUPT: usize = 1 << 63;
/// Software interrupt (an IPI), timer, external interrupt (PLIC): bits of `sie` and `sip`, and
/// codes of `scause`.
pub(crate) const SOFTWARE: usize = 1;
pub(crate) const TIMER: usize = 5;
pub(crate) const EXTERNAL: usize = 9;

/// `sstatus`: interrupts enabled in S-mode.
const SIE: usize = 1 << 1;
/// `sstatus`: interrupts are enabled after `sret`.
pub(crate) const SPIE: usize = 1 << 5;
/// `sstatus`: user mode has 64-bit registers.
pub(crate) const UXL_64: usize = 0b10 << 32;
/// `sstatus`: floating-point state: off, initial, clean, dirty.
pub(crate) const FS: usize = 0b11 << 13;
pub(crate) const FS_INITIAL: usize = 0b01 << 13;

macro_rules! read {
    ($csr:literal) => {{
        let value: usize;
        // SAFETY: reading this register has no side effect.
        unsafe { asm!(concat!("csrr {}, ", $csr), out(reg) value, options(nomem, nostack)) };
        value
    }};
}

/// Returns the ticks of the clock since the machine started, without an SBI call.
#[inline]
pub(crate) fn time() -> u64 {
    read!("time") as u64
}

/// Returns the cause of the last trap.
#[inline]
pub(crate) fn scause() -> usize {
    read!("scause")
}

/// Returns the address or instruction that caused the last trap.
#[inline]
pub(crate) fn stval() -> usize {
    read!("stval")
}

/// Returns the address that the last trap interrupted.
#[inline]
pub(crate) fn sepc() -> usize {
    read!("sepc")
}

#[inline]
pub(crate) fn clear_software_interrupt() {
    // SAFETY: clears only the pending bit of the IPI of this hart; no memory is accessed.
    unsafe { asm!("csrc sip, {}", in(reg) 1 << SOFTWARE, options(nostack)) };
}

/// Masks interrupts and returns whether they were enabled.
#[inline]
pub(crate) fn interrupts_off() -> bool {
    let before: usize;
    // SAFETY: masking interrupts delays handlers, nothing else. `nomem` is absent because the
    // accesses that follow must not move before the instruction.
    unsafe { asm!("csrrc {}, sstatus, {}", out(reg) before, in(reg) SIE, options(nostack)) };
    before & SIE != 0
}

/// Enables interrupts if `before`, the result of [`interrupts_off`], is true.
#[inline]
pub(crate) fn interrupts_restore(before: bool) {
    if before {
        // SAFETY: interrupt handlers may run at any point of kernel code that has not masked
        // interrupts; they use only locks that mask interrupts.
        unsafe { asm!("csrs sstatus, {}", in(reg) SIE, options(nostack)) };
    }
}

/// Waits until an interrupt is pending, masked or not.
#[inline]
pub(crate) fn wait_for_interrupt() {
    // SAFETY: `wfi` only delays this hart; it ends when an interrupt is pending.
    unsafe { asm!("wfi", options(nostack)) };
}

/// Enables IPIs, timer and external interrupts on this hart; it takes them when interrupts are
/// unmasked.
pub(crate) fn enable_sources() {
    let sources = 1 << SOFTWARE | 1 << TIMER | 1 << EXTERNAL;
    // SAFETY: `boot.rs` has set the trap vector, and handlers exist for all three interrupts.
    unsafe { asm!("csrs sie, {}", in(reg) sources, options(nostack)) };
}

/// Switches floating point off in the kernel, so that a floating-point instruction traps instead of
/// changing the registers of a user program.
pub(crate) fn floating_point_off() {
    // SAFETY: the kernel has no floating-point state that could be lost.
    unsafe { asm!("csrc sstatus, {}", in(reg) FS, options(nostack)) };
}

/// Arms the timer of this hart through the Sstc extension.
#[inline]
pub(crate) fn set_stimecmp(deadline: u64) {
    // SAFETY: only sets or clears the pending bit of this hart's timer; no memory is accessed.
    unsafe { asm!("csrw 0x14d, {}", in(reg) deadline, options(nostack)) };
}

/// Sets the trap vector.
///
/// # Safety
/// `handler` is a trap entry for the mode that runs next.
pub(crate) unsafe fn set_stvec(handler: usize) {
    // SAFETY: the caller guarantees that `handler` is a trap entry.
    unsafe { asm!("csrw stvec, {}", in(reg) handler, options(nostack)) };
}

/// Installs a page table and flushes old translations.
///
/// # Safety
/// The table maps the kernel as the current table does, and lives until another table is installed.
pub(crate) unsafe fn set_satp(satp: usize) {
    // SAFETY: the caller guarantees that the table maps the kernel and stays alive. `nomem` is
    // absent because later accesses use the new table.
    unsafe { asm!("csrw satp, {}", "sfence.vma", in(reg) satp, options(nostack)) };
}

#[inline]
pub(crate) fn flush_translations() {
    // SAFETY: a flush changes no memory and no register; translations are read again from the
    // table.
    unsafe { asm!("sfence.vma", options(nostack)) };
}

#[cfg(feature = "isolated")]
pub(crate) fn flush_translations_of(asid: usize) {
    // SAFETY: a flush changes no memory and no register; translations are read again from the
    // table.
    unsafe { asm!("sfence.vma x0, {}", in(reg) asid, options(nostack)) };
}

/// Returns the highest ASID of the processor, or 0 if it has no ASIDs. The kernel's table, whose
/// ASID is 0, must be installed.
#[cfg(feature = "isolated")]
pub(crate) fn last_asid() -> usize {
    const ALL: usize = 0xffff;
    let read: usize;
    // SAFETY: the address of the table stays the same; bits of the ASID that the processor lacks
    // read as 0. The flush discards translations under the other ASID.
    unsafe {
        asm!(
            "csrr {old}, satp",
            "or   {all}, {all}, {old}",
            "csrw satp, {all}",
            "csrr {all}, satp",
            "csrw satp, {old}",
            "sfence.vma",
            old = out(reg) _,
            all = inout(reg) ALL << 44 => read,
            options(nostack),
        );
    }
    read >> 44 & ALL
}

/// Synchronizes instruction fetches of this hart with earlier writes.
#[inline]
pub(crate) fn flush_instructions() {
    // SAFETY: a flush changes no memory and no register; instructions are fetched again from
    // memory.
    unsafe { asm!("fence.i", options(nostack)) };
}
