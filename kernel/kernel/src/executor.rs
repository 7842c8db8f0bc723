//! The kernel's coroutines, and the loop in which each hart runs them.
//!
//! The kernel is a *domain*, that is, a set of vCPUs that share one table of coroutines. Each hart
//! serves one vCPU of `upshift-core`; there are no kernel threads. The loop never finds
//! its queues empty, because the *switching coroutine* of the hart is always ready. Its poll runs
//! user programs, or waits for an interrupt.
//!
//! Levels 0 to 62 are for work. A switching coroutine without a program to run has level 63.

use core::future::{Future, poll_fn};
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::fence;
use core::task::Poll;

use upshift_core::{
    Config, CoroutineId, Domain, Executor, JoinHandle, Level, Picked, Polled, SpawnError,
    SpawnOptions, Vcpu,
};

use crate::arch::host::{KernelHost, make_switching};
use crate::arch::lock::{IrqLock, Once};
use crate::arch::{csr, hart_index};
use crate::trace::Purpose;
use crate::{MAX_HARTS, chaos, clock, hart, run_queue, switching, trace};

/// The least urgent level that work may have.
pub(crate) const LEAST_URGENT_WORK: Level = Level::at::<62>();

/// Initial capacity of the scheduler's table: about two processes with the maximum number of calls.
/// With more coroutines the table grows, and does not shrink.
const COROUTINES: usize = 8192;

/// While polls are shorter than this, in microseconds, the scheduler reads the clock only at every
/// fourth poll, because the kernel does not use the scheduler's CPU times.
const COARSE_BELOW_MICROS: u64 = 20;

static DOMAIN: Once<Domain<KernelHost>> = Once::new();

/// The executors, until their harts take them.
static EXECUTORS: [IrqLock<Option<Executor<KernelHost>>>; MAX_HARTS] =
    [const { IrqLock::new(None) }; MAX_HARTS];

pub(crate) fn domain() -> &'static Domain<KernelHost> {
    DOMAIN.get()
}

/// Creates the domain, with a vCPU for each of `harts` harts.
///
/// # Panics
/// If there is no memory, while booting.
pub(crate) fn init(harts: usize) {
    let config = Config {
        coarse_below: clock::from_micros(COARSE_BELOW_MICROS),
        ..Config::default()
    };
    let domain = Domain::new(KernelHost, config);
    domain.reserve(COROUTINES).expect("memory to boot");
    for slot in &EXECUTORS[..harts] {
        let executor = domain.add_vcpu().expect("as many vCPUs as harts");
        *slot.lock() = Some(executor);
    }
    DOMAIN.set(domain);
}

/// Removes the vCPU of hart `index`, which will never serve it. Other vCPUs take its coroutines.
pub(crate) fn remove_vcpu(index: usize) {
    let executor = EXECUTORS[index].lock().take();
    drop(executor);
}

/// Starts a coroutine of the kernel.
///
/// # Errors
/// [`SpawnError`]; the future is dropped.
pub(crate) fn spawn<F>(
    future: F,
    options: impl Into<SpawnOptions>,
) -> Result<JoinHandle<F::Output, KernelHost>, SpawnError>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    domain().spawn(future, options)
}

/// Yields once: the coroutine moves to the tail of its level.
pub(crate) fn yield_now() -> impl Future<Output = ()> {
    let mut yielded = false;
    poll_fn(move |cx| {
        if core::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
}

pub(crate) fn level() -> Level {
    domain().current_level().unwrap_or(LEAST_URGENT_WORK)
}

/// Allocates everything that hart `index` needs to serve its vCPU, before the hart is started. On a
/// busy host the hart may start late, when programs already use the memory; an allocation at that
/// time would take memory from them.
///
/// # Panics
/// If there is no memory, at boot time.
pub(crate) fn prepare(index: usize) {
    let slot = EXECUTORS[index].lock();
    let executor = slot.as_ref().expect("one executor per hart");
    let switching = make_switching(executor, switching::run()).expect("memory to boot");
    trace::name(switching, Purpose::Switching);
    let hart = hart::at(index);
    hart.timers.lock().reserve().expect("memory to boot");
    hart.switching.store(switching.to_u64(), Relaxed);
}

/// Takes the executor of the calling hart, which begins to serve its vCPU. Allocates nothing.
///
/// # Panics
/// If called twice on a hart, or before [`prepare`].
pub(crate) fn take() -> Executor<KernelHost> {
    let index = hart_index();
    let executor = EXECUTORS[index].lock().take();
    let executor = executor.expect("one loop per hart");
    let hart = hart::this();
    hart.vcpu.store(executor.vcpu().as_ptr(), Relaxed);
    let switching = CoroutineId::from_u64(hart.switching.load(Relaxed));
    domain()
        .wake(switching)
        .expect("the switching coroutine never ends");
    hart::set_online(index);
    executor
}

pub(crate) fn run(executor: &Executor<KernelHost>) -> ! {
    csr::interrupts_restore(true);
    let mut yielded = None;
    loop {
        chaos::disturb();
        interrupt_overtaken();
        // The pick is never `None`, because the switching coroutine is ready or running; it is
        // never `Resume`, because the kernel suspends no poll.
        if let Some(Picked::Poll(coroutine)) = executor.pick(yielded.take())
            && let Polled::Yielded(handle) = coroutine.poll()
        {
            yielded = Some(handle);
        }
    }
}

/// Returns whether any hart has a ready kernel coroutine that is at least as urgent as the
/// coroutine that the calling hart runs on `vcpu`.
pub(crate) fn has_as_urgent(vcpu: &Vcpu<KernelHost>) -> bool {
    let level = vcpu.running_level().unwrap_or(Level::LEAST_URGENT);
    domain().bitmap() & (level.more_urgent_bits() | level.bit()) != 0
}

/// Returns whether any hart has a ready kernel coroutine that is more urgent than `level`. Includes
/// coroutines in inboxes, which `Vcpu::need_preempt` may not include.
pub(crate) fn has_more_urgent(level: Level) -> bool {
    domain().bitmap() & level.more_urgent_bits() != 0
}

/// Interrupts the hart that runs the least urgent program, if a kernel coroutine that is more
/// urgent than that program is ready on any hart.
///
/// The scheduler notifies the host of a wake only if the vCPU is parked. A hart in user mode is not
/// parked, because it is inside a poll that may never end. Therefore the waking hart checks the
/// harts in user mode, after its poll or before it enters user mode itself; the interrupted hart
/// takes the coroutine from any queue.
///
/// No wake is missed. A hart sets its bit in [`hart::in_user`] before it checks the queues for the
/// last time (`switching.rs`), and the waking hart fills the queue before it reads the bits. These
/// accesses are sequentially consistent, so either the hart finds the coroutine, or the waking hart
/// sees the bit. Costs a load if no hart is in user mode, else O(harts).
pub(crate) fn interrupt_overtaken() {
    fence(SeqCst);
    let in_user = hart::in_user();
    if in_user == 0 {
        return;
    }
    let waiting = domain().bitmap();
    let mut least_urgent = (waiting.trailing_zeros(), None);
    for index in (0..MAX_HARTS).filter(|index| in_user >> index & 1 != 0) {
        // Use the level of the thread, because the switching coroutine stays raised for threads
        // that other harts have taken meanwhile.
        if let Some(level) = run_queue::running_level(index)
            && u32::from(level.get()) > least_urgent.0
        {
            least_urgent = (u32::from(level.get()), Some(index));
        }
    }
    if let Some(index) = least_urgent.1
        && hart::clear_in_user(index)
    {
        hart::interrupt(index);
    }
}

/// Offers waiting coroutines to sleeping harts before the calling hart, `index`, enters user mode,
/// perhaps for ever. A sleeping hart takes coroutines that wait on the calling hart, or behind the
/// programs of other harts.
///
/// A hart that has become idle checks all queues before it sleeps. A hart that is woken by this
/// call takes only coroutines that are more urgent than its own, and calls this function itself
/// before it runs a program. So while a hart sleeps, no coroutine waits behind a program. Costs two
/// loads while no hart sleeps, else O(harts in user mode).
pub(crate) fn announce_waiting(index: usize) {
    fence(SeqCst);
    if domain().idle_vcpus() == 0 {
        return;
    }
    let harts = hart::in_user() | 1 << index;
    let vcpus = domain().vcpus().enumerate();
    for (_, vcpu) in vcpus.filter(|(index, _)| harts >> index & 1 != 0) {
        vcpu.announce();
    }
}
