//! Functions that spawn, identify, wake and reprioritize coroutines, and that add or release vCPUs.
//!
//! The function names are those of the SharedScheduler papers (`spawn`, `get_cid`, `wake`,
//! `reprio`, `alloc_cpu`).

pub(crate) mod budget;
pub(crate) mod coop;

use std::future::Future;
use std::io;
use std::panic::Location;
use std::sync::Arc;

use upshift_core::{CoroutineId, Dead, Level, Priority, SpawnError};

use crate::blocking;
use crate::blocking::pool::Refused;
use crate::context;
use crate::host;
use crate::observe::traced;
use crate::task::{JoinError, JoinHandle};

/// Starts a coroutine at a level, or at the spawner's with [`Priority::Inherit`]. It may run on any
/// vCPU.
///
/// ```
/// use upshift::{Level, Priority};
///
/// upshift::Runtime::new()?.block_on(async {
///     let urgent = upshift::spawn(async { 1 }, Level::at::<2>());
///     let as_me = upshift::spawn(async { 2 }, Priority::Inherit);
///     assert_eq!(urgent.await.unwrap() + as_me.await.unwrap(), 3);
/// });
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Panics
/// Outside a runtime; while the runtime shuts down; if memory is short. [`try_spawn`] returns these
/// as errors.
#[track_caller]
pub fn spawn<F>(future: F, priority: impl Into<Priority>) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    match spawn_here(future, priority.into(), Location::caller()) {
        Some(Ok(handle)) => handle,
        Some(Err(error)) => panic!("{error}"),
        None => panic!("{}", context::why_outside()),
    }
}

/// Spawns a coroutine that is attributed to `location`. Returns `None` outside a runtime.
fn spawn_here<F>(
    future: F,
    priority: Priority,
    location: &'static Location<'static>,
) -> Option<Result<JoinHandle<F::Output>, SpawnError>>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let future = traced(future, location, priority);
    // A refused spawn drops the future, which may run user code; `with_domain` permits that.
    context::with_domain(|domain| {
        let spawned = domain.spawn_at(future, priority, location);
        spawned.map(JoinHandle::new)
    })
}

/// Starts a coroutine like [`spawn`], for programs that can continue without it.
///
/// # Errors
/// [`SpawnError`] if memory is short, while the runtime shuts down, or (`NoVcpu`) outside a
/// runtime.
///
/// ```
/// use upshift::{Priority, SpawnError};
///
/// assert_eq!(upshift::try_spawn(async {}, Priority::Inherit).err(), Some(SpawnError::NoVcpu));
/// upshift::Runtime::new()?.block_on(async {
///     let spawned = upshift::try_spawn(async { 7 }, Priority::Inherit).unwrap();
///     assert_eq!(spawned.await.unwrap(), 7);
/// });
/// # Ok::<(), std::io::Error>(())
/// ```
#[track_caller]
pub fn try_spawn<F>(
    future: F,
    priority: impl Into<Priority>,
) -> Result<JoinHandle<F::Output>, SpawnError>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    spawn_here(future, priority.into(), Location::caller()).unwrap_or(Err(SpawnError::NoVcpu))
}

/// Starts a coroutine that never leaves the vCPU of the caller; its future need not be `Send`.
///
/// ```
/// use std::rc::Rc;
/// use upshift::Level;
///
/// upshift::Runtime::new()?.block_on(async {
///     let shared = Rc::new(1);
///     let ours = shared.clone();
///     let local = upshift::spawn_local(async move { *ours + 1 }, Level::NORMAL);
///     assert_eq!(local.await.unwrap() + *shared, 3);
/// });
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Panics
/// Where [`spawn`] does. With [preemption](crate::Builder::preemption), also if the caller is
/// neither the main coroutine of `block_on` nor a local one, because all other coroutines then move
/// between threads. A hook of [`on_vcpu_start`](crate::Builder::on_vcpu_start) may call this
/// function on the thread of `block_on`.
#[track_caller]
pub fn spawn_local<F>(future: F, priority: impl Into<Priority>) -> LocalHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    let (priority, location) = (priority.into(), Location::caller());
    let future = traced(future, location, priority);
    let spawned = context::with_open(|worker| {
        assert!(
            worker.polls_pinned_here(),
            "with preemption, only the main coroutine and local ones may call spawn_local: \
             use spawn"
        );
        // SAFETY: the future and its output stay on one thread, as `spawn_pinned_at` requires. The
        // pinned coroutines of this vCPU are polled only by the calling thread, as the assertion
        // shows, and the handle stays on that thread, because `LocalHandle` is not `Send`.
        unsafe {
            worker
                .executor()
                .spawn_pinned_at(future, priority, location)
        }
    });
    match spawned {
        Some(Ok(inner)) => LocalHandle {
            inner: JoinHandle::new(inner),
            not_send: std::marker::PhantomData,
        },
        Some(Err(error)) => panic!("{error}"),
        None => panic!("{}", context::why_outside()),
    }
}

/// Handle to the result of a coroutine of [`spawn_local`].
///
/// ```
/// use std::rc::Rc;
/// use upshift::Priority;
///
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let handle = upshift::spawn_local(async { Rc::new(7) }, Priority::Inherit);
/// assert!(!handle.is_finished());
/// // The result need not be `Send` either.
/// assert_eq!(*handle.await.unwrap(), 7);
/// # });
/// ```
#[derive(Debug)]
#[must_use = "dropping the handle detaches the coroutine; say so with `detach`"]
pub struct LocalHandle<T> {
    inner: JoinHandle<T>,
    not_send: std::marker::PhantomData<*const ()>,
}

impl<T> LocalHandle<T> {
    /// Returns the id of the coroutine.
    #[must_use]
    pub fn id(&self) -> CoroutineId {
        self.inner.id()
    }

    /// Detaches the coroutine, which continues.
    pub fn detach(self) {}

    /// Returns whether the coroutine has exited.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.inner.is_finished()
    }

    /// Cancels the coroutine; see [`JoinHandle::cancel`].
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let waits = upshift::spawn_local(std::future::pending::<()>(), upshift::Level::NORMAL);
    /// waits.cancel();
    /// assert!(waits.await.unwrap_err().is_cancelled());
    /// # });
    /// ```
    pub fn cancel(&self) {
        self.inner.cancel();
    }

    pub(crate) fn into_sendable(self) -> JoinHandle<T>
    where
        T: Send,
    {
        self.inner
    }
}

impl<T> Future for LocalHandle<T> {
    type Output = Result<T, JoinError>;
    fn poll(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Self::Output> {
        std::pin::Pin::new(&mut self.inner).poll(cx)
    }
}

/// Runs a blocking function on a thread for such functions. Queued functions run in the order of
/// urgency. Returns the handle to the function's result.
///
/// The function cannot be cancelled once it runs. If no thread can be started for it, the handle
/// reports a panic, where [`try_spawn_blocking`] would return an error.
///
/// At most [`Builder::blocking_threads`](crate::Builder::blocking_threads) functions run at once. A
/// function that finds all threads taken waits; the first such wait is reported on standard error.
/// The thread belongs to the runtime, so `spawn`, `spawn_blocking` and `Handle::current` work in
/// the function, and so does tokio's `Handle::current` with `Builder::tokio`. Coroutines that the
/// function spawns with [`Priority::Inherit`] have the default level.
///
/// ```
/// use upshift::{Handle, Level, Runtime};
///
/// Runtime::new()?.block_on(async {
///     let sum = upshift::spawn_blocking(|| (1..=10).sum::<i32>()).await.unwrap();
///     assert_eq!(sum, 55);
///     let spawned = upshift::spawn_blocking(|| upshift::spawn(async { 1 }, Level::at::<8>()));
///     assert_eq!(spawned.await.unwrap().await.unwrap(), 1);
/// });
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Panics
/// Where [`spawn`] does.
#[track_caller]
pub fn spawn_blocking<R: Send + 'static>(
    function: impl FnOnce() -> R + Send + 'static,
) -> JoinHandle<R> {
    match block_here(function, Location::caller()) {
        // A function that was refused is dropped here, and the coroutine that waits for it panics.
        Some(Ok((handle, _queued))) => handle,
        Some(Err(error)) => panic!("{error}"),
        None => panic!("{}", context::why_outside()),
    }
}

/// Runs a blocking function like [`spawn_blocking`], but returns an error if the function cannot be
/// run. The function is then dropped without having run.
///
/// # Errors
/// The kernel's error, with advice, if there is no thread for the function and none can be started
/// ([`errno_of`](crate::errno_of) usually returns `EAGAIN`). The [`SpawnError`] of [`try_spawn`],
/// wrapped by [`io::Error::other`], where that fails.
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let handle = upshift::try_spawn_blocking(|| std::fs::read_dir("/").unwrap().count())?;
/// assert!(handle.await? > 0);
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
#[track_caller]
pub fn try_spawn_blocking<R: Send + 'static>(
    function: impl FnOnce() -> R + Send + 'static,
) -> io::Result<JoinHandle<R>> {
    let spawned = block_here(function, Location::caller()).unwrap_or(Err(SpawnError::NoVcpu));
    match spawned.map_err(io::Error::other)? {
        (handle, Ok(())) => Ok(handle),
        (handle, Err(refused)) => {
            // Cancelled before the function is dropped, because the drop wakes the coroutine that
            // waits for the function, and that coroutine would panic.
            handle.cancel();
            Err(refused.error)
        }
    }
}

/// Queues a blocking function and spawns the coroutine that waits for it; `None` outside a runtime.
#[expect(
    clippy::type_complexity,
    reason = "two ways to fail, one of which leaves a handle"
)]
fn block_here<R: Send + 'static>(
    function: impl FnOnce() -> R + Send + 'static,
    location: &'static Location<'static>,
) -> Option<Result<(JoinHandle<R>, Result<(), Refused>), SpawnError>> {
    let level = host::current_level().unwrap_or_default();
    let pool = context::with_shared(|shared| shared.pool.clone())?;
    let (job, result) = blocking::job(function);
    // The coroutine is spawned first, because a queued function may begin at once.
    let waiter = async move {
        match result.await {
            Ok(Ok(value)) => value,
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            Err(_) => panic!(
                "the function was dropped before it began: no thread could be started for it, or the runtime shuts down"
            ),
        }
    };
    let handle = match spawn_here(waiter, level.into(), location)? {
        Ok(handle) => handle,
        Err(error) => return Some(Err(error)),
    };
    Some(Ok((handle, pool.submit(level, job))))
}

/// Returns the id of the calling coroutine; `None` outside one.
///
/// ```
/// use upshift::Priority;
///
/// assert!(upshift::get_cid().is_none());
/// upshift::Runtime::new()?.block_on(async {
///     let handle = upshift::spawn(async { upshift::get_cid() }, Priority::Inherit);
///     let id = handle.id();
///     assert_eq!(handle.await.unwrap(), Some(id));
/// });
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use]
pub fn get_cid() -> Option<CoroutineId> {
    host::current_id()
}

/// Returns the effective level of the calling coroutine; `None` outside one.
///
/// ```
/// use upshift::Level;
///
/// assert_eq!(upshift::current_level(), None);
/// upshift::Runtime::new()?.block_on(async {
///     let urgent = upshift::spawn(async { upshift::current_level() }, Level::at::<2>());
///     assert_eq!(urgent.await.unwrap(), Some(Level::at::<2>()));
/// });
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use]
pub fn current_level() -> Option<Level> {
    host::current_level()
}

/// Returns the number of the vCPU that the calling thread serves, counted from 0; `None` if it
/// serves none. A coroutine may move to another vCPU at each wait, so use the number to spread
/// contended writes, not for ownership.
///
/// ```
/// assert_eq!(upshift::get_vcpu(), None);
/// upshift::Runtime::builder().vcpus(1).build()?.block_on(async {
///     assert_eq!(upshift::get_vcpu(), Some(0));
/// });
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use]
pub fn get_vcpu() -> Option<usize> {
    context::with(|worker| worker.executor().index())
}

/// Wakes a coroutine of this runtime.
///
/// # Errors
/// [`Dead`] if it has exited, and outside a runtime.
///
/// ```
/// use std::future::poll_fn;
/// use std::task::Poll;
///
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let mut polls = 0;
/// let count = poll_fn(move |_| {
///     polls += 1;
///     if polls == 2 { Poll::Ready(polls) } else { Poll::Pending }
/// });
/// let handle = upshift::spawn(count, upshift::Priority::Inherit);
/// upshift::yield_now().await; // The coroutine is polled and waits.
/// upshift::wake(handle.id())?;
/// assert_eq!(handle.await.unwrap(), 2);
/// # Ok::<(), upshift::Dead>(()) }).unwrap();
/// ```
pub fn wake(id: CoroutineId) -> Result<(), Dead> {
    context::with_domain(|domain| domain.wake(id)).unwrap_or(Err(Dead))
}

/// Gives a coroutine of this runtime another level, whatever its state, in constant time.
///
/// # Errors
/// [`Dead`] if it has exited, and outside a runtime.
///
/// ```
/// use upshift::Level;
///
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let first = upshift::spawn(async {}, Level::at::<40>());
/// let second = upshift::spawn(async {}, Level::at::<40>());
/// upshift::reprio(second.id(), Level::at::<2>())?;
/// upshift::yield_now().await;
/// assert!(second.is_finished() && !first.is_finished());
/// # Ok::<(), upshift::Dead>(()) }).unwrap();
/// ```
pub fn reprio(id: CoroutineId, level: Level) -> Result<(), Dead> {
    context::with_domain(|domain| domain.reprio(id, level)).unwrap_or(Err(Dead))
}

/// Adds a vCPU to this runtime, with a thread of its own. Returns its index.
///
/// # Errors
/// The kernel's error if the thread cannot be started or its ring cannot be set up; an error
/// outside a runtime.
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let handle = upshift::Handle::current()?;
/// assert_eq!(handle.vcpus(), 1);
/// assert_eq!(upshift::alloc_cpu()?, 1);
/// assert_eq!(handle.vcpus(), 2);
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
pub fn alloc_cpu() -> io::Result<usize> {
    let shared = context::with_shared(Arc::clone).ok_or_else(context::outside)?;
    shared.add_vcpu()
}

/// Releases the vCPU that was added last, except vCPU 0 and the caller's. The pinned coroutines of
/// the released vCPU are cancelled, and its other coroutines continue on other vCPUs. Returns the
/// index of the released vCPU at once; its thread ends after the poll that is under way.
///
/// # Errors
/// `InvalidInput` if no vCPU can be released; an error outside a runtime.
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let added = upshift::alloc_cpu()?;
/// assert_eq!(upshift::release_cpu()?, added);
/// assert!(upshift::release_cpu().is_err()); // The caller's vCPU stays.
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
pub fn release_cpu() -> io::Result<usize> {
    let shared = context::with_shared(Arc::clone).ok_or_else(context::outside)?;
    shared.release_vcpu()
}
