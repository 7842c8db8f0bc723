//! The runtime from outside.

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

/// A runtime from outside: `Clone`, `Send`, usable from any thread.
#[derive(Clone)]
pub struct Handle {
    pub(crate) shared: Arc<Shared>,
}

impl Handle {
    /// The runtime whose coroutine is calling, or whose blocking function, or whose task of tokio's
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
    /// [`SpawnError`] without memory, or while the runtime shuts down.
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
        spawned.map(JoinHandle::of)
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

    /// Asks a coroutine to end.
    ///
    /// # Errors
    /// [`Dead`] if it has exited.
    pub fn cancel(&self, id: CoroutineId) -> Result<(), Dead> {
        self.shared.domain.cancel(id)
    }

    /// The state of a coroutine.
    #[must_use]
    pub fn state(&self, id: CoroutineId) -> State {
        self.shared.domain.state(id)
    }

    /// How many vCPUs serve.
    #[must_use]
    pub fn vcpus(&self) -> usize {
        self.shared.domain.active_vcpus()
    }

    /// What happened on each level since the start, over all vCPUs.
    #[must_use]
    pub fn level_stats(&self, level: Level) -> crate::runtime::stats::LevelStats {
        crate::runtime::stats::of_level(&self.shared.domain, level)
    }

    /// A snapshot of everything that is counted: coroutines by state, levels, vCPUs,
    /// rings, preemption. Some microseconds for the caller; nothing stops for it.
    /// See [`metrics`](crate::metrics).
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        crate::metrics::collect(&self.shared)
    }

    /// The recording of what becomes of coroutines and vCPUs: a timeline. See [`trace`](crate::trace).
    #[must_use]
    pub fn trace(&self) -> Trace {
        Trace::new(&self.shared)
    }

    /// What preemption has done so far, over all vCPUs.
    #[must_use]
    pub fn preemption_stats(&self) -> PreemptionStats {
        self.shared.preemption_stats()
    }

    /// How this runtime stands with the machine's daemon.
    #[must_use]
    pub fn board_stats(&self) -> BoardStats {
        self.shared.board_stats()
    }

    /// Bit L is set iff level L has a ready coroutine.
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
