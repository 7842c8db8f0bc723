//! Primitives for coroutines that know about priorities.
//!
//! | type | what for |
//! |---|---|
//! | [`Mutex`] | exclusive access across `await`s; waiters lend their level to the holder |
//! | [`RwLock`] | one writer or several readers; waiters lend their level to the writer |
//! | [`Semaphore`] | a number of permits |
//! | [`Notify`] | waking without data |
//! | [`Barrier`] | a place where so many meet |
//! | [`OnceCell`] | a value made by the first that needs it; the others lend to it |
//! | [`SetOnce`] | a value that others wait for |
//! | [`CancellationToken`] | asking for an end, in a tree |
//! | [`mpsc`] | many senders, one receiver; bounded or not |
//! | [`oneshot`] | one value, once |
//! | [`watch`] | the latest value, for many |
//! | [`broadcast`] | every message to every receiver |
//!
//! Names and signatures are tokio's; `docs/ecosystem.md` lists what differs.
//!
//! All of them wake their waiters *most urgent level first*, first come first
//! served within a level; the level is the coroutine's effective one when it was
//! last polled, and [`Level::DEFAULT`] outside a runtime. What is released is
//! handed over to the next in that order, so no other can take it on the way.
//!
//! They work with any waker and on any thread: coroutines of several runtimes,
//! foreign executors, and (the `blocking_` calls of the channels) plain threads.
//! A future that is dropped while it waits leaves no trace; what it had been
//! handed goes to the next.
//!
//! Inside, each is a few words behind a lock that is held for some ten
//! instructions; there is no system call and, but for channels that grow and
//! queues that become longer than ever before, no allocation per operation.
//!
//! Besides the lock, only the word of [`Mutex`], the count of broadcasts of
//! [`Notify`], the counts of [`watch`] and the flag of [`OnceCell`] are atomics;
//! everything else is guarded by the lock. They, and what
//! becomes of a waiter that is dropped while it is chosen, are model-checked
//! (`scheduler/models`).

mod atomic;
mod barrier;
pub mod broadcast;
mod cancel;
#[cfg(not(loom))]
pub(crate) mod lock;
pub mod mpsc;
mod mutex;
mod notify;
mod once_cell;
pub mod oneshot;
mod park;
mod rwlock;
mod says;
mod semaphore;
mod set_once;
pub(crate) mod spare;
mod wait_queue;
pub mod watch;

use std::future::poll_fn;
use std::task::{Context, Waker};

use upshift_core::Level;

use crate::coroutine::coop;
use crate::host;
#[cfg(loom)]
use crate::lock;

pub use barrier::{Barrier, BarrierWaitResult};
pub use cancel::{CancellationToken, Cancelled, DropGuard};
pub(crate) use lock::{Guard, Lock};
pub use mutex::{Locking, Mutex, MutexGuard, OwnedMutexGuard, TryLockError};
pub use notify::{Notified, Notify, OwnedNotified};
pub use once_cell::{OnceCell, SetError};
pub use rwlock::{
    OwnedRwLockMappedWriteGuard, OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock,
    RwLockMappedWriteGuard, RwLockReadGuard, RwLockWriteGuard,
};
pub use semaphore::{
    Acquire, AcquireError, AcquireOwned, OwnedSemaphorePermit, Semaphore, SemaphorePermit,
    TryAcquireError,
};
pub use set_once::{SetOnce, SetOnceError};
pub(crate) use spare::{Spare, register, wake};

/// May a future that could complete do so, or must it give way first? Then it
/// gives its locks back, wakes itself and returns `Pending`.
#[inline]
pub(crate) fn may_proceed() -> bool {
    coop::poll_proceed(&mut Context::from_waker(Waker::noop())).is_ready()
}

/// [`may_proceed`] as a future, for primitives that are made of others.
async fn proceed() {
    poll_fn(coop::poll_proceed).await;
}

/// The level to wait at.
#[inline]
fn waiting_level() -> Level {
    host::current_level().unwrap_or_default()
}
