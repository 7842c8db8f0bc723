//! Coroutines under tokio's names: functions that spawn, handles to results, and sets.
//!
//! A task is a coroutine at the level of its spawner; use [`crate::spawn`] to choose another level.
//! Awaiting a [`JoinHandle`] lends the waiter's level to the task until the wait ends.
//! [`JoinSet::join_next`] lends the level to all tasks of the set until they exit or leave the set.
//!
//! A panic ends its task and nothing else, even if the payload's destructor panics. The panic
//! hook reports each panic once, by default on standard error. A handle that is kept returns the
//! panic as a [`JoinError`]. The panic of a detached task is also reported in a line on standard
//! error, unless [warnings](crate::Builder::warnings) are off.
//!
//! ```
//! use upshift::task::{self, JoinSet};
//!
//! upshift::Runtime::new()?.block_on(async {
//!     let mut set = JoinSet::new();
//!     for n in 0..3 {
//!         set.spawn(async move { n });
//!     }
//!     let one = task::spawn(async { 1 }).await.unwrap();
//!     assert_eq!(set.join_all().await.into_iter().sum::<i32>() + one, 4);
//! });
//! # Ok::<(), std::io::Error>(())
//! ```

pub mod coop;
mod handle;
mod local;
mod set;

use std::future::Future;

use upshift_core::Priority;

pub use crate::coroutine::coop::poll_piece;
pub use crate::coroutine::{spawn_blocking, try_spawn_blocking};
pub use coop::{consume_budget, unconstrained};
pub use handle::{AbortHandle, Id, JoinError, JoinHandle, id, try_id};
pub use local::{LocalSet, spawn_local};
pub use set::JoinSet;

/// Starts a coroutine like [`crate::spawn`], at the level of the caller.
///
/// # Panics
/// Where [`crate::spawn`] does.
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let handle = upshift::task::spawn(async { upshift::current_level() });
/// assert_eq!(handle.await.unwrap(), upshift::current_level());
/// # });
/// ```
#[track_caller]
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    crate::spawn(future, Priority::Inherit)
}

/// Moves the coroutine to the tail of its level, as [`crate::yield_now`] does.
///
/// ```
/// use upshift::task;
///
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let equal = task::spawn(async {});
/// task::yield_now().await;
/// assert!(equal.is_finished());
/// # });
/// ```
pub async fn yield_now() {
    crate::yield_now().await;
}

/// Runs a blocking function in the middle of the poll. With
/// [preemption](crate::Builder::preemption) another thread continues the vCPU meanwhile. Without
/// preemption the vCPU waits, so use [`spawn_blocking`] instead.
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let entries = upshift::task::block_in_place(|| std::fs::read_dir("/"))?;
/// assert!(entries.count() > 0);
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
pub fn block_in_place<R>(function: impl FnOnce() -> R) -> R {
    function()
}
