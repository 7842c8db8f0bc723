//! Writes metrics in Prometheus' text format.

use std::fmt::{self, Write};
use std::sync::atomic::Ordering::Relaxed;

use upshift::{LEVELS, Level};
use upshift_trace::prometheus::Text;

use super::BOUNDS;
use crate::server::shared::Shared;

pub(crate) fn render(shared: &Shared) -> String {
    let mut out = String::with_capacity(4096);
    // Writing to a string cannot fail.
    let _ = write(&mut Text::new(&mut out), shared);
    let _ = write!(out, "{}", shared.runtime.metrics().prometheus());
    out
}

fn write(out: &mut Text<'_>, shared: &Shared) -> fmt::Result {
    let metrics = &shared.metrics;
    out.family("http_responses_total", "Responses by class of status.")?;
    for class in 1..6 {
        let count = metrics.sum(|vcpu| &vcpu.statuses[class]);
        out.sample(&[("class", &format_args!("{class}xx"))], count)?;
    }
    let bytes = metrics.sum(|vcpu| &vcpu.bytes);
    let help = "Bytes of response bodies.";
    out.single("http_response_bytes_total", help, bytes)?;
    let counters = [
        (
            "connections_accepted_total",
            "Connections accepted.",
            &metrics.accepted,
        ),
        (
            "connections_turned_away_total",
            "Connections closed at once because a limit was reached.",
            &metrics.turned_away,
        ),
        (
            "connections_timed_out_total",
            "Connections ended by a time-out.",
            &metrics.timed_out,
        ),
        (
            "http_throttled_total",
            "Requests refused with 429.",
            &metrics.throttled,
        ),
    ];
    for (name, help, counter) in counters {
        out.single(name, help, counter.load(Relaxed))?;
    }
    let open = shared.connections.count();
    out.single("connections_open", "Connections that are open.", open)?;
    write_levels(out, shared)
}

fn used_levels(shared: &Shared) -> impl Iterator<Item = Level> {
    (0..LEVELS as u8)
        .filter_map(|level| Level::new(level).ok())
        .filter(|level| {
            let answered: u64 = shared.metrics.buckets(*level).iter().sum();
            answered + shared.gates.refused(*level) > 0 || shared.gates.in_flight(*level) > 0
        })
}

fn write_levels(out: &mut Text<'_>, shared: &Shared) -> fmt::Result {
    let help = "Request durations, to the end of the body, by level.";
    out.histogram("http_request_duration_seconds", help)?;
    for level in used_levels(shared) {
        let counts = shared.metrics.buckets(level);
        let mut cumulative = 0;
        let buckets = BOUNDS.iter().zip(counts).map(|(bound, count)| {
            cumulative += count;
            (*bound as f64 / 1e6, cumulative)
        });
        let sum = shared.metrics.micros(level) as f64 / 1e6;
        out.buckets(&[("level", &level)], buckets, sum, counts.iter().sum())?;
    }
    let help = "Requests refused with 503, by level.";
    out.family("http_refused_total", help)?;
    for level in used_levels(shared) {
        out.sample(&[("level", &level)], shared.gates.refused(level))?;
    }
    out.family("http_in_flight", "Requests under way, by level.")?;
    for level in used_levels(shared) {
        out.sample(&[("level", &level)], shared.gates.in_flight(level))?;
    }
    let help = "Expected wait of the next request of a level.";
    out.family("http_expected_wait_seconds", help)?;
    for level in used_levels(shared) {
        let expected = shared.gates.expected_wait(level).as_secs_f64();
        out.sample(&[("level", &level)], expected)?;
    }
    Ok(())
}
