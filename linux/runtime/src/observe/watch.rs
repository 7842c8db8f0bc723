//! What the watchdog and the vCPUs share: the limit, the stalls that were found, and whether the watchdog sleeps.

use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::Duration;

use super::longest::Longest;
use crate::time::clock;

/// The limit when only the live view asks for one.
const DEFAULT_LIMIT: Duration = Duration::from_millis(10);
/// The shortest time between two looks.
pub(super) const SHORTEST_PERIOD: Duration = Duration::from_micros(500);

/// See the module.
pub(crate) struct Watch {
    pub(crate) limit: Duration,
    pub(crate) longest: Arc<Longest>,
    /// A vCPU that wakes up has to tell.
    pub(super) asleep: AtomicBool,
    pub(super) stop: AtomicBool,
    pub(super) thread: OnceLock<Thread>,
}

impl Watch {
    /// With a stall limit, or the default one. Limits below a millisecond are raised to it.
    pub(crate) fn new(limit: Option<Duration>) -> Watch {
        let limit = limit.unwrap_or(DEFAULT_LIMIT).max(2 * SHORTEST_PERIOD);
        Watch {
            limit,
            longest: Arc::new(Longest::new(clock::to_ticks(limit).max(1))),
            asleep: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            thread: OnceLock::new(),
        }
    }

    /// A vCPU is about to poll again. After a full barrier.
    #[inline]
    pub(crate) fn vcpu_wakes(&self) {
        if self.asleep.load(Relaxed) {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        if self.asleep.swap(false, SeqCst)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Watch").field(&self.limit).finish()
    }
}
