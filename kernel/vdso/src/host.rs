//! A process as a host of the scheduler, and what it tells the kernel.
//!
//! A thread knows itself by its line, whose address the kernel has put into `tp`
//! (`os_abi::thread`). What it serves is behind a word of the line.

use core::arch::asm;
use core::cell::Cell;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU32};

use os_abi::number;
use os_abi::thread::{IN_INTERRUPT, LOCAL_BITMAP, MAX_THREADS, SERVER};
use os_pages::{critical, line, line_index};
use upshift_core::{Change, Domain, Executor, Host, Level, Served, Vcpu, Yielded};

use crate::trace;

/// A process.
pub(crate) struct VdsoHost;

/// So many spins before a thread gives its hart to others of its level, and so many
/// before it sleeps, for those that are less urgent.
const YIELD_AFTER: u32 = 50;
const SLEEP_AFTER: u32 = 100;
/// How long it sleeps then, in ticks.
const SLEEP: u64 = 1_000;

// SAFETY: the server in a thread's line is the one whose executor it has, until the
// thread lets go of it; in the handler of a user interrupt, which may have stopped the
// thread anywhere, it serves no vCPU.
unsafe impl Host for VdsoHost {
    #[inline]
    fn waker_table() -> &'static core::task::RawWakerVTable {
        upshift_core::waker_table!(VdsoHost)
    }

    #[inline]
    fn is_tracing(&self) -> bool {
        trace::is_on()
    }

    fn changed(&self, change: &Change) {
        if let Some(state) = change.step.entered() {
            trace::changed(change.id, change.level, state);
        }
    }

    fn now(&self) -> u64 {
        let ticks;
        // SAFETY: reads the clock.
        unsafe { asm!("rdtime {}", out(reg) ticks, options(nomem, nostack)) };
        ticks
    }

    #[inline]
    fn current(&self) -> Option<Served> {
        if line(IN_INTERRUPT).load(Relaxed) != 0 {
            return None;
        }
        server().map(|server| Served::from(server.executor.vcpu()))
    }

    /// The thread waits in the kernel. It becomes as urgent as the most urgent work
    /// there is; that takes loads only.
    fn pend(&self, index: usize) {
        let Some(domain) = domain() else { return };
        let level = domain.bitmap().trailing_zeros().min(62);
        if let Some(line) = LINES.get(index) {
            let line = line.load(Acquire) as usize;
            call(number::unpark, line, level as usize);
        }
    }

    /// The holder of the lock was stopped by the kernel, in spite of its grace: the hart
    /// is better used by it.
    fn relax(&self, spins: u32) {
        match spins {
            0..YIELD_AFTER => core::hint::spin_loop(),
            YIELD_AFTER..SLEEP_AFTER => {
                call(number::yield_cpu, 0, 0);
            }
            _ => {
                call(number::sleep_until, (self.now() + SLEEP) as usize, 0);
            }
        }
    }

    #[inline]
    fn enter() {
        critical::enter();
    }

    #[inline]
    fn leave() {
        leave();
    }
}

/// The domain of the process, once there is one.
static DOMAIN: AtomicPtr<Domain<VdsoHost>> = AtomicPtr::new(core::ptr::null_mut());

/// The line of the thread that serves each vCPU.
static LINES: [AtomicU32; MAX_THREADS] = [const { AtomicU32::new(0) }; MAX_THREADS];

/// How often a thread has begun to serve one.
static VCPUS: AtomicU32 = AtomicU32::new(0);

/// The domain.
pub(crate) fn domain() -> Option<&'static Domain<VdsoHost>> {
    // SAFETY: null, or a box that was leaked.
    unsafe { DOMAIN.load(Acquire).as_ref() }
}

/// Makes a box the domain. False: there is one.
pub(crate) fn set_domain(domain: *mut Domain<VdsoHost>) -> bool {
    let null = core::ptr::null_mut();
    DOMAIN
        .compare_exchange(null, domain, AcqRel, Acquire)
        .is_ok()
}

/// What a thread serves.
pub(crate) struct Server {
    pub(crate) executor: Executor<VdsoHost>,
    /// The coroutine that the last turn left ready.
    pub(crate) back: Cell<Option<Yielded<'static, VdsoHost>>>,
}

/// The calling thread serves this from now on. False: there are more vCPUs than
/// threads can be.
pub(crate) fn serve(server: *mut Server, index: usize) -> bool {
    let Some(served) = LINES.get(index) else {
        return false;
    };
    served.store(line_index() as u32, Release);
    VCPUS.fetch_add(1, Relaxed);
    line(SERVER).store(server as u64, Relaxed);
    true
}

/// What the calling thread has served, and does not any more.
pub(crate) fn stop_serving() {
    line(SERVER).store(0, Relaxed);
    line(LOCAL_BITMAP).store(0, Relaxed);
}

/// What the calling thread serves.
#[inline]
pub(crate) fn server() -> Option<&'static Server> {
    // SAFETY: 0, or a box that lives until its own thread drops it, after
    // `stop_serving`; there is no other reference.
    unsafe { (line(SERVER).load(Relaxed) as *const Server).as_ref() }
}

/// The end of a critical section.
#[inline]
pub(crate) fn leave() {
    critical::leave(|| {
        call(number::clock, 0, 0);
    });
}

/// Tells the kernel which levels are ready or running on the vCPU of this thread.
/// Loads only, if that is what it knows.
#[inline]
pub(crate) fn publish(server: &Server, running: impl Fn() -> Option<Level>) {
    let word = line(LOCAL_BITMAP);
    let mut known = word.load(Relaxed);
    loop {
        let bits = server.executor.bitmap() | running().map_or(0, Level::bit);
        if bits == known {
            return;
        }
        // Another look afterwards: a wake may have come after the bits were read, and
        // set its own.
        word.store(bits, Release);
        known = bits;
    }
}

/// The same, with what runs now.
pub(crate) fn publish_all() {
    if let Some(server) = server() {
        publish(server, || server.executor.running_level());
    }
}

/// Something may have become ready on the vCPU of this thread, nothing less. Three
/// loads, if the kernel knows the levels of all that is.
#[inline]
pub(crate) fn publish_more() {
    if let Some(server) = server()
        && server.executor.bitmap() & !line(LOCAL_BITMAP).load(Relaxed) != 0
    {
        publish_all();
    }
}

/// What is ready or runs on other vCPUs may be more urgent than the kernel knows of their
/// threads, which it may have stopped: tells it. A few loads for each other vCPU, if it is
/// not.
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
    // One without work waits in the kernel, or is about to: a wake unparks it.
    if known == 0 || bits().trailing_zeros() >= known.trailing_zeros() {
        return;
    }
    // The thread itself looks once more after it has written the word, so what it says is
    // true in the end.
    word.fetch_or(bits(), AcqRel);
    call(number::follow, line as usize, 0);
}

/// Does something wait elsewhere that is more urgent than all there is here?
#[inline]
pub(crate) fn is_overtaken() -> bool {
    let here = line(LOCAL_BITMAP).load(Relaxed);
    // Those below the lowest bit; all, if nothing is here.
    let more_urgent = here.wrapping_sub(1) & !here;
    os_pages::global().load(Relaxed) & more_urgent != 0
}

/// A system call of at most two arguments; its answer.
pub(crate) fn call(number: usize, first: usize, second: usize) -> isize {
    let answer;
    // SAFETY: the calls of this module touch no memory; the kernel changes a0 only.
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

/// Ends the process.
pub(crate) fn exit(status: usize) -> ! {
    loop {
        call(number::exit, status, 0);
    }
}
