//! State that the vCPUs share with the watchdog, the thread that finds polls that take too long:
//! the limit, the stalls found, and whether the watchdog sleeps.

use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::Duration;

use super::longest::LongestPolls;
use crate::time::clock;

/// Limit if the live view needs a limit and the program sets none.
const DEFAULT_LIMIT: Duration = Duration::from_millis(10);
/// Limit of the default reports. A person notices a delay of this length.
const REPORTED_LIMIT: Duration = Duration::from_millis(100);
/// Longest time between two looks of the watchdog. Does not apply if there are only default
/// reports.
const LONGEST_PERIOD: Duration = Duration::from_millis(5);
/// Shortest time between two looks of the watchdog.
pub(super) const SHORTEST_PERIOD: Duration = Duration::from_micros(500);

pub(crate) struct Monitor {
    pub(crate) limit: Duration,
    /// Duration after which a poll under way is reported.
    pub(super) report_limit: Duration,
    /// Time between two looks of the watchdog.
    pub(super) period: Duration,
    pub(crate) longest: Arc<LongestPolls>,
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
        let report_limit = if reports_all { limit } else { REPORTED_LIMIT };
        Monitor::with_limits(limit, report_limit, (limit / 2).min(LONGEST_PERIOD))
    }

    /// Creates the state for the default reports, of polls that take very long.
    pub(crate) fn by_default() -> Monitor {
        Monitor::with_limits(REPORTED_LIMIT, REPORTED_LIMIT, REPORTED_LIMIT / 2)
    }

    fn with_limits(limit: Duration, report_limit: Duration, period: Duration) -> Monitor {
        Monitor {
            limit,
            report_limit,
            period,
            longest: Arc::new(LongestPolls::new(clock::to_ticks(limit).max(1))),
            asleep: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            thread: OnceLock::new(),
        }
    }

    /// Notifies the watchdog that a vCPU is about to poll again. Must be called after a full
    /// barrier.
    #[inline]
    pub(crate) fn notify_vcpu_wake(&self) {
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
