//! A handle through which any thread can use a runtime.

use std::fmt;
use std::future::Future;
use std::io;
use std::panic::Location;
use std::sync::Arc;

use upshift_core::{CoroutineId, Dead, Level, Priority, SpawnError, State};

use crate::board::BoardStats;
use crate::context;
use crate::metrics::Metrics;
use crate::observe::traced;
use crate::preempt::PreemptionStats;
use crate::runtime::shared::Shared;
use crate::task::JoinHandle;
use crate::trace::Trace;

/// A handle to a runtime. It is `Clone` and `Send`, and can be used on any thread.
///
/// ```
/// use upshift::{Level, Runtime};
///
/// let runtime = Runtime::builder().vcpus(1).build()?;
/// let handle = runtime.handle();
/// let sum = std::thread::spawn(move || handle.spawn(async { 1 + 1 }, Level::NORMAL));
/// let sum = sum.join().unwrap()?;
/// assert_eq!(runtime.block_on(sum)?, 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Handle {
    pub(crate) shared: Arc<Shared>,
}

impl Handle {
    /// Returns a handle to the runtime of the calling coroutine, blocking function or tokio task
    /// (`Builder::tokio`).
    ///
    /// # Errors
    /// If it is called outside a runtime.
    ///
    /// ```
    /// use upshift::{Handle, Runtime};
    ///
    /// assert!(Handle::current().is_err());
    /// Runtime::builder().vcpus(1).build()?.block_on(async {
    ///     let handle = Handle::current()?;
    ///     assert_eq!(handle.vcpus(), 1);
    ///     Ok::<(), std::io::Error>(())
    /// })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn current() -> io::Result<Handle> {
        context::with_shared(Arc::clone)
            .map(|shared| Handle { shared })
            .ok_or_else(context::outside)
    }

    /// Starts a coroutine. See [`crate::spawn`].
    ///
    /// # Errors
    /// [`SpawnError`] if memory is short, or while the runtime shuts down.
    ///
    /// ```
    /// use upshift::{Level, Runtime};
    ///
    /// let runtime = Runtime::new()?;
    /// // Outside a runtime, `upshift::spawn` would panic.
    /// let spawned = runtime.handle().spawn(async { 7 }, Level::at::<3>()).unwrap();
    /// assert_eq!(runtime.block_on(spawned)?, 7);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[track_caller]
    pub fn spawn<F>(
        &self,
        future: F,
        priority: impl Into<Priority>,
    ) -> Result<JoinHandle<F::Output>, SpawnError>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let (priority, location) = (priority.into(), Location::caller());
        let future = traced(future, location, priority);
        let spawned = self.shared.domain.spawn_at(future, priority, location);
        spawned.map(JoinHandle::new)
    }

    /// Wakes a coroutine.
    ///
    /// # Errors
    /// [`Dead`] if it has exited.
    pub fn wake(&self, id: CoroutineId) -> Result<(), Dead> {
        self.shared.domain.wake(id)
    }

    /// Gives a coroutine another level.
    ///
    /// # Errors
    /// [`Dead`] if it has exited.
    ///
    /// ```
    /// use upshift::{Level, Runtime};
    ///
    /// let runtime = Runtime::builder().vcpus(1).build()?;
    /// let spawned = runtime.handle().spawn(async { upshift::current_level() }, Level::NORMAL);
    /// let spawned = spawned.unwrap();
    /// runtime.handle().reprio(spawned.id(), Level::at::<3>()).unwrap();
    /// assert_eq!(runtime.block_on(spawned)?, Some(Level::at::<3>()));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn reprio(&self, id: CoroutineId, level: Level) -> Result<(), Dead> {
        self.shared.domain.reprio(id, level)
    }

    /// Cancels a coroutine; see [`JoinHandle::cancel`].
    ///
    /// # Errors
    /// [`Dead`] if it has exited.
    ///
    /// ```
    /// use upshift::{Handle, Level};
    ///
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let handle = Handle::current().unwrap();
    /// let stuck = upshift::spawn(std::future::pending::<()>(), Level::NORMAL);
    /// handle.cancel(stuck.id()).unwrap();
    /// assert!(stuck.await.unwrap_err().is_cancelled());
    /// # });
    /// ```
    pub fn cancel(&self, id: CoroutineId) -> Result<(), Dead> {
        self.shared.domain.cancel(id)
    }

    /// Returns the state of a coroutine.
    ///
    /// ```
    /// use upshift::{Handle, Priority, State};
    ///
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let handle = Handle::current().unwrap();
    /// let waits = upshift::spawn(std::future::pending::<()>(), Priority::Inherit);
    /// assert_eq!(handle.state(upshift::task::id()), State::Running);
    /// assert_eq!(handle.state(waits.id()), State::Ready);
    /// upshift::yield_now().await;
    /// assert_eq!(handle.state(waits.id()), State::Blocked);
    /// # });
    /// ```
    #[must_use]
    pub fn state(&self, id: CoroutineId) -> State {
        self.shared.domain.state(id)
    }

    /// Returns the number of vCPUs in service.
    #[must_use]
    pub fn vcpus(&self) -> usize {
        self.shared.domain.active_vcpus()
    }

    /// Returns the counters of a level since the start, over all vCPUs.
    ///
    /// ```
    /// use upshift::{Handle, Level};
    ///
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let level = Level::at::<3>();
    /// upshift::spawn(async {}, level).await.unwrap();
    /// assert_eq!(Handle::current().unwrap().level_stats(level).polls(), 1);
    /// # });
    /// ```
    #[must_use]
    pub fn level_stats(&self, level: Level) -> crate::runtime::stats::LevelStats {
        crate::runtime::stats::level_stats(&self.shared.domain, level)
    }

    /// Returns a snapshot of all counters: those of coroutines by state, of levels, vCPUs and
    /// rings, and of preemption.
    ///
    /// Takes a few microseconds on the calling thread, and stops no vCPU. See
    /// [`metrics`](crate::metrics).
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let _waits = upshift::task::spawn(std::future::pending::<()>());
    /// let metrics = upshift::Handle::current().unwrap().metrics();
    /// assert_eq!(metrics.coroutines.spawned, metrics.coroutines.live + metrics.coroutines.exited);
    /// assert_eq!(metrics.vcpus.len(), 1);
    /// # });
    /// ```
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        crate::metrics::collect(&self.shared)
    }

    /// Returns the recorder of a timeline of coroutines and vCPUs. See [`trace`](crate::trace).
    ///
    /// ```
    /// let runtime = upshift::Runtime::builder().vcpus(1).build()?;
    /// let trace = runtime.handle().trace();
    /// trace.start(1_000)?;
    /// runtime.block_on(async { upshift::yield_now().await });
    /// trace.stop();
    /// assert!(!trace.snapshot().events.is_empty());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn trace(&self) -> Trace {
        Trace::new(&self.shared)
    }

    /// Returns the counters of preemption, over all vCPUs.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let stats = upshift::Handle::current().unwrap().preemption_stats();
    /// assert_eq!((stats.vcpus, stats.suspensions), (0, 0)); // Preemption is off by default.
    /// # });
    /// ```
    #[must_use]
    pub fn preemption_stats(&self) -> PreemptionStats {
        self.shared.preemption_stats()
    }

    /// Returns the state of this runtime's connection to the machine's daemon.
    #[must_use]
    pub fn board_stats(&self) -> BoardStats {
        self.shared.board_stats()
    }

    /// Returns the bitmap, in which bit L is set if and only if level L has a ready coroutine.
    ///
    /// ```
    /// use upshift::{Handle, Level};
    ///
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let handle = Handle::current().unwrap();
    /// assert_eq!(handle.bitmap() & (1 << 40), 0);
    /// let ready = upshift::spawn(async {}, Level::at::<40>());
    /// assert_ne!(handle.bitmap() & (1 << 40), 0);
    /// # ready.await.unwrap();
    /// # });
    /// ```
    #[must_use]
    pub fn bitmap(&self) -> u64 {
        self.shared.domain.bitmap()
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Handle").field(&self.shared.domain).finish()
    }
}
