//! What the server counts. `text.rs` writes it for Prometheus.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use upshift::{LEVELS, Level};

mod text;

pub(crate) use text::render;

/// Upper bounds of the buckets of request durations, in µs.
const BOUNDS: [u64; 14] = [
    100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    5_000_000,
];

/// What is counted per level.
#[derive(Debug, Default)]
struct OfLevel {
    requests: AtomicU64,
    micros: AtomicU64,
    buckets: [AtomicU64; BOUNDS.len() + 1],
}

/// What is counted.
#[derive(Debug)]
pub(crate) struct Metrics {
    levels: Vec<OfLevel>,
    /// Responses by the first digit of their status.
    pub(crate) statuses: [AtomicU64; 6],
    pub(crate) bytes: AtomicU64,
    pub(crate) accepted: AtomicU64,
    pub(crate) turned_away: AtomicU64,
    pub(crate) timed_out: AtomicU64,
    pub(crate) throttled: AtomicU64,
}

impl Metrics {
    pub(crate) fn new() -> Metrics {
        Metrics {
            levels: (0..LEVELS).map(|_| OfLevel::default()).collect(),
            statuses: Default::default(),
            bytes: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
            turned_away: AtomicU64::new(0),
            timed_out: AtomicU64::new(0),
            throttled: AtomicU64::new(0),
        }
    }

    /// A request is over.
    pub(crate) fn request(&self, level: Level, status: u16, bytes: u64, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let of = &self.levels[usize::from(level.get())];
        of.requests.fetch_add(1, Relaxed);
        of.micros.fetch_add(micros, Relaxed);
        let bucket = BOUNDS.partition_point(|bound| *bound < micros);
        of.buckets[bucket].fetch_add(1, Relaxed);
        self.statuses[usize::from(status / 100).min(5)].fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn requests(&self) -> u64 {
        self.levels.iter().map(|of| of.requests.load(Relaxed)).sum()
    }
}
