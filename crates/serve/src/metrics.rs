//! Counters, and their Prometheus text.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use upshift::{LEVELS, Level};

use crate::shared::Shared;

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

/// Metrics of the server and of its runtime, in Prometheus' text format.
pub(crate) fn render(shared: &Shared) -> String {
    let mut out = Out(String::with_capacity(4096));
    let metrics = &shared.metrics;
    out.head(
        "upshift_http_responses_total",
        "counter",
        "Responses by class of status.",
    );
    for (class, count) in metrics.statuses.iter().enumerate().skip(1) {
        out.line(
            "upshift_http_responses_total",
            &format!("class=\"{class}xx\""),
            count.load(Relaxed),
        );
    }
    let plain = [
        (
            "upshift_http_response_bytes_total",
            "Bytes of response bodies.",
            &metrics.bytes,
        ),
        (
            "upshift_connections_accepted_total",
            "Connections accepted.",
            &metrics.accepted,
        ),
        (
            "upshift_connections_turned_away_total",
            "Connections closed at once, over a limit.",
            &metrics.turned_away,
        ),
        (
            "upshift_connections_timed_out_total",
            "Connections ended by a time-out.",
            &metrics.timed_out,
        ),
        (
            "upshift_http_throttled_total",
            "Requests refused with 429.",
            &metrics.throttled,
        ),
    ];
    for (name, help, counter) in plain {
        out.head(name, "counter", help);
        out.line(name, "", counter.load(Relaxed));
    }
    out.head(
        "upshift_connections_open",
        "gauge",
        "Connections that are open.",
    );
    out.line(
        "upshift_connections_open",
        "",
        shared.connections.count() as u64,
    );
    levels(&mut out, shared);
    // Writing to a string cannot fail.
    let _ = write!(out.0, "{}", shared.runtime.metrics().prometheus());
    out.0
}

/// Levels that have had a request.
fn used(shared: &Shared) -> impl Iterator<Item = Level> {
    (0..LEVELS as u8)
        .filter_map(|level| Level::new(level).ok())
        .filter(|level| {
            let of = &shared.metrics.levels[usize::from(level.get())];
            of.requests.load(Relaxed) + shared.gates.refused(*level) > 0
                || shared.gates.in_flight(*level) > 0
        })
}

fn levels(out: &mut Out, shared: &Shared) {
    let name = "upshift_http_request_duration_seconds";
    out.head(
        name,
        "histogram",
        "Request durations, to the end of the body, by level.",
    );
    for level in used(shared) {
        let of = &shared.metrics.levels[usize::from(level.get())];
        let mut seen = 0;
        for (bound, count) in BOUNDS.iter().zip(&of.buckets) {
            seen += count.load(Relaxed);
            let bound = *bound as f64 / 1e6;
            out.line(
                &format!("{name}_bucket"),
                &format!("level=\"{level}\",le=\"{bound}\""),
                seen,
            );
        }
        let count = of.requests.load(Relaxed);
        out.line(
            &format!("{name}_bucket"),
            &format!("level=\"{level}\",le=\"+Inf\""),
            count,
        );
        out.number(
            &format!("{name}_sum"),
            &format!("level=\"{level}\""),
            of.micros.load(Relaxed) as f64 / 1e6,
        );
        out.line(
            &format!("{name}_count"),
            &format!("level=\"{level}\""),
            count,
        );
    }
    let name = "upshift_http_refused_total";
    out.head(name, "counter", "Requests refused with 503, by level.");
    for level in used(shared) {
        let refused = shared.gates.refused(level);
        out.line(name, &format!("level=\"{level}\""), refused);
    }
    let name = "upshift_http_in_flight";
    out.head(name, "gauge", "Requests under way, by level.");
    for level in used(shared) {
        let in_flight = u64::from(shared.gates.in_flight(level));
        out.line(name, &format!("level=\"{level}\""), in_flight);
    }
    let name = "upshift_http_expected_wait_seconds";
    let help = "How long the next request of a level has to expect to wait.";
    out.head(name, "gauge", help);
    for level in used(shared) {
        let expected = shared.gates.expected(level).as_secs_f64();
        out.number(name, &format!("level=\"{level}\""), expected);
    }
}

struct Out(String);

impl Out {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn line(&mut self, name: &str, labels: &str, value: u64) {
        self.value(name, labels, &value.to_string());
    }

    fn number(&mut self, name: &str, labels: &str, value: f64) {
        self.value(name, labels, &value.to_string());
    }

    fn value(&mut self, name: &str, labels: &str, value: &str) {
        let _ = if labels.is_empty() {
            writeln!(self.0, "{name} {value}")
        } else {
            writeln!(self.0, "{name}{{{labels}}} {value}")
        };
    }
}
