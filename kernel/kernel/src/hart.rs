//! The kernel's record of each hart, accessible from every hart.

use core::ptr::null_mut;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize};

use upshift_core::Vcpu;

use crate::arch::host::KernelHost;
use crate::arch::lock::IrqLock;
use crate::arch::{csr, hart_index, sbi};
use crate::machine::HartInfo;
use crate::timers::Timers;
use crate::times::Times;
use crate::{MAX_HARTS, clock};

/// Interval at which the boot hart checks for another hart, in microseconds.
const POLL_MICROS: u64 = 20;

pub(crate) struct Hart {
    /// Id of the hart in the firmware.
    pub(crate) id: AtomicUsize,
    pub(crate) in_interrupt: AtomicBool,
    /// The vCPU that the hart serves, once it is online.
    pub(crate) vcpu: AtomicPtr<Vcpu<KernelHost>>,
    /// The switching coroutine, which runs user programs.
    pub(crate) switching: AtomicU64,
    /// End of the running program's quantum; `u64::MAX` if there is none.
    pub(crate) quantum_end: AtomicU64,
    /// Context at the interrupt controller, in S-mode; `usize::MAX` if there is none.
    context: AtomicUsize,
    pub(crate) timers: IrqLock<Timers>,
    pub(crate) times: Times,
}

impl Hart {
    pub(crate) fn set(&self, info: &HartInfo) {
        self.id.store(info.id, Relaxed);
        let context = info.plic_context.unwrap_or(usize::MAX);
        self.context.store(context, Relaxed);
    }

    pub(crate) fn plic_context(&self) -> Option<usize> {
        Some(self.context.load(Relaxed)).filter(|context| *context != usize::MAX)
    }
}

static HARTS: [Hart; MAX_HARTS] = [const {
    Hart {
        id: AtomicUsize::new(0),
        in_interrupt: AtomicBool::new(false),
        vcpu: AtomicPtr::new(null_mut()),
        switching: AtomicU64::new(0),
        quantum_end: AtomicU64::new(u64::MAX),
        context: AtomicUsize::new(usize::MAX),
        timers: IrqLock::new(Timers::new()),
        times: Times::new(),
    }
}; MAX_HARTS];

/// Bits of the harts that are in user mode, or about to enter it.
static IN_USER: AtomicU64 = AtomicU64::new(0);

/// One more than the highest index of a hart that serves a vCPU.
static ONLINE: AtomicUsize = AtomicUsize::new(0);

/// Returns the calling hart. After an `await` a coroutine may run on another hart.
#[inline]
pub(crate) fn this() -> &'static Hart {
    &HARTS[hart_index()]
}

pub(crate) fn at(index: usize) -> &'static Hart {
    &HARTS[index]
}

/// Returns the harts that may be interrupted: all up to the highest one that is online.
pub(crate) fn online() -> &'static [Hart] {
    &HARTS[..ONLINE.load(SeqCst)]
}

pub(crate) fn set_online(index: usize) {
    ONLINE.fetch_max(index + 1, SeqCst);
}

/// Waits until hart `index` is online, for at most a second. Returns false if the hart is not
/// online by then; it may start later. Called while booting, with interrupts masked.
///
/// The calling hart sleeps for short times meanwhile, because an emulator that has one thread for
/// all harts runs the other harts only then.
pub(crate) fn wait_online(index: usize) -> bool {
    let limit = clock::now() + clock::ticks_per_second();
    while ONLINE.load(SeqCst) <= index {
        if clock::now() > limit {
            return false;
        }
        clock::arm(clock::now() + clock::from_micros(POLL_MICROS));
        csr::wait_for_interrupt();
    }
    true
}

/// Records that hart `index` is in user mode from now on, or about to enter it. From then on a hart
/// that makes more urgent work ready clears the bit ([`clear_in_user`]) and sends an IPI. All
/// accesses to the bits are sequentially consistent.
pub(crate) fn set_in_user(index: usize) {
    IN_USER.fetch_or(1 << index, SeqCst);
}

/// Records that hart `index` leaves user mode, or is about to be interrupted there. Returns true if
/// the bit of the hart was set; a caller on another hart must then interrupt the hart.
pub(crate) fn clear_in_user(index: usize) -> bool {
    IN_USER.fetch_and(!(1 << index), SeqCst) & 1 << index != 0
}

/// Returns the harts in user mode as a bitmap. Costs a load.
pub(crate) fn in_user() -> u64 {
    IN_USER.load(SeqCst)
}

/// Sends an IPI, which makes the hart wake from `wfi` or enter the kernel.
pub(crate) fn interrupt(index: usize) {
    sbi::send_ipi(HARTS[index].id.load(Relaxed));
}

/// Set by `late` on the command line: all harts but the first start after a program has started.
#[cfg(feature = "selftest")]
static LATE: AtomicBool = AtomicBool::new(false);

/// Makes the harts that are started from now on start late.
#[cfg(feature = "selftest")]
pub(crate) fn set_late_start() {
    LATE.store(true, SeqCst);
}

/// Makes the calling hart wait until there is a program, if harts must start late.
#[cfg(feature = "selftest")]
pub(crate) fn wait_if_late() {
    while LATE.load(SeqCst) && crate::process::count() == 0 {
        core::hint::spin_loop();
    }
}
