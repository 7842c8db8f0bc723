//! State that the vCPUs share with the watchdog, the thread that finds polls that take too long:
//! the limit, the stalls found, and whether the watchdog sleeps.

use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::Duration;

use super::longest::Longest;
use crate::time::clock;

/// Limit if the live view needs a limit and the program sets none.
const DEFAULT_LIMIT: Duration = Duration::from_millis(10);
/// Limit of the default reports. A person notices a delay of this length.
const REPORTED_LIMIT: Duration = Duration::from_millis(100);
/// Does not apply if there are only default reports.
const LONGEST_PERIOD: Duration = Duration::from_millis(5);
pub(super) const SHORTEST_PERIOD: Duration = Duration::from_micros(500);

pub(crate) struct Monitor {
    pub(crate) limit: Duration,
    /// Duration after which a poll under way is reported.
    pub(super) reported: Duration,
    pub(super) period: Duration,
    pub(crate) longest: Arc<Longest>,
    /// Set while the watchdog sleeps, so that a vCPU that wakes up notifies it.
    pub(super) asleep: AtomicBool,
    pub(super) stop: AtomicBool,
    pub(super) thread: OnceLock<Thread>,
}

impl Monitor {
    /// Creates the state with a stall limit, or the default limit. Limits below a millisecond are
    /// raised to a millisecond. With `on_stall`, every stall is reported to the program.
    pub(crate) fn new(limit: Option<Duration>, on_stall: bool) -> Monitor {
        let reports_all = limit.is_some() || on_stall;
        let limit = limit.unwrap_or(DEFAULT_LIMIT).max(2 * SHORTEST_PERIOD);
        let reported = if reports_all { limit } else { REPORTED_LIMIT };
        Monitor::every(limit, reported, (limit / 2).min(LONGEST_PERIOD))
    }

    pub(crate) fn by_default() -> Monitor {
        Monitor::every(REPORTED_LIMIT, REPORTED_LIMIT, REPORTED_LIMIT / 2)
    }

    fn every(limit: Duration, reported: Duration, period: Duration) -> Monitor {
        Monitor {
            limit,
            reported,
            period,
            longest: Arc::new(Longest::new(clock::to_ticks(limit).max(1))),
            asleep: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            thread: OnceLock::new(),
        }
    }

    /// Notifies the watchdog that a vCPU is about to poll again. Must be called after a full
    /// barrier.
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

impl fmt::Debug for Monitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Monitor").field(&self.limit).finish()
    }
}
