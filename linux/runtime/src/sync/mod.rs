//! Priority-aware primitives for coroutines.
//!
//! | type | purpose |
//! |---|---|
//! | [`Mutex`] | exclusive access across `await`s; waiters lend their level to the holder |
//! | [`RwLock`] | one writer or several readers; waiters lend their level to the writer |
//! | [`Semaphore`] | a number of permits |
//! | [`Notify`] | waking without data |
//! | [`Barrier`] | a rendezvous of a fixed number of coroutines |
//! | [`OnceCell`] | a value made by its first user, to which waiters lend their level |
//! | [`SetOnce`] | a value that is set once; coroutines wait for it |
//! | [`CancellationToken`] | requests that coroutines end, in a tree |
//! | [`mpsc`] | many senders, one receiver; bounded or not |
//! | [`oneshot`] | one value, once |
//! | [`watch`] | the latest value, for many |
//! | [`broadcast`] | every message to every receiver |
//!
//! Names and signatures are tokio's; `docs/ecosystem.md` lists the differences.
//!
//! All primitives wake their waiters *most urgent level first*, first come first served within a
//! level; the level is the coroutine's effective level when it was last polled, and
//! [`Level::DEFAULT`] outside a runtime. A released lock, permit or slot is handed over to the
//! next waiter in that order, so no newcomer can take it on the way.
//!
//! The primitives work with any waker and on any thread: coroutines of several runtimes, foreign
//! executors and, with the `blocking_` calls, plain threads.
//!
//! # Cancellation safety
//! Every future of this module may be dropped while it waits. A dropped future leaves its queue; a
//! lock, permit, slot or notification that it had been handed goes to the next waiter. Its place in
//! the queue is lost, because a new future queues behind the waiters of its level. Methods whose
//! cancellation has another effect say so.
//!
//! # Cost
//! Each primitive is a few words behind a lock that is held for about ten instructions; there is
//! no system call and, but for channels that grow and queues that become longer than ever before,
//! no allocation per operation.
//!
//! The lock guards the state of each primitive, except a few atomics: the word of [`Mutex`], the
//! count of broadcasts of [`Notify`], the counts of [`watch`] and the flag of [`OnceCell`]. The
//! Loom models in `scheduler/models` check these atomics, and the drop of a waiter while another
//! thread takes it out of the queue.

mod atomic;
mod barrier;
pub mod broadcast;
mod cancel;
mod error_text;
#[cfg(not(loom))]
pub(crate) mod lock;
pub mod mpsc;
mod mutex;
mod notify;
mod once_cell;
pub mod oneshot;
mod park;
mod rwlock;
mod semaphore;
mod set_once;
mod wait_queue;
pub(crate) mod waker;
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
pub use mutex::{Mutex, MutexGuard, MutexLockFuture, OwnedMutexGuard, TryLockError};
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
pub(crate) use waker::{LockSafeWaker, register, wake};

/// Returns true if a future that could complete may do so now. If false, the poll should give way
/// to other coroutines; then the future releases its locks, wakes itself and returns `Pending`.
#[inline]
pub(crate) fn may_proceed() -> bool {
    coop::poll_proceed(&mut Context::from_waker(Waker::noop())).is_ready()
}

/// Waits until [`may_proceed`] returns true, for primitives that are built from other primitives.
async fn proceed() {
    poll_fn(coop::poll_proceed).await;
}

/// Returns the level at which the caller waits.
#[inline]
fn waiting_level() -> Level {
    host::current_level().unwrap_or_default()
}
