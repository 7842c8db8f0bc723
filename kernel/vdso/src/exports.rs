//! Exports the functions that programs call by name: `os_abi::vdso_functions!`.

use alloc::boxed::Box;
use core::cell::Cell;
use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::Ordering::Relaxed;
use core::task::{Context, Poll};

use os_abi::shared::{INHERIT, NO_LEVEL, PollOutcome};
use os_abi::thread::IN_INTERRUPT;
use os_pages::critical;
use upshift_core::{
    Config, CoroutineId, Domain, JoinHandle, Level, Picked, Polled, Priority, SpawnError,
    SpawnOptions,
};

use crate::host::{self, Server, VdsoHost, domain, server};
use crate::{chaos, memory};

/// Length of polls, in ticks, below which the scheduler reads the clock only at every fourth poll.
/// Programs do not see the scheduler's CPU times, and the kernel enforces the quanta.
const COARSE_BELOW: u64 = 200;

/// Creates the scheduler; the calling thread serves its first vCPU. `allocate(size, align)` and
/// `release(address, size, align)` are functions of the program that fulfil the contract of an
/// allocator. Returns 1, or 0 if there is no memory or a scheduler exists.
#[unsafe(no_mangle)]
extern "C" fn upshift_init(allocate: u64, release: u64) -> u64 {
    if domain().is_some() || !memory::set(allocate, release) {
        return 0;
    }
    chaos::init();
    let config = Config {
        chaos: chaos::seed(),
        coarse_below: COARSE_BELOW,
        ..Config::default()
    };
    let domain = Box::new(Domain::new(VdsoHost, config));
    if !host::set_domain(Box::into_raw(domain)) {
        return 0;
    }
    serve()
}

/// Makes the calling thread serve another vCPU (`alloc_cpu`). Returns 1, or 0 if there is no
/// scheduler, if the thread already serves a vCPU, or if there are too many vCPUs.
#[unsafe(no_mangle)]
extern "C" fn upshift_serve() -> u64 {
    serve()
}

fn serve() -> u64 {
    let Some(domain) = domain().filter(|_| server().is_none()) else {
        return 0;
    };
    let Ok(executor) = domain.add_vcpu() else {
        return 0;
    };
    let index = executor.index();
    let server = Box::into_raw(Box::new(Server {
        executor,
        yielded: Cell::new(None),
    }));
    if !host::serve(server, index) {
        // SAFETY: the box was just created, and `host::serve` has not published it.
        drop(unsafe { Box::from_raw(server) });
        return 0;
    }
    1
}

/// Retires the calling thread's vCPU: its pinned coroutines are discarded, and the rest migrate to
/// the other vCPUs. Returns 1, or 0 if the thread served none.
#[unsafe(no_mangle)]
extern "C" fn upshift_release() -> u64 {
    let Some(server) = server() else { return 0 };
    drop(server.yielded.take());
    // The vCPU retires while the line still contains the address of its server.
    server.executor.retire();
    let server = core::ptr::from_ref(server).cast_mut();
    host::stop_serving();
    // SAFETY: `serve` has boxed the server, and no reference is left, because the line of the
    // thread no longer contains the address of the server, and other threads know only the vCPU.
    drop(unsafe { Box::from_raw(server) });
    1
}

/// A coroutine of the program.
struct Task {
    task: u64,
    /// Id of the coroutine after its first poll; 0 before.
    id: u64,
    poll: extern "C" fn(u64, u64) -> u64,
    discard: extern "C" fn(u64),
}

impl Future for Task {
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if self.id == 0 {
            self.id = upshift_current();
        }
        match (self.poll)(self.task, self.id) {
            0 => Poll::Pending,
            _ => Poll::Ready(()),
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        (self.discard)(self.task);
    }
}

type Spawned = Result<JoinHandle<(), VdsoHost>, SpawnError>;

fn spawn(
    [task, poll, discard, level]: [u64; 4],
    spawn: impl FnOnce(Task, SpawnOptions) -> Option<Spawned>,
) -> u64 {
    // SAFETY: the program passes functions of these types; other values harm only the program.
    let task = unsafe {
        Task {
            task,
            id: 0,
            poll: core::mem::transmute::<u64, extern "C" fn(u64, u64) -> u64>(poll),
            discard: core::mem::transmute::<u64, extern "C" fn(u64)>(discard),
        }
    };
    let level = u8::try_from(level).unwrap_or(INHERIT);
    let options = SpawnOptions {
        priority: Level::new(level).map_or(Priority::Inherit, Priority::At),
        ..SpawnOptions::default()
    };
    let spawned = spawn(task, options);
    host::publish_new_levels();
    match spawned {
        Some(Ok(handle)) => handle.id().to_u64(),
        _ => 0,
    }
}

/// Spawns a coroutine. `poll(task, id)` is called until it returns a value other than 0, then
/// `discard(task)`, on any thread that serves a vCPU. A level above 63 means the spawner's level.
/// Returns the id, or 0 if there is no memory; then `task` is discarded.
#[unsafe(no_mangle)]
extern "C" fn upshift_spawn(task: u64, poll: u64, discard: u64, level: u64) -> u64 {
    spawn([task, poll, discard, level], |task, options| {
        domain().map(|domain| domain.spawn(task, options))
    })
}

/// Spawns a coroutine that stays on the calling thread. Also returns 0 if that thread serves no
/// vCPU.
#[unsafe(no_mangle)]
extern "C" fn upshift_spawn_local(task: u64, poll: u64, discard: u64, level: u64) -> u64 {
    spawn([task, poll, discard, level], |task, options| {
        // SAFETY: the task consists of words and functions, and as such is `Send`. The object
        // behind it is polled and discarded by the thread that serves the vCPU, which does not
        // change until the vCPU is retired.
        server().map(|server| unsafe { server.executor.spawn_pinned(task, options) })
    })
}

/// Wakes a coroutine. Returns 1 if it will be polled again, 0 if the id is dead.
#[unsafe(no_mangle)]
extern "C" fn upshift_wake(id: u64) -> u64 {
    let id = CoroutineId::from_u64(id);
    let woken = domain().is_some_and(|domain| domain.wake(id).is_ok());
    host::publish_new_levels();
    host::publish_others();
    u64::from(woken)
}

/// Changes the level of a coroutine. Returns 1, or 0 if the id is dead or the level does not exist.
#[unsafe(no_mangle)]
extern "C" fn upshift_reprio(id: u64, level: u64) -> u64 {
    let id = CoroutineId::from_u64(id);
    let level = u8::try_from(level)
        .ok()
        .and_then(|level| Level::new(level).ok());
    let is_set = level
        .zip(domain())
        .is_some_and(|(level, domain)| domain.reprio(id, level).is_ok());
    host::publish_all();
    host::publish_others();
    u64::from(is_set)
}

/// Cancels a coroutine, whose task is discarded instead of polled. Returns 1 if it was alive.
#[unsafe(no_mangle)]
extern "C" fn upshift_cancel(id: u64) -> u64 {
    let id = CoroutineId::from_u64(id);
    u64::from(domain().is_some_and(|domain| domain.cancel(id).is_ok()))
}

/// Returns the id of the coroutine that runs on the calling thread (`get_cid`), or 0 if none runs.
#[unsafe(no_mangle)]
extern "C" fn upshift_current() -> u64 {
    let id = server().and_then(|server| server.executor.current_id());
    id.map_or(0, CoroutineId::to_u64)
}

/// Returns whether more urgent work than the running coroutine is ready, in this process, in
/// another process or in the kernel.
#[unsafe(no_mangle)]
extern "C" fn upshift_need_preempt() -> u64 {
    let local = server().is_some_and(|server| server.executor.need_preempt());
    u64::from(local && chaos::honours_preemption() || host::is_overtaken())
}

/// Polls the most urgent ready coroutine once, if there is one. Returns a [`PollOutcome`].
#[unsafe(no_mangle)]
extern "C" fn upshift_turn() -> u64 {
    let Some(server) = server() else {
        return PollOutcome::Idle as u64;
    };
    critical::enter();
    let picked = server.executor.pick(server.yielded.take());
    let Some(Picked::Poll(coroutine)) = picked else {
        host::publish(server, || None);
        host::leave();
        return PollOutcome::Idle as u64;
    };
    let level = coroutine.level();
    host::publish(server, || Some(level));
    host::leave();
    if let Polled::Yielded(handle) = coroutine.poll() {
        server.yielded.set(Some(handle));
    }
    if host::is_overtaken() || chaos::forces_yield() {
        PollOutcome::Overtaken as u64
    } else {
        PollOutcome::Polled as u64
    }
}

/// Announces that the calling thread is about to wait in the kernel. Returns 1 if the thread may
/// wait. From then on each wake ends the wait, and `upshift_unpark` must follow. Returns 0 if there
/// is work.
#[unsafe(no_mangle)]
extern "C" fn upshift_prepare_park() -> u64 {
    let ready = server().is_none_or(|server| server.executor.prepare_park());
    u64::from(ready)
}

/// Ends the wait that `upshift_prepare_park` announced.
#[unsafe(no_mangle)]
extern "C" fn upshift_unpark() -> u64 {
    if let Some(server) = server() {
        server.executor.unpark();
    }
    0
}

/// Announces that the running coroutine waits for work that must have the coroutine's level. While
/// the coroutine is blocked, it is polled whenever its level changes. Returns the level, or
/// `NO_LEVEL` if no coroutine runs.
#[unsafe(no_mangle)]
extern "C" fn upshift_waits() -> u64 {
    record_wait()
}

fn record_wait() -> u64 {
    let level = domain().and_then(Domain::record_wait);
    level.map_or(NO_LEVEL, |level| u64::from(level.get()))
}

/// Lends the running coroutine's level to the coroutine `id`, for which it waits; `before` is the
/// level lent so far. Returns the level lent now, or `NO_LEVEL` if none is lent. A coroutine lends
/// to one other coroutine at a time.
#[unsafe(no_mangle)]
extern "C" fn upshift_lend(id: u64, before: u64) -> u64 {
    let level = record_wait();
    let Some(domain) = domain().filter(|_| level != NO_LEVEL && level != before) else {
        return before;
    };
    let id = CoroutineId::from_u64(id);
    // An existing loan can only become more urgent. To lend a less urgent level, begin a new loan.
    if level > before || before == NO_LEVEL {
        if before != NO_LEVEL {
            end_loan(domain, id);
        }
        if domain.record_handover(id).is_err() {
            return NO_LEVEL;
        }
    }
    domain.lend_to_holder(id);
    host::publish_all();
    host::publish_others();
    level
}

/// Ends the loan to the coroutine `id`, for which no coroutine waits any longer.
#[unsafe(no_mangle)]
extern "C" fn upshift_end_loan(id: u64) -> u64 {
    if let Some(domain) = domain() {
        end_loan(domain, CoroutineId::from_u64(id));
        host::publish_all();
    }
    0
}

fn end_loan(domain: &Domain<VdsoHost>, id: CoroutineId) {
    domain.record_unlock(id);
    // The wake lets the coroutine pass its level on to the coroutine for which it waits.
    let _ = domain.wake(id);
}

/// Marks the beginning (1) or the end (0) of a user interrupt of the calling thread.
#[unsafe(no_mangle)]
extern "C" fn upshift_interrupt(begins: u64) -> u64 {
    os_pages::line(IN_INTERRUPT).store(begins, Relaxed);
    0
}
