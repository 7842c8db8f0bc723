//! The first instructions that a hart executes, from its entry to `main.rs`.
//!
//! ```text
//!  OpenSBI ─► _start       the boot hart, chosen by OpenSBI; MMU off
//!             │ claim the boot, clear .bss
//!             │     ┌───── each other hart, by SBI hart_start: its number by its id
//!             ▼     ▼
//!             MMU on with BOOT_TABLE: the image twice, at its physical address
//!             (this code) and in the upper half (everything after)
//!             ▼
//!             own stack, tp = number of the hart, main.rs
//! ```
//!
//! All harts enter at `_start` and ignore their argument. The reason is that OpenSBI 1.1 marks a
//! hart as startable before it stores the address and the argument, so a hart that reads them in
//! between starts with the values of the boot hart.

use core::arch::global_asm;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::SeqCst};

use super::{csr, sbi, trap};
use crate::MAX_HARTS;
use crate::memory::{DIRECT, PhysAddr};

/// Size of a hart's stack in bytes, including its guard page.
pub(crate) const STACK: usize = 1 << 16;

/// Table with three gigapages, in use until `memory` installs the final table.
#[repr(C, align(4096))]
struct BootTable([u64; 512]);

const fn boot_table() -> BootTable {
    // Valid, readable, writable, executable, global, accessed, dirty.
    const ALL: u64 = 0b1110_1111;
    const GIGA: u64 = 1 << 28;
    let mut table = [0; 512];
    table[2] = (2 * GIGA) | ALL;
    table[256] = ALL;
    table[257] = GIGA | ALL;
    table[258] = (2 * GIGA) | ALL;
    BootTable(table)
}

/// Ids of the harts that the kernel starts, by number. Not in .bss.
#[unsafe(no_mangle)]
static START_IDS: [AtomicUsize; MAX_HARTS] = [const { AtomicUsize::new(usize::MAX) }; MAX_HARTS];

/// 1 when the boot hart has claimed the boot. Not in .bss.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".data.claimed")]
static BOOT_CLAIMED: AtomicU32 = AtomicU32::new(0);

#[unsafe(no_mangle)]
static BOOT_TABLE: BootTable = boot_table();

global_asm!(
    r#"
    .option push
    .option arch, +a
    .section .text.entry
    .globl _start
_start:
    # a0 = hart id, a1 = device tree (of the boot hart); the MMU is off, so
    # addresses are physical
    la      t0, BOOT_CLAIMED
    li      t1, 1
    amoswap.w.aqrl t1, t1, (t0)
    bnez    t1, 3f
    "#,
    #[cfg(any(target_feature = "zba", target_feature = "zbb", target_feature = "zbs"))]
    r#"
    # The compiler uses bit manipulation (kernel/.cargo/config.toml). A processor
    # without it traps to no_bits here.
    la      t0, no_bits
    csrw    stvec, t0
    .option push
    .option arch, +zba, +zbb, +zbs
    ctz     t1, t1
    sh1add  t1, t1, t1
    bexti   t1, t1, 0
    .option pop
    "#,
    r#"
    la      t0, __bss_start
    la      t1, __bss_end
0:  bgeu    t0, t1, 1f
    sd      zero, (t0)
    addi    t0, t0, 8
    j       0b
1:  li      a2, 0
    la      a3, {first}
    j       2f

3:  # Which number has this id?
    la      t0, START_IDS
    li      a2, 0
    li      t1, {max_harts}
4:  ld      t2, (t0)
    beq     t2, a0, 6f
    addi    t0, t0, 8
    addi    a2, a2, 1
    bne     a2, t1, 4b
5:  wfi     # the kernel has not requested this hart
    j       5b
6:  la      a3, {secondary}

2:  # a2 = number of the hart, a3 = where to go
    li      t0, {direct}
    add     a3, a3, t0
    mv      tp, a2
    la      sp, __stacks
    add     sp, sp, t0
    addi    t1, a2, 1
    slli    t1, t1, {stack_shift}
    add     sp, sp, t1
    la      t3, BOOT_TABLE
    srli    t3, t3, 12
    li      t4, 8 << 60
    or      t3, t3, t4
    sfence.vma
    csrw    satp, t3
    sfence.vma
    li      ra, 0
    jr      a3
    "#,
    #[cfg(any(target_feature = "zba", target_feature = "zbb", target_feature = "zbs"))]
    r#"
    # The processor lacks bit manipulation. Prints this byte by byte, and ends
    # the machine with status 2.
    .align 2
no_bits:
    la      s0, 8f
7:  lbu     a0, (s0)
    beqz    a0, 9f
    li      a7, 1
    ecall
    addi    s0, s0, 1
    j       7b
9:  li      t0, 0x100000
    li      t1, 0x23333
    sw      t1, (t0)
    j       5b
8:  .asciz  "upshift: this processor lacks Zba, Zbb or Zbs: use an RVA22 processor, or QEMU's -cpu rv64, or build with --rv64gc\n"
    .balign 4
    "#,
    r#"
    .option pop
    "#,
    first = sym first,
    secondary = sym secondary,
    direct = const DIRECT,
    max_harts = const MAX_HARTS,
    stack_shift = const STACK.trailing_zeros(),
);

unsafe extern "C" {
    fn _start();
    static __stacks: [u8; STACK];
}

extern "C" fn first(hart_id: usize, device_tree: usize) -> ! {
    prepare();
    crate::boot(hart_id, PhysAddr::new(device_tree))
}

extern "C" fn secondary() -> ! {
    prepare();
    crate::boot_secondary()
}

/// Prepares a hart so that it can take a trap.
fn prepare() {
    trap::install();
    csr::floating_point_off();
    csr::enable_sources();
}

/// Starts the hart with this id as hart number `index`.
///
/// # Errors
/// The firmware's error.
pub(crate) fn start(hart_id: usize, index: usize) -> Result<(), sbi::SbiError> {
    START_IDS[index].store(hart_id, SeqCst);
    let entry = PhysAddr::of_image(_start as *const () as usize);
    // SAFETY: `entry` is the physical address of `_start`, which expects the state in which the
    // firmware starts a hart.
    unsafe { sbi::start_hart(hart_id, entry.get(), 0) }
}

/// Returns the address of the first stack; each stack begins with its guard page.
pub(crate) fn stacks() -> usize {
    &raw const __stacks as usize
}
