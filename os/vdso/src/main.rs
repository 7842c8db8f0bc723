//! The scheduler of user programs: `upshift-core`, as one position-independent
//! image that the kernel maps into every process.
//!
//! Its text is shared by all and cannot be written; its data is private to each.
//! The functions below are what `os_abi::vdso_functions!` lists; they take and
//! return words, so that a program binds to the image whatever compiler made
//! either. The program brings the memory ([`upshift_init`]) and the coroutines
//! ([`upshift_spawn`]); wakers are ids.
//!
//! One thread of the process calls them, but for a *user interrupt*, which stops
//! that thread anywhere, also in here. Between `upshift_interrupt(1)` and
//! `upshift_interrupt(0)` only `upshift_wake` may be called: it goes through the
//! inbox and takes no lock (`Host::current`).

#![no_std]
#![no_main]

extern crate alloc;

mod host;
mod memory;

use alloc::boxed::Box;
use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::task::{Context, Poll};

use os_abi::shared::{INHERIT, Turn};
use upshift_core::{
    Config, CoroutineId, Domain, Executor, Level, Picked, Polled, Priority, SpawnOptions, Yielded,
};

use host::VdsoHost;

/// The executor of the process, once [`upshift_init`] has made it.
static EXECUTOR: AtomicPtr<Executor<VdsoHost>> = AtomicPtr::new(core::ptr::null_mut());

fn executor() -> Option<&'static Executor<VdsoHost>> {
    // SAFETY: null, or a box that was leaked; used by one thread.
    unsafe { EXECUTOR.load(Acquire).as_ref() }
}

/// Makes the scheduler. `allocate(size, align)` and `release(address, size,
/// align)` are the program's. 1: done; 0: no memory, or it was done before.
#[unsafe(no_mangle)]
extern "C" fn upshift_init(allocate: u64, release: u64) -> u64 {
    if executor().is_some() || !memory::set(allocate, release) {
        return 0;
    }
    let Ok(executor) = Domain::new(VdsoHost, Config::default()).add_vcpu() else {
        return 0;
    };
    host::serve(executor.vcpu());
    EXECUTOR.store(Box::into_raw(Box::new(executor)), Release);
    1
}

/// A coroutine of the program.
struct Task {
    task: u64,
    poll: extern "C" fn(u64) -> u64,
    discard: extern "C" fn(u64),
}

impl Future for Task {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        match (self.poll)(self.task) {
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

/// Starts a coroutine: `poll(task)` until it answers other than 0, then
/// `discard(task)`. A level above 63 is the spawner's own. Returns its id; 0: no
/// memory, and `task` is discarded.
#[unsafe(no_mangle)]
extern "C" fn upshift_spawn(task: u64, poll: u64, discard: u64, level: u64) -> u64 {
    // SAFETY: the program passes functions of these types; with anything else it
    // harms itself only.
    let task = unsafe {
        Task {
            task,
            poll: core::mem::transmute::<u64, extern "C" fn(u64) -> u64>(poll),
            discard: core::mem::transmute::<u64, extern "C" fn(u64)>(discard),
        }
    };
    let level = u8::try_from(level).unwrap_or(INHERIT);
    let options = SpawnOptions {
        priority: Level::new(level).map_or(Priority::Inherit, Priority::At),
        ..SpawnOptions::default()
    };
    let spawned = executor().map(|executor| executor.domain().spawn(task, options));
    host::publish(executor(), None);
    match spawned {
        Some(Ok(handle)) => handle.id().to_u64(),
        _ => 0,
    }
}

/// Wakes a coroutine. 1: it will be polled once more; 0: the id is dead.
#[unsafe(no_mangle)]
extern "C" fn upshift_wake(id: u64) -> u64 {
    let id = CoroutineId::from_u64(id);
    let woken = executor().is_some_and(|executor| executor.domain().wake(id).is_ok());
    host::publish(executor(), None);
    u64::from(woken)
}

/// Gives a coroutine another level. 1: done; 0: the id is dead, or no such level.
#[unsafe(no_mangle)]
extern "C" fn upshift_reprio(id: u64, level: u64) -> u64 {
    let id = CoroutineId::from_u64(id);
    let level = u8::try_from(level)
        .ok()
        .and_then(|level| Level::new(level).ok());
    let done = level
        .zip(executor())
        .is_some_and(|(level, executor)| executor.domain().reprio(id, level).is_ok());
    host::publish(executor(), None);
    u64::from(done)
}

/// Cancels a coroutine: its task is discarded instead of polled. 1: it lived.
#[unsafe(no_mangle)]
extern "C" fn upshift_cancel(id: u64) -> u64 {
    let id = CoroutineId::from_u64(id);
    u64::from(executor().is_some_and(|executor| executor.domain().cancel(id).is_ok()))
}

/// The id of the coroutine that runs (`get_cid`); 0: none.
#[unsafe(no_mangle)]
extern "C" fn upshift_current() -> u64 {
    let id = executor().and_then(|executor| executor.current_id());
    id.map_or(0, CoroutineId::to_u64)
}

/// Has something more urgent than the running coroutine become ready, here or in
/// another process or the kernel?
#[unsafe(no_mangle)]
extern "C" fn upshift_need_preempt() -> u64 {
    let here = executor().is_some_and(|executor| executor.need_preempt());
    u64::from(here || host::is_overtaken())
}

/// Polls the most urgent ready coroutine once, and says what is next.
#[unsafe(no_mangle)]
extern "C" fn upshift_turn() -> u64 {
    static BACK: host::Back = host::Back::new();
    let Some(executor) = executor() else {
        return Turn::Idle as u64;
    };
    let back: Option<Yielded<'static, VdsoHost>> = BACK.take();
    let Some(Picked::Poll(coroutine)) = executor.pick(back) else {
        host::publish(Some(executor), None);
        return Turn::Idle as u64;
    };
    host::publish(Some(executor), Some(coroutine.level()));
    if let Polled::Yielded(yielded) = coroutine.poll() {
        BACK.put(yielded);
    }
    match host::is_overtaken() {
        true => Turn::Overtaken as u64,
        false => Turn::Polled as u64,
    }
}

/// Is anything ready? Asked before the thread waits, with interrupts held off, so
/// that no wake slips in between.
#[unsafe(no_mangle)]
extern "C" fn upshift_has_ready() -> u64 {
    u64::from(executor().is_some_and(|executor| executor.has_arrivals()))
}

/// A user interrupt begins (1) or ends (0).
#[unsafe(no_mangle)]
extern "C" fn upshift_interrupt(begins: u64) -> u64 {
    host::IN_INTERRUPT.store(begins != 0, Relaxed);
    0
}

/// There is no unwinding: the process ends.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    host::exit(101)
}
