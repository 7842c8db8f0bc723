//! Primitives for coroutines that know about priorities.
//!
//! | type | what for |
//! |---|---|
//! | [`Mutex`] | exclusive access across `await`s; waiters lend their level to the holder |
//! | [`Semaphore`] | a number of permits |
//! | [`Notify`] | waking without data |
//! | [`mpsc`] | many senders, one receiver; bounded or not |
//! | [`oneshot`] | one value, once |
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
//! Besides the lock, only the word of [`Mutex`] and the count of broadcasts of
//! [`Notify`] are atomics; everything else is guarded by the lock. They, and what
//! becomes of a waiter that is dropped while it is chosen, are model-checked
//! (`crates/runtime-models`).

mod atomic;
#[cfg(not(loom))]
mod lock;
pub mod mpsc;
mod mutex;
mod notify;
pub mod oneshot;
mod park;
mod semaphore;
mod spare;
mod wait_queue;

use std::task::{Context, Waker};

use upshift_core::Level;

#[cfg(loom)]
use crate::lock;
use crate::{context, coop};

pub(crate) use lock::Lock;
pub use mutex::{Locking, Mutex, MutexGuard, TryLockError};
pub use notify::{Notified, Notify};
pub use semaphore::{
    Acquire, AcquireError, AcquireOwned, OwnedPermit, Permit, Semaphore, TryAcquireError,
};
pub(crate) use spare::Spare;

/// May a future that could complete do so, or must it give way first? Then it
/// gives its locks back, wakes itself and returns `Pending`.
#[inline]
pub(crate) fn may_proceed() -> bool {
    coop::poll_proceed(&mut Context::from_waker(Waker::noop())).is_ready()
}

/// The level to wait at.
#[inline]
fn waiting_level() -> Level {
    context::current_level().unwrap_or_default()
}
