//! The measuring side of the loop (the clock of the run, CPU time, whether it is to end), and its
//! waits.

use crate::cpu::{CpuUse, Reading};
use crate::os;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The longest sleep, in ns: bounds the reaction to `stop`.
pub(super) const NAP: u64 = 20_000_000;
/// Time before a send time that is spent polling instead of sleeping, in ns.
pub(super) const SPIN: u64 = 60_000;
/// The longest wait for the first reply of a connection, in ns.
pub(super) const PRIME: u64 = 10_000_000_000;
/// Requests that may be fired before replies are looked at again.
pub(super) const BURST: usize = 64;

/// The measuring side of a run.
pub(super) struct Meter {
    start: Instant,
    stop: Option<Arc<AtomicBool>>,
    server: Option<u32>,
}

/// CPU time used so far.
pub(super) struct Used {
    server: Option<Reading>,
    client: (Duration, Duration),
}

impl Meter {
    /// Of a run that begins now.
    ///
    /// # Errors
    /// The CPU time of the server cannot be read.
    pub(super) fn new(stop: Option<&Arc<AtomicBool>>, server: Option<u32>) -> io::Result<Meter> {
        server.map(Reading::of).transpose()?;
        Ok(Meter {
            start: Instant::now(),
            stop: stop.cloned(),
            server,
        })
    }

    /// ns since the run began.
    pub(super) fn now(&self) -> u64 {
        nanos(self.start.elapsed())
    }

    /// The run is to end at once.
    pub(super) fn is_stopped(&self) -> bool {
        let stop = self.stop.as_ref();
        stop.is_some_and(|stop| stop.load(Ordering::Relaxed))
    }

    /// Of the server, if it still runs, and of the calling thread.
    pub(super) fn used(&self) -> Used {
        Used {
            server: self.server.and_then(|pid| Reading::of(pid).ok()),
            client: os::thread_cpu().unwrap_or_default(),
        }
    }
}

impl Used {
    /// What the server, if it is known, and the client have used until a `later` reading.
    pub(super) fn until(&self, later: &Used) -> (Option<CpuUse>, CpuUse) {
        let server = self.server.as_ref().zip(later.server.as_ref());
        let client = CpuUse {
            user: later.client.0.saturating_sub(self.client.0),
            sys: later.client.1.saturating_sub(self.client.1),
        };
        (server.map(|(a, b)| a.until(b)), client)
    }
}

/// Time as the loop counts it.
pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 4)
}
