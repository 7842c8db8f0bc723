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
/// The limit of reports by default: a person notices a delay of this length.
const REPORTED_LIMIT: Duration = Duration::from_millis(100);
/// The longest time between two looks, if somebody wants to see the longest polls.
const LONGEST_PERIOD: Duration = Duration::from_millis(5);
/// The shortest time between two looks.
pub(super) const SHORTEST_PERIOD: Duration = Duration::from_micros(500);

/// See the module.
pub(crate) struct Watch {
    pub(crate) limit: Duration,
    /// A poll that goes on is reported when it has taken so long.
    pub(super) reported: Duration,
    /// The time between two looks.
    pub(super) period: Duration,
    pub(crate) longest: Arc<Longest>,
    /// A vCPU that wakes up has to tell.
    pub(super) asleep: AtomicBool,
    pub(super) stop: AtomicBool,
    pub(super) thread: OnceLock<Thread>,
}

impl Watch {
    /// With a stall limit, or the default one. Limits below a millisecond are raised to it.
    /// `on_stall`: stalls are reported to the program.
    pub(crate) fn new(limit: Option<Duration>, on_stall: bool) -> Watch {
        let reports_all = limit.is_some() || on_stall;
        let limit = limit.unwrap_or(DEFAULT_LIMIT).max(2 * SHORTEST_PERIOD);
        let reported = if reports_all { limit } else { REPORTED_LIMIT };
        Watch::every(limit, reported, (limit / 2).min(LONGEST_PERIOD))
    }

    /// Creates the watch for reports by default, which looks seldom.
    pub(crate) fn by_default() -> Watch {
        Watch::every(REPORTED_LIMIT, REPORTED_LIMIT, REPORTED_LIMIT / 2)
    }

    fn every(limit: Duration, reported: Duration, period: Duration) -> Watch {
        Watch {
            limit,
            reported,
            period,
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
