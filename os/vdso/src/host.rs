//! A process as a host of the scheduler, and what it tells the kernel.

use core::arch::asm;
use core::cell::Cell;
use core::ptr::NonNull;
use core::sync::atomic::Ordering::{Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64};

use os_abi::{layout, number, shared};
use upshift_core::{Executor, Host, Level, Vcpu, Yielded};

/// A process.
pub(crate) struct VdsoHost;

/// The vCPU that the thread of the process serves.
static CURRENT: AtomicPtr<Vcpu<VdsoHost>> = AtomicPtr::new(core::ptr::null_mut());

/// The thread was stopped by a user interrupt, and is in its handler.
pub(crate) static IN_INTERRUPT: AtomicBool = AtomicBool::new(false);

// SAFETY: the one thread of the process has the executor; in the handler of a
// user interrupt, which may have stopped it anywhere, it serves no vCPU.
unsafe impl Host for VdsoHost {
    fn now(&self) -> u64 {
        let ticks;
        // SAFETY: reads the clock.
        unsafe { asm!("rdtime {}", out(reg) ticks, options(nomem, nostack)) };
        ticks
    }

    fn current(&self) -> Option<NonNull<Vcpu<VdsoHost>>> {
        if IN_INTERRUPT.load(Relaxed) {
            return None;
        }
        NonNull::new(CURRENT.load(Relaxed))
    }

    /// The thread does not park in here; the kernel ends its wait.
    fn pend(&self, _: usize) {}
}

/// The thread serves this vCPU from now on.
pub(crate) fn serve(vcpu: NonNull<Vcpu<VdsoHost>>) {
    CURRENT.store(vcpu.as_ptr(), Relaxed);
}

fn word(page: usize, index: usize) -> &'static AtomicU64 {
    // SAFETY: the kernel maps both pages into every process before it starts;
    // they are words that kernel and program access atomically, and of the
    // read-only one only `load` is called.
    unsafe { &*((page as *const AtomicU64).add(index)) }
}

/// Tells the kernel which levels are ready or running. `running`: the level that
/// is about to run; `None`: whatever runs now.
pub(crate) fn publish(executor: Option<&Executor<VdsoHost>>, running: Option<Level>) {
    let Some(executor) = executor else { return };
    let bits = || {
        let running = running.or(executor.running_level());
        executor.bitmap() | running.map_or(0, Level::bit)
    };
    let mut now = bits();
    loop {
        word(layout::SHARED, shared::LOCAL_BITMAP).store(now, Release);
        // An interrupt may have come after the bits were read, and set its own.
        match bits() {
            same if same == now => return,
            changed => now = changed,
        }
    }
}

/// Does something wait elsewhere that is more urgent than all there is here?
pub(crate) fn is_overtaken() -> bool {
    let here = word(layout::SHARED, shared::LOCAL_BITMAP).load(Relaxed);
    let elsewhere = word(layout::GLOBAL, 0).load(Relaxed);
    elsewhere.trailing_zeros() < here.trailing_zeros()
}

/// The coroutine that the last turn left ready.
pub(crate) struct Back(Cell<Option<Yielded<'static, VdsoHost>>>);

// SAFETY: only the one thread of the process uses it, and not in its handler.
unsafe impl Sync for Back {}

impl Back {
    pub(crate) const fn new() -> Back {
        Back(Cell::new(None))
    }

    pub(crate) fn take(&self) -> Option<Yielded<'static, VdsoHost>> {
        self.0.take()
    }

    pub(crate) fn put(&self, yielded: Yielded<'static, VdsoHost>) {
        self.0.set(Some(yielded));
    }
}

/// Ends the process.
pub(crate) fn exit(status: usize) -> ! {
    loop {
        // SAFETY: the call does not come back.
        unsafe { asm!("ecall", in("a0") status, in("a7") number::exit, options(nostack)) };
    }
}
