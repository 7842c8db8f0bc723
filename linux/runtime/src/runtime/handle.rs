//! Handle to a runtime, for any thread.

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

/// A handle to a runtime: `Clone`, `Send`, usable from any thread.
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
    /// Outside a runtime.
    pub fn current() -> io::Result<Handle> {
        context::with_shared(Arc::clone)
            .map(|shared| Handle { shared })
            .ok_or_else(context::outside)
    }

    /// Starts a coroutine. See [`crate::spawn`].
    ///
    /// # Errors
    /// [`SpawnError`] if memory is short, or while the runtime shuts down.
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
    pub fn reprio(&self, id: CoroutineId, level: Level) -> Result<(), Dead> {
        self.shared.domain.reprio(id, level)
    }

    /// Cancels a coroutine; see [`JoinHandle::cancel`].
    ///
    /// # Errors
    /// [`Dead`] if it has exited.
    pub fn cancel(&self, id: CoroutineId) -> Result<(), Dead> {
        self.shared.domain.cancel(id)
    }

    /// Returns the state of a coroutine.
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
    #[must_use]
    pub fn level_stats(&self, level: Level) -> crate::runtime::stats::LevelStats {
        crate::runtime::stats::level_stats(&self.shared.domain, level)
    }

    /// Returns a snapshot of all counters: coroutines by state, levels, vCPUs, rings, preemption.
    ///
    /// Takes a few microseconds on the calling thread, and stops no vCPU. See
    /// [`metrics`](crate::metrics).
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        crate::metrics::collect(&self.shared)
    }

    /// Returns the recorder of a timeline of coroutines and vCPUs. See [`trace`](crate::trace).
    #[must_use]
    pub fn trace(&self) -> Trace {
        Trace::new(&self.shared)
    }

    /// Returns the counters of preemption, over all vCPUs.
    #[must_use]
    pub fn preemption_stats(&self) -> PreemptionStats {
        self.shared.preemption_stats()
    }

    /// Returns the state of this runtime's connection to the machine's daemon.
    #[must_use]
    pub fn board_stats(&self) -> BoardStats {
        self.shared.board_stats()
    }

    /// Returns the bitmap: bit L is set iff level L has a ready coroutine.
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
