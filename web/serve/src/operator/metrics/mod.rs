//! Counts requests and connections. `text.rs` writes the counters for Prometheus.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use upshift::{LEVELS, Level};

use crate::per_vcpu::PerVcpu;

mod text;

pub(crate) use text::render;

/// Upper bounds of the buckets for request durations, in µs.
const BOUNDS: [u64; 14] = [
    100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    5_000_000,
];

#[derive(Debug, Default)]
struct LevelCounters {
    /// Sum of the durations, in µs.
    micros: AtomicU64,
    /// Number of requests by duration, one for each of [`BOUNDS`] and one for longer durations. The
    /// sum of the buckets is the number of all requests of the level.
    buckets: [AtomicU64; BOUNDS.len() + 1],
}

#[derive(Debug)]
struct VcpuCounters {
    levels: [LevelCounters; LEVELS],
    /// Number of responses by the first digit of their status. Statuses from 600 on count as 5.
    statuses: [AtomicU64; 6],
    /// Number of bytes of response bodies.
    bytes: AtomicU64,
}

impl Default for VcpuCounters {
    fn default() -> VcpuCounters {
        VcpuCounters {
            levels: std::array::from_fn(|_| LevelCounters::default()),
            statuses: Default::default(),
            bytes: AtomicU64::new(0),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Metrics {
    counters: PerVcpu<VcpuCounters>,
    /// Number of connections that were accepted.
    pub(crate) accepted: AtomicU64,
    /// Number of connections that were closed at once because a limit was reached.
    pub(crate) turned_away: AtomicU64,
    /// Number of connections that a time-out has ended.
    pub(crate) timed_out: AtomicU64,
    /// Number of requests that exceeded the rate limit of their client's address.
    pub(crate) throttled: AtomicU64,
}

impl Metrics {
    pub(crate) fn new(vcpus: usize) -> Metrics {
        Metrics {
            counters: PerVcpu::new(vcpus),
            accepted: AtomicU64::new(0),
            turned_away: AtomicU64::new(0),
            timed_out: AtomicU64::new(0),
            throttled: AtomicU64::new(0),
        }
    }

    /// Counts a request that has ended.
    pub(crate) fn add_request(&self, level: Level, status: u16, bytes: u64, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let counters = self.counters.local();
        let level_counters = &counters.levels[usize::from(level.get())];
        level_counters.micros.fetch_add(micros, Relaxed);
        let bucket = BOUNDS.partition_point(|bound| *bound < micros);
        level_counters.buckets[bucket].fetch_add(1, Relaxed);
        counters.statuses[usize::from(status / 100).min(5)].fetch_add(1, Relaxed);
        counters.bytes.fetch_add(bytes, Relaxed);
    }

    fn sum(&self, counter: impl Fn(&VcpuCounters) -> &AtomicU64) -> u64 {
        self.counters
            .iter()
            .map(|vcpu| counter(vcpu).load(Relaxed))
            .sum()
    }

    fn buckets(&self, level: Level) -> [u64; BOUNDS.len() + 1] {
        let level = usize::from(level.get());
        std::array::from_fn(|bucket| self.sum(|vcpu| &vcpu.levels[level].buckets[bucket]))
    }

    fn micros(&self, level: Level) -> u64 {
        self.sum(|vcpu| &vcpu.levels[usize::from(level.get())].micros)
    }

    pub(crate) fn requests(&self) -> u64 {
        let responses = |class: usize| self.sum(|vcpu| &vcpu.statuses[class]);
        (0..6).map(responses).sum()
    }
}
