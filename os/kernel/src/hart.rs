//! What the kernel knows of each hart, reachable from every hart.

use core::ptr::null_mut;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize};

use upshift_core::Vcpu;

use crate::arch::host::KernelHost;
use crate::arch::lock::IrqLock;
use crate::arch::{hart_index, sbi};
use crate::timers::Timers;
use crate::{MAX_HARTS, clock};

/// One hart.
pub(crate) struct Hart {
    /// The firmware's id of it.
    pub(crate) id: AtomicUsize,
    /// It runs an interrupt handler.
    pub(crate) in_interrupt: AtomicBool,
    /// The vCPU it serves, once it does.
    pub(crate) vcpu: AtomicPtr<Vcpu<KernelHost>>,
    /// It is in user mode, or about to be: whoever makes something more urgent
    /// ready there takes this down and sends an IPI.
    pub(crate) in_user: AtomicBool,
    /// The coroutine that runs user programs on it.
    pub(crate) switching: AtomicU64,
    /// The end of the running program's quantum; `u64::MAX` without one.
    pub(crate) quantum_end: AtomicU64,
    /// Who sleeps.
    pub(crate) timers: IrqLock<Timers>,
}

static HARTS: [Hart; MAX_HARTS] = [const {
    Hart {
        id: AtomicUsize::new(0),
        in_interrupt: AtomicBool::new(false),
        vcpu: AtomicPtr::new(null_mut()),
        in_user: AtomicBool::new(false),
        switching: AtomicU64::new(0),
        quantum_end: AtomicU64::new(u64::MAX),
        timers: IrqLock::new(Timers::new()),
    }
}; MAX_HARTS];

/// How many harts serve a vCPU.
static ONLINE: AtomicUsize = AtomicUsize::new(0);

/// The hart this code runs on. A coroutine may be elsewhere after an `await`.
#[inline]
pub(crate) fn this() -> &'static Hart {
    &HARTS[hart_index()]
}

/// The hart of a number.
pub(crate) fn at(index: usize) -> &'static Hart {
    &HARTS[index]
}

/// The harts that may be spoken to: those below the highest that is online.
pub(crate) fn online() -> &'static [Hart] {
    &HARTS[..ONLINE.load(SeqCst)]
}

/// Hart `index` is about to serve its vCPU.
pub(crate) fn set_online(index: usize) {
    ONLINE.fetch_max(index + 1, SeqCst);
}

/// Waits until hart `index` is online, at most a second: what it allocates to
/// come up is there then. False: it has not come.
pub(crate) fn wait_online(index: usize) -> bool {
    let limit = clock::now() + clock::ticks_per_second();
    while HARTS[index].vcpu.load(Relaxed).is_null() {
        if clock::now() > limit {
            return false;
        }
        core::hint::spin_loop();
    }
    true
}

/// Sends an IPI: the hart comes back from its wait, or into the kernel.
pub(crate) fn interrupt(index: usize) {
    sbi::send_ipi(HARTS[index].id.load(Relaxed));
}
