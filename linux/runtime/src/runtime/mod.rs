//! A runtime: its vCPUs (worker threads, each with ready queues and an io_uring), the coroutines
//! that run on them, and `block_on`.
//!
//! Without preemption, the thread that builds the runtime serves vCPU 0 while it is in
//! [`Runtime::block_on`]. All other vCPUs have threads of their own. Dropping the runtime cancels
//! every coroutine while all vCPUs still serve, so that I/O in flight is cancelled by the rings
//! that started it. Then the threads end.

pub(crate) mod builder;
pub(crate) mod driver;
pub(crate) mod handle;
pub(crate) mod shared;
pub(crate) mod stats;

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::io;
use std::marker::PhantomData;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use upshift_core::{Domain, Executor, Level, Priority};
use upshift_ring::Mode;

use crate::affinity;
use crate::context;
use crate::host;
use crate::host::Linux;
use crate::notice::notice;
use crate::observe::Watchdog;
use crate::preempt::Preemptible;
use crate::preempt::interrupt;
use crate::runtime::builder::Builder;
use crate::runtime::driver::Report;
use crate::runtime::handle::Handle;
use crate::runtime::shared::{Shared, VcpuThread};
use crate::task::JoinError;
use crate::worker::{ENDING_WAIT, Until, Worker};

/// A runtime, which consists of vCPUs with their threads and rings, and of the coroutines that run
/// on them. See the [crate].
///
/// Dropping the runtime cancels all coroutines and waits until they have exited.
///
/// ```
/// use upshift::{Level, Runtime};
///
/// let runtime = Runtime::new()?;
/// let answer = runtime.block_on(async {
///     let urgent = upshift::spawn(async { 42 }, Level::at::<2>());
///     urgent.await
/// })?;
/// assert_eq!(answer, 42);
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Runtime {
    pub(crate) shared: Arc<Shared>,
    pub(crate) engine: Engine,
    pub(crate) main_level: Level,
    /// The affinity of the building thread before it was pinned.
    pub(crate) affinity: Option<affinity::Mask>,
    pub(crate) observers: Observers,
    /// tokio's context. It ends after the vCPUs.
    #[cfg(feature = "tokio-rt")]
    pub(crate) _tokio: Option<crate::tokio::embedded::TokioRuntime>,
    pub(crate) not_send: PhantomData<*const ()>,
}

/// Threads that observe the runtime. They are ended first.
#[derive(Default)]
pub(crate) struct Observers {
    pub(crate) watchdog: Option<Watchdog>,
    #[cfg(feature = "observe")]
    pub(crate) view: Option<crate::observe::Server>,
}

/// The threads that serve vCPU 0.
pub(crate) enum Engine {
    /// The thread that built the runtime serves the vCPU while it is in `block_on`. `None` while
    /// the runtime is dropped.
    Inline(Option<Box<Worker>>),
    /// The vCPU has threads of its own, which serve it all the time. The thread that built the
    /// runtime polls pinned coroutines.
    Preemptible(Arc<Preemptible>),
}

impl Runtime {
    /// Creates a runtime with the default settings, among them one vCPU per CPU.
    ///
    /// # Errors
    /// The errors of [`Builder::build`].
    ///
    /// ```
    /// let runtime = upshift::Runtime::new()?;
    /// assert_eq!(runtime.handle().vcpus(), std::thread::available_parallelism()?.get());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn new() -> io::Result<Runtime> {
        Runtime::builder().build()
    }

    /// Returns the settings of a runtime to be built.
    ///
    /// ```
    /// let runtime = upshift::Runtime::builder().vcpus(2).name("example").build()?;
    /// assert_eq!(runtime.handle().vcpus(), 2);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// Returns a handle to spawn, wake and inspect from any thread.
    ///
    /// ```
    /// let runtime = upshift::Runtime::builder().vcpus(1).build()?;
    /// let handle = runtime.handle();
    /// let thread = std::thread::spawn(move || handle.spawn(async { 7 }, upshift::Level::NORMAL));
    /// let spawned = thread.join().unwrap().unwrap();
    /// assert_eq!(runtime.block_on(spawned)?, 7);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle {
            shared: self.shared.clone(),
        }
    }

    /// Runs `future` as the main coroutine on vCPU 0, which the calling thread serves meanwhile.
    /// When this function returns, other coroutines of vCPU 0 are not polled until the next call.
    ///
    /// With preemption, vCPU 0 has threads of its own, which continue when this function returns.
    /// The calling thread polls only the pinned coroutines: the main coroutine and those of
    /// [`spawn_local`](crate::spawn_local). Each of these polls costs two switches between threads,
    /// so move frequently polled work into coroutines of [`spawn`](crate::spawn). Polls of pinned
    /// coroutines are interrupted like others; while one of them is interrupted, the other pinned
    /// coroutines wait for it.
    ///
    /// # Panics
    /// If the future panics, with its payload; if the main coroutine is cancelled by its id; if
    /// called inside a coroutine; or, with preemption, if called at the end of a thread, by the
    /// destructor of a thread-local.
    ///
    /// ```
    /// let runtime = upshift::Runtime::new()?;
    /// let mut count = 0;
    /// runtime.block_on(async { count += 1 }); // The future may borrow.
    /// assert_eq!(runtime.block_on(async { count + 1 }), 2);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[track_caller]
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        match self.run_main(future, Location::caller()) {
            Ok(output) => output,
            Err(_) => panic!("the main coroutine was cancelled"),
        }
    }

    /// Does the same as [`block_on`](Runtime::block_on), but returns an error if the main coroutine
    /// is cancelled by its id.
    ///
    /// # Errors
    /// [`JoinError`] if the main coroutine was cancelled.
    ///
    /// # Panics
    /// If the future panics, with its payload; or if called inside a coroutine.
    ///
    /// ```
    /// let runtime = upshift::Runtime::builder().vcpus(1).build()?;
    /// let handle = runtime.handle();
    /// let result = runtime.try_block_on(async {
    ///     handle.cancel(upshift::task::id()).unwrap();
    ///     std::future::pending::<()>().await;
    /// });
    /// assert!(result.unwrap_err().is_cancelled());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[track_caller]
    pub fn try_block_on<F: Future>(&self, future: F) -> Result<F::Output, JoinError> {
        self.run_main(future, Location::caller())
    }

    #[track_caller]
    fn run_main<F: Future>(
        &self,
        future: F,
        location: &'static Location<'static>,
    ) -> Result<F::Output, JoinError> {
        assert!(
            host::current_id().is_none(),
            "block_on inside a coroutine would stop its vCPU: use `.await`"
        );
        if let Engine::Preemptible(_) = &self.engine
            && let Err(error) = interrupt::claim()
        {
            panic!("this thread cannot be interrupted: {error}");
        }
        let id;
        let mut output = None;
        let done = Cell::new(false);
        {
            let main = Main {
                future: Box::pin(future),
                output: &mut output,
                done: &done,
            };
            // SAFETY: only the lifetime is extended, and the coroutine, which borrows from this
            // frame, does not outlive the frame. Its future has been dropped when the loop below
            // returns, because the loop waits for `done`, which the drop of `main` sets, and does
            // not unwind (`AbortOnUnwind`).
            let main: Pin<Box<dyn Future<Output = ()> + 'static>> = unsafe {
                std::mem::transmute(Box::pin(main) as Pin<Box<dyn Future<Output = ()> + '_>>)
            };
            let abort = AbortOnUnwind;
            // SAFETY: the future and its output stay on this thread, as `spawn_pinned_at` requires.
            // `Runtime` is not `Send`, so only this thread ever polls coroutines that are pinned to
            // vCPU 0, and the handle is not sent to another thread.
            let spawned = unsafe {
                self.executor()
                    .spawn_pinned_at(main, Priority::At(self.main_level), location)
            };
            match spawned {
                Ok(handle) => {
                    id = handle.id();
                    match &self.engine {
                        Engine::Preemptible(vcpu) => vcpu
                            .serve_as_main(false, &|| done.get())
                            .expect("the signal has been claimed"),
                        Engine::Inline(_) => {
                            self.worker().run(Until::Set(&done));
                            self.worker().complete_cancellations();
                        }
                    }
                    std::mem::forget(abort);
                    // The coroutine's future has been dropped, so `output` is final, and the handle
                    // is not needed any more.
                    handle.detach();
                }
                Err(error) => {
                    std::mem::forget(abort);
                    panic!("the main coroutine could not be spawned: {error}");
                }
            }
        }
        match output {
            Some(Ok(output)) => Ok(output),
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => Err(JoinError::cancelled(id)),
        }
    }

    /// Returns the mode in which the rings of this runtime run.
    #[must_use]
    pub fn ring_mode(&self) -> Mode {
        self.worker().ring().mode()
    }

    /// Returns the driver that carries out I/O, the reason for the choice, and the gain of a better
    /// driver.
    #[must_use]
    pub fn report(&self) -> Report {
        Report::new(self.shared.settings.driver.clone(), self.ring_mode())
    }

    fn executor(&self) -> &Executor<Linux> {
        self.worker().executor()
    }

    /// Returns the worker of vCPU 0. If that vCPU is preemptible, callers use only the parts that
    /// any thread may use.
    fn worker(&self) -> &Worker {
        match &self.engine {
            Engine::Inline(Some(worker)) => worker,
            Engine::Preemptible(vcpu) => vcpu.shared_worker(),
            Engine::Inline(None) => unreachable!("the worker is taken only by the drop"),
        }
    }
}

/// The main coroutine: the future given to `block_on`, and the place in `block_on`'s frame for its
/// output.
struct Main<'a, F: Future> {
    future: Pin<Box<F>>,
    output: &'a mut Option<std::thread::Result<F::Output>>,
    done: &'a Cell<bool>,
}

impl<F: Future> Future for Main<'_, F> {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let polled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            self.future.as_mut().poll(cx)
        }));
        let output = match polled {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(output)) => Ok(output),
            Err(panic) => Err(panic),
        };
        *self.output = Some(output);
        Poll::Ready(())
    }
}

impl<F: Future> Drop for Main<'_, F> {
    fn drop(&mut self) {
        self.done.set(true);
    }
}

/// A guard that ends the process if a panic unwinds through its scope.
struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        std::process::abort();
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.observers = Observers::default();
        let shared = self.shared.clone();
        shared.domain.close();
        // With preemption, a poll that does not return delays the end until this time at most.
        let limit = shared
            .settings
            .preemption
            .is_some()
            .then(|| Instant::now() + Preemptible::grace());
        let is_over = || limit.is_some_and(|limit| Instant::now() > limit);
        if shared.domain.cancel_all() != 0 {
            // Cancelled coroutines exit on their vCPUs. This thread serves its own vCPU, or polls
            // the pinned coroutines.
            match &self.engine {
                Engine::Inline(Some(worker)) => serve_until_all_exited(worker),
                Engine::Inline(None) => {}
                Engine::Preemptible(vcpu) => {
                    let exits = Cell::new(count_exits(&shared.domain));
                    let has_ended = || {
                        let exit_count = count_exits(&shared.domain);
                        let no_more_exit = exits.replace(exit_count) == exit_count;
                        is_over() || (no_more_exit && shared.domain.cancel_all() == 0)
                    };
                    // In the destructors of its thread-locals, this thread cannot serve the vCPU
                    // any more, and only waits.
                    while vcpu.serve_as_main(true, &has_ended).is_err() && !has_ended() {
                        thread::sleep(ENDING_WAIT);
                    }
                }
            }
        }
        let threads = std::mem::take(&mut *shared.vcpu_threads());
        for thread in &threads {
            shared.stop(thread);
        }
        let mut left_behind = 0;
        for VcpuThread { thread, .. } in threads {
            while limit.is_some_and(|limit| Instant::now() < limit) && !thread.is_finished() {
                thread::sleep(Duration::from_micros(200));
            }
            if limit.is_none() || thread.is_finished() {
                // A thread that panicked has reported it already.
                drop(thread.join());
            } else {
                left_behind += 1;
            }
        }
        if let Engine::Inline(worker) = &mut self.engine
            && let Some(worker) = worker.take()
        {
            worker.retire();
        }
        if left_behind != 0 {
            // The pinned coroutines are discarded, because they would otherwise be dropped on the
            // thread that still serves vCPU 0.
            if let Some(vcpu) = shared.domain.vcpus().find(|vcpu| vcpu.index() == 0) {
                // SAFETY: this thread built the runtime, so the coroutines pinned to vCPU 0 are its
                // own to drop, and it polls none of them now.
                unsafe { vcpu.discard_pinned() };
            }
            notice(format_args!(
                "a poll did not end within a second of the runtime's shutdown; its thread is left behind"
            ));
            // The domain is leaked, since that thread still uses it.
            std::mem::forget(shared.clone());
        }
        if let Some(membership) = &shared.membership {
            membership.end();
        }
        shared.pool.shut_down();
        if let Some(affinity) = self.affinity.take() {
            let _ = affinity::set(&affinity);
        }
    }
}

/// Returns the number of coroutines that have exited.
fn count_exits(domain: &Domain<Linux>) -> u64 {
    domain.vcpus().map(|vcpu| vcpu.exits().0).sum()
}

/// Serves the vCPU of the calling thread until no coroutine of its runtime is left.
///
/// `cancel_all` must be repeated for coroutines that were spawned or being polled during the last
/// round. Because it visits all coroutines, it is repeated only once no more coroutines exit.
fn serve_until_all_exited(worker: &Worker) {
    let domain = &worker.shared().domain;
    worker.set_ending();
    let _serving = context::serve(worker);
    let mut previous_exits = None;
    while domain.cancel_all() != 0 {
        // If no coroutine has exited since the last round, other threads delay the exits.
        let exits_before = count_exits(domain);
        let is_delayed = previous_exits.replace(exits_before) == Some(exits_before);
        let (checks, exits) = (Cell::new(0), Cell::new(exits_before));
        // A round ends when nothing is ready, or after 64 checks in a row without an exit.
        let done = || {
            let exit_count = count_exits(domain);
            if exits.replace(exit_count) != exit_count {
                checks.set(0);
            }
            checks.set(checks.get() + 1);
            checks.get() > 64 || (domain.bitmap() == 0 && (!is_delayed || checks.get() > 1))
        };
        worker.run_within(Until::True(&done));
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime")
            .field("vcpus", &self.shared.domain.active_vcpus())
            .field("ring", &self.ring_mode())
            .finish()
    }
}
