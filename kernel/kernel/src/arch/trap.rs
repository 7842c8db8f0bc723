//! Enters and leaves the kernel by traps, which come from the kernel itself or from user mode.
//!
//! *From the kernel*: the registers that a function may change are saved on the stack, [`handle`]
//! runs with interrupts masked, and the interrupted code resumes. An exception in the kernel is a
//! bug, and a panic.
//!
//! *To user mode and back* is a function call: [`UserContext::run`] saves the callee-saved
//! registers of the kernel on its stack, loads the user's registers and enters user mode; the next
//! trap saves the user's registers, loads the kernel's and returns. So a trap from user mode
//! returns in the middle of the poll that entered it, on the same stack, and never interrupts code
//! of the kernel.
//!
//! In an isolated kernel the transition passes through the gate (`gate.rs`): the text from
//! `enter_user` to `user_trap` is in every page table, and switches to the other table at the point
//! at which the fewest registers are in use.
//!
//! Floating point is off in the kernel, and at the start of a program. The first floating-point
//! instruction of a program traps; from then on the program's floating-point registers are saved if
//! they were changed, and loaded on the way back. Programs that never use floating point pay two
//! instructions.

use alloc::boxed::Box;
use core::arch::global_asm;

use super::csr;
#[cfg(feature = "isolated")]
use super::gate;
use crate::interrupts;
use crate::trace::TraceState;

/// The registers of a user program while it does not run.
#[derive(Clone)]
#[repr(C)]
pub(crate) struct UserContext {
    /// x1 to x31.
    pub(crate) registers: [usize; 31],
    pub(crate) pc: usize,
    status: usize,
    kernel_sp: usize,
    kernel_tp: usize,
    float: [u64; 32],
    fcsr: u64,
}

const PC: usize = core::mem::offset_of!(UserContext, pc);
const STATUS: usize = core::mem::offset_of!(UserContext, status);
const KERNEL_SP: usize = core::mem::offset_of!(UserContext, kernel_sp);
const KERNEL_TP: usize = core::mem::offset_of!(UserContext, kernel_tp);
const FLOAT: usize = core::mem::offset_of!(UserContext, float);
const FCSR: usize = core::mem::offset_of!(UserContext, fcsr);

/// State of a program at a user interrupt. It has floating-point registers only if the program uses
/// them.
#[derive(Clone)]
pub(crate) struct Interrupted {
    registers: [usize; 31],
    pc: usize,
    status: usize,
    float: Option<Box<([u64; 32], u64)>>,
}

/// The reason why a program returned to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trap {
    SystemCall,
    /// An interrupt, with its code; the interrupt is still pending.
    Interrupt(usize),
    /// An exception other than `ecall`.
    Fault(Fault),
}

impl Trap {
    /// Returns the state that the trap puts the program into.
    pub(crate) fn trace_state(self) -> TraceState {
        match self {
            Trap::Interrupt(_) => TraceState::Interrupted,
            Trap::SystemCall | Trap::Fault(_) => TraceState::Excepted,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// `scause`.
    pub(crate) cause: usize,
    /// The faulting address, or the instruction.
    pub(crate) value: usize,
    pub(crate) pc: usize,
}

impl UserContext {
    /// Creates the context of a program that starts at `pc` with the stack pointer `sp`.
    pub(crate) fn new(pc: usize, sp: usize) -> UserContext {
        let mut registers = [0; 31];
        registers[1] = sp;
        UserContext {
            registers,
            pc,
            status: csr::SPIE | csr::UXL_64,
            kernel_sp: 0,
            kernel_tp: 0,
            float: [0; 32],
            fcsr: 0,
        }
    }

    /// Sets the register by which a thread finds its line of the page of threads.
    pub(crate) fn set_thread_pointer(&mut self, value: usize) {
        self.registers[3] = value;
    }

    /// Returns the argument register `n`, a0 to a7.
    pub(crate) fn argument(&self, n: usize) -> usize {
        self.registers[9 + n]
    }

    /// Sets the argument register `n`, a0 to a7.
    pub(crate) fn set_argument(&mut self, n: usize, value: usize) {
        self.registers[9 + n] = value;
    }

    /// Makes the program resume at `handler`, on the same stack; the result is the argument of
    /// [`UserContext::leave_handler`].
    pub(crate) fn enter_handler(&mut self, handler: usize) -> Interrupted {
        let has_float = self.status & csr::FS != 0;
        let interrupted = Interrupted {
            registers: self.registers,
            pc: self.pc,
            status: self.status,
            float: has_float.then(|| Box::new((self.float, self.fcsr))),
        };
        self.pc = handler;
        // The ABI requires this alignment; no data below the stack pointer is in use.
        self.registers[1] &= !15;
        interrupted
    }

    /// Makes the program resume where it was interrupted.
    pub(crate) fn leave_handler(&mut self, interrupted: &Interrupted) {
        self.registers = interrupted.registers;
        self.pc = interrupted.pc;
        if let Some(float) = &interrupted.float {
            (self.float, self.fcsr) = **float;
        } else if self.status & csr::FS != 0 {
            // The handler has used the registers, and the next handler must find zeros.
            (self.float, self.fcsr) = ([0; 32], 0);
        }
        self.status = interrupted.status;
    }

    /// Runs the program on this hart until it traps, with the installed page table. Interrupts are
    /// masked when the function is called and when it returns; a caller that first decides whether
    /// to run the program masks interrupts before the decision.
    pub(crate) fn run(&mut self) -> Trap {
        csr::interrupts_off();
        // SAFETY: interrupts are masked, so no handler runs between kernel and program. The context
        // is borrowed mutably until the call returns. User mode cannot access kernel memory, and
        // returns only through `user_trap`, which restores the stack pointer, `tp` and the
        // callee-saved registers.
        #[cfg(not(feature = "isolated"))]
        unsafe {
            enter_user(self)
        };
        // SAFETY: as above; and the gate belongs to this hart and names the table of the program.
        #[cfg(feature = "isolated")]
        unsafe {
            enter_user(self, gate::of(super::hart_index()))
        };
        let (cause, value) = (csr::scause(), csr::stval());
        if cause & csr::INTERRUPT != 0 {
            return Trap::Interrupt(cause & !csr::INTERRUPT);
        }
        if cause == 8 {
            self.pc += 4;
            return Trap::SystemCall;
        }
        Trap::Fault(Fault {
            cause,
            value,
            pc: self.pc,
        })
    }

    /// Enables floating point for the program if the fault may be due to its absence. Returns false
    /// if floating point is already enabled, or the fault has another cause.
    pub(crate) fn enable_float(&mut self, fault: Fault) -> bool {
        let may_need_float = fault.cause == 2 && self.status & csr::FS == 0;
        if may_need_float {
            self.status |= csr::FS_INITIAL;
        }
        may_need_float
    }
}

/// Sets the trap vector of this hart.
pub(crate) fn install() {
    // SAFETY: `kernel_trap` is the entry for traps from the kernel.
    unsafe { csr::set_stvec(kernel_trap as *const () as usize) };
}

unsafe extern "C" {
    fn kernel_trap();
    #[cfg(not(feature = "isolated"))]
    fn enter_user(context: *mut UserContext);
    #[cfg(feature = "isolated")]
    fn enter_user(context: *mut UserContext, gate: &gate::Gate);
}

/// Handles a trap of the kernel. Interrupts are masked until it returns.
extern "C" fn handle() {
    let cause = csr::scause();
    if cause & csr::INTERRUPT != 0 {
        interrupts::handle(cause & !csr::INTERRUPT);
    } else {
        panic!(
            "exception {cause} in the kernel at {:#x}, stval {:#x}",
            csr::sepc(),
            csr::stval()
        );
    }
}

extern "C" fn stack_overflow() -> ! {
    panic!("the kernel stack of a hart is full, at {:#x}", csr::sepc());
}

global_asm!(
    r#"
    .option push
    .option arch, +d
    .section .text
    .globl kernel_trap
    .align 2
kernel_trap:
    # A stack is 64 KiB, aligned so, and its lowest page is a guard.
    csrw    sscratch, t0
    addi    t0, sp, -144
    slli    t0, t0, 48
    srli    t0, t0, 60
    beqz    t0, 1f
    csrr    t0, sscratch
    addi    sp, sp, -144
    sd      ra, 0(sp)
    sd      t0, 8(sp)
    sd      t1, 16(sp)
    sd      t2, 24(sp)
    sd      t3, 32(sp)
    sd      t4, 40(sp)
    sd      t5, 48(sp)
    sd      t6, 56(sp)
    sd      a0, 64(sp)
    sd      a1, 72(sp)
    sd      a2, 80(sp)
    sd      a3, 88(sp)
    sd      a4, 96(sp)
    sd      a5, 104(sp)
    sd      a6, 112(sp)
    sd      a7, 120(sp)
    call    {handle}
    ld      ra, 0(sp)
    ld      t0, 8(sp)
    ld      t1, 16(sp)
    ld      t2, 24(sp)
    ld      t3, 32(sp)
    ld      t4, 40(sp)
    ld      t5, 48(sp)
    ld      t6, 56(sp)
    ld      a0, 64(sp)
    ld      a1, 72(sp)
    ld      a2, 80(sp)
    ld      a3, 88(sp)
    ld      a4, 96(sp)
    ld      a5, 104(sp)
    ld      a6, 112(sp)
    ld      a7, 120(sp)
    addi    sp, sp, 144
    sret
1:  la      sp, {emergency} + 4096
    call    {overflow}

    .macro  each_float op
    .altmacro
    .set    i, 0
    .rept   32
    each_float_one \op, %i
    .set    i, i + 1
    .endr
    .noaltmacro
    .endm
    .macro  each_float_one op, n
    \op     f\n, ({FLOAT} + 8 * \n)(a0)
    .endm
    # Registers from one to another, at the context in x10 (a0).
    .macro  registers op, from, to
    .altmacro
    .set    i, \from
    .rept   \to - \from + 1
    register \op, %i
    .set    i, i + 1
    .endr
    .noaltmacro
    .endm
    .macro  register op, n
    \op     x\n, (8 * (\n - 1))(a0)
    .endm

    .section .text.gate, "ax"
    .globl enter_user
enter_user:
    addi    sp, sp, -112
    sd      ra, 0(sp)
    sd      s0, 8(sp)
    sd      s1, 16(sp)
    sd      s2, 24(sp)
    sd      s3, 32(sp)
    sd      s4, 40(sp)
    sd      s5, 48(sp)
    sd      s6, 56(sp)
    sd      s7, 64(sp)
    sd      s8, 72(sp)
    sd      s9, 80(sp)
    sd      s10, 88(sp)
    sd      s11, 96(sp)
    sd      sp, {KERNEL_SP}(a0)
    sd      tp, {KERNEL_TP}(a0)
    la      t0, user_trap
    csrw    stvec, t0
    "#,
    #[cfg(not(feature = "isolated"))]
    "csrw    sscratch, a0",
    #[cfg(feature = "isolated")]
    r#"
    # a1 = gate, until the end; the program's a0 goes into sscratch, its a1 into the gate.
    sd      a0, {GATE_CONTEXT}(a1)
    ld      t0, 72(a0)
    csrw    sscratch, t0
    ld      t0, 80(a0)
    sd      t0, {GATE_A1}(a1)
    "#,
    r#"
    ld      t0, {PC}(a0)
    csrw    sepc, t0
    ld      t1, {STATUS}(a0)
    csrw    sstatus, t1
    srli    t1, t1, 13
    andi    t1, t1, 3
    beqz    t1, 1f
    ld      t0, {FCSR}(a0)
    fscsr   t0
    each_float fld
    # Clean: what is loaded is what is saved.
    li      t0, 1 << 13
    csrc    sstatus, t0
    li      t0, 2 << 13
    csrs    sstatus, t0
1:  registers ld, 1, 9
    registers ld, 12, 31
    "#,
    #[cfg(not(feature = "isolated"))]
    r#"
    ld      a1, 80(a0)
    ld      a0, 72(a0)
    sret
    "#,
    #[cfg(feature = "isolated")]
    r#"
    ld      a0, {GATE_PROGRAM}(a1)
    csrw    satp, a0
    csrrw   a0, sscratch, a1
    ld      a1, {GATE_A1}(a1)
    sret
    "#,
    r#"
    .align 2
user_trap:
    csrrw   a0, sscratch, a0
    "#,
    #[cfg(feature = "isolated")]
    r#"
    sd      a1, {GATE_A1}(a0)
    ld      a1, {GATE_KERNEL}(a0)
    csrw    satp, a1
    ld      a1, {GATE_A1}(a0)
    ld      a0, {GATE_CONTEXT}(a0)
    "#,
    r#"
    registers sd, 1, 9
    registers sd, 11, 31
    csrr    t0, sscratch
    sd      t0, 72(a0)
    csrr    t0, sepc
    sd      t0, {PC}(a0)
    csrr    t1, sstatus
    sd      t1, {STATUS}(a0)
    srli    t2, t1, 13
    andi    t2, t2, 3
    addi    t2, t2, -3
    bnez    t2, 1f
    each_float fsd
    frcsr   t0
    sd      t0, {FCSR}(a0)
1:  li      t0, 3 << 13
    csrc    sstatus, t0
    la      t0, kernel_trap
    csrw    stvec, t0
    ld      tp, {KERNEL_TP}(a0)
    ld      sp, {KERNEL_SP}(a0)
    ld      ra, 0(sp)
    ld      s0, 8(sp)
    ld      s1, 16(sp)
    ld      s2, 24(sp)
    ld      s3, 32(sp)
    ld      s4, 40(sp)
    ld      s5, 48(sp)
    ld      s6, 56(sp)
    ld      s7, 64(sp)
    ld      s8, 72(sp)
    ld      s9, 80(sp)
    ld      s10, 88(sp)
    ld      s11, 96(sp)
    addi    sp, sp, 112
    ret
    .option pop
    "#,
    handle = sym handle,
    overflow = sym stack_overflow,
    emergency = sym EMERGENCY,
    PC = const PC,
    STATUS = const STATUS,
    KERNEL_SP = const KERNEL_SP,
    KERNEL_TP = const KERNEL_TP,
    FLOAT = const FLOAT,
    FCSR = const FCSR,
    #[cfg(feature = "isolated")]
    GATE_KERNEL = const gate::KERNEL,
    #[cfg(feature = "isolated")]
    GATE_PROGRAM = const gate::PROGRAM,
    #[cfg(feature = "isolated")]
    GATE_CONTEXT = const gate::CONTEXT,
    #[cfg(feature = "isolated")]
    GATE_A1 = const gate::A1,
);

/// Stack on which a hart reports that its stack is full.
#[repr(C, align(16))]
struct Emergency(core::cell::UnsafeCell<[u8; 4096]>);

// SAFETY: only the assembly above uses it, on a path that ends in a panic.
unsafe impl Sync for Emergency {}

static EMERGENCY: Emergency = Emergency(core::cell::UnsafeCell::new([0; 4096]));
