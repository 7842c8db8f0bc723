//! Spawns coroutines whose futures need not be `Send`, under tokio's names.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use upshift_core::Priority;

use super::JoinHandle;
use crate::sync::wake;

/// Starts a coroutine like [`crate::spawn_local`], at the level of the caller.
///
/// # Panics
/// Where [`crate::spawn_local`] does.
///
/// ```
/// use std::cell::Cell;
/// use std::rc::Rc;
///
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let count = Rc::new(Cell::new(1));
/// let shared = count.clone();
/// let local = upshift::task::spawn_local(async move { shared.set(shared.get() + 1) });
/// local.await.unwrap();
/// assert_eq!(count.get(), 2);
/// # });
/// ```
#[track_caller]
pub fn spawn_local<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: Send + 'static,
{
    crate::spawn_local(future, Priority::Inherit).into_sendable()
}

/// Coroutines of the caller's vCPU that are awaited together.
///
/// A coroutine that is spawned on the set runs like all others of the vCPU, whether the set is
/// awaited or not, because the vCPU, not the set, keeps the coroutine on one thread. Awaiting the
/// set waits until all of its coroutines have exited; dropping the set leaves them running.
///
/// ```
/// use std::cell::Cell;
/// use std::rc::Rc;
/// use upshift::task::LocalSet;
///
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let (set, count) = (LocalSet::new(), Rc::new(Cell::new(0)));
/// for _ in 0..3 {
///     let count = count.clone();
///     set.spawn_local(async move { count.set(count.get() + 1) }).detach();
/// }
/// set.await;
/// assert_eq!(count.get(), 3);
/// # });
/// ```
pub struct LocalSet {
    running: Rc<Running>,
}

/// The coroutines of a set that have not exited.
#[derive(Default)]
struct Running {
    count: Cell<usize>,
    /// Waker of the coroutine that awaits the set.
    waker: RefCell<Option<Waker>>,
}

/// Counts one coroutine as running until it is dropped with the coroutine's future.
struct RunningGuard(Rc<Running>);

impl Drop for RunningGuard {
    fn drop(&mut self) {
        self.0.count.set(self.0.count.get() - 1);
        if self.0.count.get() == 0
            && let Some(waker) = self.0.waker.take()
        {
            wake(waker);
        }
    }
}

impl LocalSet {
    /// Creates a set without coroutines.
    #[must_use]
    pub fn new() -> LocalSet {
        LocalSet {
            running: Rc::default(),
        }
    }

    /// Starts a coroutine.
    ///
    /// # Panics
    /// Where [`crate::spawn_local`] does.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let set = upshift::task::LocalSet::new();
    /// let handle = set.spawn_local(async { 7 });
    /// assert_eq!(handle.await.unwrap(), 7);
    /// # });
    /// ```
    #[track_caller]
    pub fn spawn_local<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + 'static,
        F::Output: Send + 'static,
    {
        self.running.count.set(self.running.count.get() + 1);
        let guard = RunningGuard(self.running.clone());
        spawn_local(async move {
            let _guard = guard;
            future.await
        })
    }

    /// Awaits a future, which may call [`spawn_local`].
    ///
    /// ```
    /// use upshift::task::{LocalSet, spawn_local};
    ///
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let inner = async { spawn_local(async { 7 }).await.unwrap() };
    /// assert_eq!(LocalSet::new().run_until(inner).await, 7);
    /// # });
    /// ```
    pub async fn run_until<F: Future>(&self, future: F) -> F::Output {
        future.await
    }
}

impl Default for LocalSet {
    fn default() -> LocalSet {
        LocalSet::new()
    }
}

impl Future for LocalSet {
    type Output = ();
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.running.count.get() == 0 {
            return Poll::Ready(());
        }
        let old_waker = self.running.waker.replace(Some(cx.waker().clone()));
        drop(old_waker);
        Poll::Pending
    }
}

impl fmt::Debug for LocalSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalSet").finish_non_exhaustive()
    }
}
