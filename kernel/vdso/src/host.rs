//! Implements the scheduler's trait `Host` for a process, and reports the levels of the process's
//! work to the kernel.
//!
//! A thread is identified by its line, whose address the kernel has put into `tp`
//! (`os_abi::thread`). A word of the line points to its [`Server`].

use core::arch::asm;
use core::cell::Cell;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU32};

use os_abi::number;
use os_abi::thread::{IN_INTERRUPT, LOCAL_BITMAP, MAX_THREADS, SERVER};
use os_pages::{critical, line, line_index};
use upshift_core::{Change, Domain, Executor, Host, Level, ServedVcpu, Vcpu, Yielded};

use crate::trace;

/// The host of the scheduler in a process.
pub(crate) struct VdsoHost;

/// Number of spins after which a thread yields its hart to other threads of its level.
const YIELD_AFTER: u32 = 50;
/// Number of spins after which a thread sleeps, so that less urgent threads can run.
const SLEEP_AFTER: u32 = 100;
/// Duration of a sleep, in ticks.
const SLEEP_TICKS: u64 = 1_000;

// SAFETY: `current` returns only the vCPU that the calling thread serves, and only while it exists,
// because the server in the thread's line owns the thread's executor until the thread retires it.
// In the handler of a user interrupt, which may have stopped the thread anywhere, `current` returns
// `None`.
unsafe impl Host for VdsoHost {
    #[inline]
    fn waker_table() -> &'static core::task::RawWakerVTable {
        upshift_core::waker_table!(VdsoHost)
    }

    #[inline]
    fn is_tracing(&self) -> bool {
        trace::is_on()
    }

    fn on_step(&self, change: &Change) {
        if let Some(state) = change.step.entered() {
            trace::record_state(change.id, change.level, state);
        }
    }

    fn now(&self) -> u64 {
        let ticks;
        // SAFETY: the instruction only reads the clock.
        unsafe { asm!("rdtime {}", out(reg) ticks, options(nomem, nostack)) };
        ticks
    }

    #[inline]
    fn current(&self) -> Option<ServedVcpu> {
        if line(IN_INTERRUPT).load(Relaxed) != 0 {
            return None;
        }
        server().map(|server| ServedVcpu::from(server.executor.vcpu()))
    }

    /// Unparks the thread of a vCPU, which waits in the kernel. The thread gets the level of the
    /// domain's most urgent work, which is found by loads alone.
    fn kick(&self, index: usize) {
        let Some(domain) = domain() else { return };
        let level = domain.bitmap().trailing_zeros().min(62);
        if let Some(line) = LINES.get(index) {
            let line = line.load(Acquire) as usize;
            call(number::unpark, line, level as usize);
        }
    }

    /// Spins, then yields, then sleeps. If spinning does not suffice, the kernel has stopped the
    /// holder of the lock in spite of its grace (`os_abi::thread`), so the holder should get the
    /// hart.
    fn relax(&self, spins: u32) {
        match spins {
            0..YIELD_AFTER => core::hint::spin_loop(),
            YIELD_AFTER..SLEEP_AFTER => {
                call(number::yield_cpu, 0, 0);
            }
            _ => {
                call(number::sleep_until, (self.now() + SLEEP_TICKS) as usize, 0);
            }
        }
    }

    #[inline]
    fn enter_critical() {
        critical::enter();
    }

    #[inline]
    fn leave_critical() {
        leave();
    }
}

/// The domain of the process; null before `upshift_init`.
static DOMAIN: AtomicPtr<Domain<VdsoHost>> = AtomicPtr::new(core::ptr::null_mut());

/// Line of the thread that serves each vCPU.
static LINES: [AtomicU32; MAX_THREADS] = [const { AtomicU32::new(0) }; MAX_THREADS];

/// Number of vCPUs that threads have begun to serve.
static VCPUS: AtomicU32 = AtomicU32::new(0);

pub(crate) fn domain() -> Option<&'static Domain<VdsoHost>> {
    // SAFETY: the pointer is null, or that of a box that `set_domain` has leaked.
    unsafe { DOMAIN.load(Acquire).as_ref() }
}

/// Publishes a box as the domain. Returns false if there already is a domain.
pub(crate) fn set_domain(domain: *mut Domain<VdsoHost>) -> bool {
    let null = core::ptr::null_mut();
    DOMAIN
        .compare_exchange(null, domain, AcqRel, Acquire)
        .is_ok()
}

/// The state of a thread that serves a vCPU.
pub(crate) struct Server {
    pub(crate) executor: Executor<VdsoHost>,
    /// Coroutine that yielded in the last turn.
    pub(crate) yielded: Cell<Option<Yielded<'static, VdsoHost>>>,
}

/// Makes the calling thread serve a vCPU. Returns false if a process cannot have this many threads.
pub(crate) fn serve(server: *mut Server, index: usize) -> bool {
    let Some(served) = LINES.get(index) else {
        return false;
    };
    served.store(line_index() as u32, Release);
    VCPUS.fetch_add(1, Relaxed);
    line(SERVER).store(server as u64, Relaxed);
    true
}

pub(crate) fn stop_serving() {
    line(SERVER).store(0, Relaxed);
    line(LOCAL_BITMAP).store(0, Relaxed);
}

#[inline]
pub(crate) fn server() -> Option<&'static Server> {
    // SAFETY: the word is 0, or the address of a box that lives until this thread drops it, after
    // `stop_serving`; no mutable reference to it exists.
    unsafe { (line(SERVER).load(Relaxed) as *const Server).as_ref() }
}

/// Ends a critical section.
#[inline]
pub(crate) fn leave() {
    critical::leave(|| {
        call(number::clock, 0, 0);
    });
}

/// Publishes to the kernel the levels that are ready or running on the vCPU of this thread. Costs
/// only loads if they are already published.
#[inline]
pub(crate) fn publish(server: &Server, running: impl Fn() -> Option<Level>) {
    let word = line(LOCAL_BITMAP);
    let mut known = word.load(Relaxed);
    loop {
        let bits = server.executor.bitmap() | running().map_or(0, Level::bit);
        if bits == known {
            return;
        }
        // Checked again afterwards, because a wake may have set its bit after the bits were read.
        word.store(bits, Release);
        known = bits;
    }
}

/// Publishes all levels, including that of the running coroutine.
pub(crate) fn publish_all() {
    if let Some(server) = server() {
        publish(server, || server.executor.running_level());
    }
}

/// Publishes levels that have become ready on this thread's vCPU, and withdraws none. Costs three
/// loads if they are already published.
#[inline]
pub(crate) fn publish_new_levels() {
    if let Some(server) = server()
        && server.executor.bitmap() & !line(LOCAL_BITMAP).load(Relaxed) != 0
    {
        publish_all();
    }
}

/// Publishes work on other vCPUs that is more urgent than the published levels of their threads,
/// which the kernel may have stopped. Costs a few loads per other vCPU if there is no such work.
#[inline]
pub(crate) fn publish_others() {
    if VCPUS.load(Relaxed) == 1 && server().is_some() {
        return;
    }
    let Some(domain) = domain() else { return };
    let own = server().map(|server| server.executor.index());
    for (index, vcpu) in domain.vcpus().enumerate() {
        if Some(index) != own {
            publish_other(index, vcpu);
        }
    }
}

fn publish_other(index: usize, vcpu: &Vcpu<VdsoHost>) {
    let Some(line) = LINES.get(index).map(|line| line.load(Acquire)) else {
        return;
    };
    let word = os_pages::line_of(line as usize, LOCAL_BITMAP);
    let known = word.load(Relaxed);
    let bits = || vcpu.bitmap() | vcpu.running_level().map_or(0, Level::bit);
    // A thread without work waits in the kernel, or is about to wait. A wake unparks it.
    if known == 0 || bits().trailing_zeros() >= known.trailing_zeros() {
        return;
    }
    // The thread itself checks again after it has written the word, so the final word is correct.
    word.fetch_or(bits(), AcqRel);
    call(number::follow, line as usize, 0);
}

/// Returns whether more urgent work than that of this vCPU waits for a hart.
#[inline]
pub(crate) fn is_overtaken() -> bool {
    let local = line(LOCAL_BITMAP).load(Relaxed);
    // All levels that are more urgent than the lowest bit, or all levels if this vCPU has no work.
    let more_urgent = local.wrapping_sub(1) & !local;
    os_pages::global().load(Relaxed) & more_urgent != 0
}

/// Makes a system call of at most two arguments; returns its result.
pub(crate) fn call(number: usize, first: usize, second: usize) -> isize {
    let answer;
    // SAFETY: the calls of this module access no memory; the kernel changes only a0.
    unsafe {
        asm!(
            "ecall",
            inlateout("a0") first => answer,
            in("a1") second,
            in("a7") number,
            options(nostack),
        );
    }
    answer
}

pub(crate) fn exit(status: usize) -> ! {
    loop {
        call(number::exit, status, 0);
    }
}
