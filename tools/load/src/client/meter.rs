//! Measures the time of a run and the CPU time used, and checks whether the run is to end. Also
//! defines the time limits of the client's loop.

use crate::cpu::{CpuUse, Reading};
use crate::os;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longest sleep, in ns; it bounds the reaction to `stop`.
pub(super) const MAX_SLEEP: u64 = 20_000_000;
/// Time before a send time that the client spends polling instead of sleeping, in ns.
pub(super) const BUSY_POLL_TIME: u64 = 60_000;
/// Longest wait for the first reply of a connection, in ns.
pub(super) const PRIMING_TIMEOUT: u64 = 10_000_000_000;
/// Number of requests that may be sent before replies are read again.
pub(super) const MAX_BURST: usize = 64;

/// The clock of a run, the flag that ends it, and the processes of the server.
pub(super) struct Meter {
    start: Instant,
    stop: Option<Arc<AtomicBool>>,
    servers: Vec<u32>,
}

/// CPU time of the server's processes and of the client so far.
pub(super) struct CpuReading {
    servers: Option<Vec<Reading>>,
    /// User and system time.
    client: (Duration, Duration),
}

impl Meter {
    /// Creates the meter of a run that begins now.
    ///
    /// # Errors
    /// Fails if the CPU time of the server cannot be read.
    pub(super) fn new(stop: Option<&Arc<AtomicBool>>, servers: &[u32]) -> io::Result<Meter> {
        servers
            .iter()
            .try_for_each(|&pid| Reading::for_process(pid).map(drop))?;
        Ok(Meter {
            start: Instant::now(),
            stop: stop.cloned(),
            servers: servers.to_vec(),
        })
    }

    pub(super) fn now(&self) -> u64 {
        nanos(self.start.elapsed())
    }

    pub(super) fn is_stopped(&self) -> bool {
        let stop = self.stop.as_ref();
        stop.is_some_and(|stop| stop.load(Ordering::Relaxed))
    }

    /// Reads the CPU time of the server, if all its processes run, and of the calling thread.
    pub(super) fn read_cpu(&self) -> CpuReading {
        CpuReading {
            servers: self
                .servers
                .iter()
                .map(|&pid| Reading::for_process(pid).ok())
                .collect(),
            client: os::thread_cpu().unwrap_or_default(),
        }
    }
}

impl CpuReading {
    /// Returns the CPU time of the server, if it is known, and of the client until a `later`
    /// reading.
    pub(super) fn used_until(&self, later: &CpuReading) -> (Option<CpuUse>, CpuUse) {
        let servers = self.servers.as_ref().zip(later.servers.as_ref());
        let servers = servers.filter(|(before, _)| !before.is_empty());
        let client = CpuUse {
            user: later.client.0.saturating_sub(self.client.0),
            sys: later.client.1.saturating_sub(self.client.1),
        };
        let sum = |(before, after): (&Vec<Reading>, &Vec<Reading>)| {
            before.iter().zip(after).map(|(a, b)| a.used_until(b)).sum()
        };
        (servers.map(sum), client)
    }
}

/// Returns a duration in ns; a duration that is too long becomes one that cannot overflow a sum.
pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 4)
}
