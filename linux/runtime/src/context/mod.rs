//! Gives code access to the vCPU and the runtime of the calling thread, through a thread-local
//! pointer. Futures for I/O and timers reach their vCPU in this way.
//!
//! The pointer leads to the [`Worker`] whose loop runs on this thread. Outside a runtime
//! every function returns `None` or an error.

pub(crate) mod numbers;

use std::cell::{Cell, OnceCell};
use std::io;
use std::ptr::null;
use std::sync::{Arc, OnceLock, Weak};

use upshift_core::{CoroutineId, Domain, Level};

use crate::host::Linux;
use crate::preempt::permit::Critical;
use crate::runtime::shared::Shared;
use crate::time::timers::Timers;
use crate::tokio::thread_hooks::HooksGuard;
use crate::worker::Worker;

thread_local! {
    static WORKER: Cell<*const Worker> = const { Cell::new(null()) };
    static JOINED: OnceCell<(RuntimeCell, &'static str)> = const { OnceCell::new() };
}

/// Cell for a runtime, set once the runtime has been built. The reference can be upgraded while the
/// runtime lives.
pub(crate) type RuntimeCell = Arc<OnceLock<Weak<Shared>>>;

/// Makes the calling thread, which serves no vCPU, belong to `runtime`. The runtime then runs the
/// coroutines that the thread spawns, and does the work for the thread that only a vCPU can do.
/// `why_outside` is the error text of calls that fail because the thread serves no vCPU.
pub(crate) fn join_runtime(runtime: &RuntimeCell, why_outside: &'static str) {
    let _ = JOINED.try_with(|cell| cell.set((runtime.clone(), why_outside)));
}

/// Returns the runtime that the calling thread belongs to without serving a vCPU.
#[cold]
pub(crate) fn joined_runtime() -> Option<Arc<Shared>> {
    let runtime = JOINED.try_with(|cell| Some(cell.get()?.0.clone())).ok()??;
    runtime.get()?.upgrade()
}

/// Gives the calling thread this worker until the result is dropped, and begins the thread's hooks.
/// The hooks end only after the thread has given up the worker, because they are user code, which
/// could otherwise start coroutines while another thread changes the queues.
pub(crate) fn serve(worker: &Worker) -> Serving<'_> {
    Serving {
        _entered: enter(worker),
        _hooks: worker.shared().thread_hooks.begin(),
    }
}

/// Guard of [`serve`]. The fields are dropped in their order, so the worker is given up before the
/// hooks end.
pub(crate) struct Serving<'a> {
    _entered: Entered,
    _hooks: HooksGuard<'a>,
}

/// Gives the calling thread this worker until the result is dropped, to run code of the runtime.
pub(crate) fn enter(worker: &Worker) -> Entered {
    let previous = WORKER.replace(worker);
    // SAFETY: this thread has the vCPU's executor until `Entered` is dropped, as `serve` requires.
    // The worker owns the executor and is not `Sync`, and this thread borrows the worker until
    // then.
    unsafe { crate::host::serve(Some(worker.executor().vcpu())) };
    Entered { previous }
}

pub(crate) struct Entered {
    previous: *const Worker,
}

impl Drop for Entered {
    fn drop(&mut self) {
        WORKER.set(self.previous);
        // SAFETY: this thread has entered the previous worker, if any, and not left it yet, so it
        // still has that worker's executor.
        let worker = unsafe { self.previous.as_ref() };
        // SAFETY: as above.
        unsafe { crate::host::serve(worker.map(|worker| worker.executor().vcpu())) };
    }
}

/// Runs `f`, which must not run user code, with the worker of the calling thread.
#[inline]
pub(crate) fn with<R>(f: impl FnOnce(&Worker) -> R) -> Option<R> {
    let worker = WORKER.try_with(Cell::get).ok()?;
    // SAFETY: the pointer is null or valid, because it is set only from `enter` to the drop of
    // `Entered`, and the worker lives for that time.
    let worker = unsafe { worker.as_ref() }?;
    let _critical = Critical::enter();
    Some(f(worker))
}

/// Runs `f`, which may run user code, with the worker of the calling thread. The current poll may
/// be suspended meanwhile, so `f` must enter critical sections itself, as all functions of the core
/// do.
#[inline]
pub(crate) fn with_open<R>(f: impl FnOnce(&Worker) -> R) -> Option<R> {
    let worker = WORKER.try_with(Cell::get).ok()?;
    // SAFETY: as above. The pointer stays valid even if the poll is suspended, because a poll ends
    // on the thread that began it, before the worker's loop ends.
    unsafe { worker.as_ref() }.map(f)
}

/// Runs `f` as [`with_open`] does, with the domain of the calling thread's vCPU, or else of the
/// runtime that the thread belongs to.
#[inline]
pub(crate) fn with_domain<R>(f: impl FnOnce(&Domain<Linux>) -> R) -> Option<R> {
    let worker = WORKER.try_with(Cell::get).ok()?;
    let runtime;
    // SAFETY: the pointer is null or valid, as in `with_open`.
    let domain = match unsafe { worker.as_ref() } {
        Some(worker) => worker.executor().domain(),
        None => {
            runtime = joined_runtime()?;
            &runtime.domain
        }
    };
    Some(f(domain))
}

/// Runs `f` with the runtime of the calling thread.
pub(crate) fn with_shared<R>(f: impl FnOnce(&Arc<Shared>) -> R) -> Option<R> {
    let worker = WORKER.try_with(Cell::get).ok()?;
    // SAFETY: the pointer is null or valid, as in `with_open`.
    match unsafe { worker.as_ref() } {
        Some(worker) => Some(f(worker.shared())),
        None => joined_runtime().map(|shared| f(&shared)),
    }
}

pub(crate) fn try_with<R>(f: impl FnOnce(&Worker) -> R) -> io::Result<R> {
    with(f).ok_or_else(outside)
}

pub(crate) fn outside() -> io::Error {
    io::Error::other(why_outside())
}

/// Returns why the calling thread serves no vCPU, and which call to use instead.
pub(crate) fn why_outside() -> &'static str {
    const MESSAGE: &str = "no upshift runtime on this thread: call this from a coroutine (of `#[upshift::main]`, \
                           `Runtime::block_on` or `upshift::spawn`), or spawn through an `upshift::Handle` that you got in one. \
                           Tasks of a tokio runtime that you have started yourself are not coroutines; those of \
                           `tokio::spawn` in a coroutine belong to its runtime";
    if joined_runtime().is_none() {
        return MESSAGE;
    }
    JOINED
        .try_with(|cell| cell.get().map_or(MESSAGE, |(_, why)| why))
        .unwrap_or(MESSAGE)
}

/// The holder of a lock that lends, as identified by [`record_lock`]. Such a lock lends the level
/// of its most urgent waiter to its holder.
pub(crate) enum LockOwner {
    /// A coroutine of the lock's runtime, by its id. The domain has counted the lock.
    Named(CoroutineId),
    /// A coroutine of the runtime with this number, which is not the lock's runtime.
    Elsewhere(u64),
    /// Code outside of coroutines, or a coroutine of a runtime without a number.
    Unnamed,
}

/// Records that the current coroutine takes a lock that lends. The lock belongs to the runtime with
/// this number. See [`upshift_core::Domain::record_lock`].
#[inline]
pub(crate) fn record_lock(runtime: u64) -> LockOwner {
    with(|worker| {
        let number = &worker.shared().number;
        if number.get() == runtime {
            match worker.executor().domain().record_lock() {
                Some(id) => LockOwner::Named(id),
                None => LockOwner::Unnamed,
            }
        } else if number.is_numbered() {
            LockOwner::Elsewhere(number.get())
        } else {
            LockOwner::Unnamed
        }
    })
    .unwrap_or(LockOwner::Unnamed)
}

/// Returns the number of the calling coroutine's runtime, and the id of the coroutine; `None`
/// unless both exist.
pub(crate) fn current_global_id() -> Option<(u64, CoroutineId)> {
    let number = with(|worker| {
        let number = &worker.shared().number;
        number.is_numbered().then(|| number.get())
    });
    number.flatten().zip(crate::host::current_id())
}

/// Returns the id of the calling coroutine, if it belongs to the runtime with this number.
pub(crate) fn current_in(runtime: u64) -> Option<CoroutineId> {
    with(|worker| worker.shared().number.get() == runtime)
        .unwrap_or(false)
        .then(crate::host::current_id)
        .flatten()
}

pub(crate) fn is_alive(runtime: u64) -> bool {
    numbers::is_alive(runtime)
}

/// Gives a lock to its waiter `id` of the runtime with this number. Returns false if that coroutine
/// has exited.
pub(crate) fn record_handover(runtime: u64, id: CoroutineId) -> bool {
    let mut lives = false;
    with_domain_of(runtime, |domain| lives = domain.record_handover(id).is_ok());
    lives
}

/// Records the release of a lock that the coroutine `id`, of the runtime with this number, held.
#[inline]
pub(crate) fn record_unlock(runtime: u64, id: CoroutineId) {
    with_domain_of(runtime, |domain| domain.record_unlock(id));
}

/// Runs `f`, which must not run user code, with the domain of the runtime with this number. Fast if
/// that is the caller's own runtime, as it usually is.
#[inline]
fn with_domain_of(runtime: u64, mut f: impl FnMut(&Domain<Linux>)) {
    let here = with(|worker| {
        let is_here = worker.shared().number.get() == runtime;
        if is_here {
            f(worker.executor().domain());
        }
        is_here
    });
    if here != Some(true) {
        numbers::with(runtime, f);
    }
}

/// Lends the level of the current coroutine to `holder`, which holds the lock for which the
/// coroutine waits. Both belong to the runtime with this number.
pub(crate) fn lend_to_holder(runtime: u64, holder: CoroutineId) {
    with(|worker| {
        if worker.shared().number.get() == runtime {
            worker.executor().domain().lend_to_holder(holder);
        }
    });
}

/// Returns the level at which the current coroutine queues for a lock that lends; see
/// [`upshift_core::Domain::level_to_lend`].
pub(crate) fn level_to_lend() -> Option<Level> {
    with(|worker| worker.executor().domain().level_to_lend()).flatten()
}

/// Lends `level`, the level of a waiter, to the holder of a lock. The holder belongs to the runtime
/// with this number.
pub(crate) fn lend(runtime: u64, holder: CoroutineId, level: Level) {
    with_domain_of(runtime, |domain| domain.lend(holder, level));
}

/// Changes the level that is lent to `holder` to `level`, the level of its most urgent waiter. The
/// holder belongs to the runtime with this number. See [`upshift_core::Domain::set_loan`].
pub(crate) fn set_loan(runtime: u64, holder: CoroutineId, level: Option<Level>) {
    with_domain_of(runtime, |domain| domain.set_loan(holder, level));
}

/// Returns the level of a coroutine of the runtime with this number, unless it has exited.
pub(crate) fn level_of(runtime: u64, id: CoroutineId) -> Option<Level> {
    let mut level = None;
    with_domain_of(runtime, |domain| level = domain.level(id).ok());
    level
}

/// Returns whether `timers` are those of the calling thread's vCPU.
pub(crate) fn has_timers(timers: &Timers) -> bool {
    with(|worker| std::ptr::eq(&raw const **worker.timers(), timers)).unwrap_or(false)
}

#[cfg(test)]
mod outside_of_uses;
