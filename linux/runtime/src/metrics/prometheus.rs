//! Formats [`Metrics`] in the Prometheus text format (version 0.0.4). Names and labels are stable,
//! and times are in seconds.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use upshift_core::Level;
use upshift_trace::prometheus::{CONTENT_TYPE, Text};

use super::{Histogram, LevelMetrics, Metrics, NamedMetrics, VcpuMetrics};

/// Bounds of the histograms, ns: 1, 2 and 5 per decade from 1 µs to 10 s.
const BOUNDS: [u64; 22] = {
    let mut bounds = [0; 22];
    let mut decade = 1_000;
    let mut place = 0;
    while place < 22 {
        bounds[place] = decade * [1, 2, 5][place % 3];
        if place % 3 == 2 {
            decade *= 10;
        }
        place += 1;
    }
    bounds
};

/// A snapshot as text for `GET /metrics`; from [`Metrics::prometheus`].
///
/// The content type is [`Prometheus::CONTENT_TYPE`].
#[derive(Clone, Copy, Debug)]
pub struct Prometheus<'a>(&'a Metrics);

impl Prometheus<'_> {
    /// Value of the `Content-Type` header.
    pub const CONTENT_TYPE: &'static str = CONTENT_TYPE;
}

impl Metrics {
    /// Returns the snapshot in the Prometheus text format.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let metrics = upshift::Handle::current().unwrap().metrics();
    /// let text = metrics.prometheus().to_string();
    /// assert!(text.contains("upshift_coroutines{state=\"running\"} 1\n"));
    /// # });
    /// ```
    #[must_use]
    pub fn prometheus(&self) -> Prometheus<'_> {
        Prometheus(self)
    }
}

enum Value {
    Count(u64),
    Number(usize),
    Time(Duration),
}
use Value::{Count, Number, Time};

impl Display for Value {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Count(count) => count.fmt(f),
            Number(number) => number.fmt(f),
            Time(time) => time.as_secs_f64().fmt(f),
        }
    }
}

/// A family, that is, a metric with one sample for each `T`: its name without the prefix of its
/// group, its help text, and the function that returns the sample. A family whose name ends in
/// `_total` is a counter; all others are gauges.
type Family<T> = (&'static str, &'static str, fn(&T) -> Value);

/// Writes a group of families, each with one sample per value of a label.
fn labelled<T, L: Display>(
    text: &mut Text<'_>,
    (group, families): (&str, &[Family<T>]),
    items: &[T],
    (label, value): (&str, fn(&T) -> L),
) -> fmt::Result {
    if items.is_empty() {
        return Ok(());
    }
    for (name, help, sample) in families {
        text.family(&format!("{group}{name}"), help)?;
        for item in items {
            text.sample(&[(label, &value(item))], sample(item))?;
        }
    }
    Ok(())
}

fn single(text: &mut Text<'_>, metrics: &Metrics, families: &[Family<Metrics>]) -> fmt::Result {
    for (name, help, sample) in families {
        text.single(name, help, sample(metrics))?;
    }
    Ok(())
}

fn states(
    text: &mut Text<'_>,
    (name, help): (&'static str, &'static str),
    states: &[(&str, u64)],
) -> fmt::Result {
    let family: Family<(&str, u64)> = (name, help, |state| Count(state.1));
    labelled(text, ("", &[family]), states, ("state", |state| state.0))
}

impl Display for Prometheus<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let metrics = self.0;
        let text = &mut Text::new(f);
        if !metrics.driver.is_empty() {
            text.family("driver", "Driver that carries out I/O.")?;
            text.sample(&[("driver", &metrics.driver)], 1)?;
        }
        coroutines(metrics, text)?;
        let level = ("level", (|l| l.level) as fn(&LevelMetrics) -> Level);
        labelled(text, ("level_", LEVEL), &metrics.levels, level)?;
        waits(metrics, text)?;
        let name = ("name", (|n| n.name.clone()) as fn(&NamedMetrics) -> String);
        labelled(text, ("named_", NAMED), &metrics.named, name)?;
        latencies(metrics, text)?;
        let vcpu = ("vcpu", (|v| v.index) as fn(&VcpuMetrics) -> usize);
        labelled(text, ("vcpu_", VCPU), &metrics.vcpus, vcpu)?;
        labelled(text, ("ring_", RING), &metrics.vcpus, vcpu)?;
        single(text, metrics, PREEMPTION)
    }
}

fn coroutines(metrics: &Metrics, text: &mut Text<'_>) -> fmt::Result {
    single(text, metrics, UPTIME)?;
    let counts = &metrics.coroutines;
    let help = "Coroutines that have not exited, by state.";
    let by_state = [
        ("ready", counts.ready),
        ("running", counts.running),
        ("blocked", counts.blocked),
        ("suspended", counts.suspended),
    ];
    states(text, ("coroutines", help), &by_state)?;
    single(text, metrics, EXITS)?;
    let blocking = &metrics.blocking;
    let help = "Threads for blocking functions, by what they do.";
    let busy = blocking.threads.saturating_sub(blocking.idle);
    let threads = [("busy", busy), ("idle", blocking.idle)];
    states(text, ("blocking_threads", help), &threads)?;
    single(text, metrics, BLOCKING)
}

/// Defines a list of families, each by the kind of its samples, its name, its help text and the
/// field that it shows.
macro_rules! families {
    ($list:ident of $type:ty: $($kind:ident $name:literal $help:literal $($figure:ident).+;)+) => {
        const $list: &[Family<$type>] = &[
            $(($name, $help, |metrics| $kind(metrics.$($figure).+)),)+
        ];
    };
}

families! { UPTIME of Metrics:
    Time "uptime_seconds" "Time since the runtime was built." uptime;
}

families! { EXITS of Metrics:
    Count "spawned_total" "Coroutines spawned." coroutines.spawned;
    Count "exited_total" "Coroutines that have exited." coroutines.exited;
    Count "panicked_total" "Coroutines that have panicked." coroutines.panicked;
}

families! { BLOCKING of Metrics:
    Count "blocking_queued" "Blocking functions that wait for a thread." blocking.queued;
}

families! { LEVEL of LevelMetrics:
    Count "polls_total" "Polls begun or resumed, by level." polls;
    Count "suspensions_total" "Polls suspended, by level." suspensions;
    Time "run_seconds_total" "Time spent in polls, by level." run;
    Time "starve_seconds_total" "Time with something ready and nothing picked, by level." starve;
    Count "ready" "Coroutines ready or suspended, by level." ready;
}

families! { NAMED of NamedMetrics:
    Count "ended_total" "Pieces of named work that have ended, by name." ended;
    Count "under_way" "Pieces of named work that have begun and not ended, by name." under_way;
    Count "polls_total" "Polls of named work, by name." polls;
    Time "polling_seconds_total" "Time in polls of named work, suspended ones included, by name." polling;
}

families! { VCPU of VcpuMetrics:
    Time "in_service_seconds_total" "Time in service." in_service;
    Time "busy_seconds_total" "Time neither parked nor spinning." busy;
    Time "polling_seconds_total" "Time spent in polls." polling;
    Time "parked_seconds_total" "Time asleep in the kernel." parked;
    Time "spin_seconds_total" "Time spent spinning for work." spin;
    Count "polls_total" "Polls begun or resumed." polls;
    Count "parks_total" "Times the vCPU went to sleep." parks;
    Count "stolen_total" "Coroutines taken from other vCPUs." stolen;
    Count "suspensions_total" "Polls suspended." suspensions;
}

families! { RING of VcpuMetrics:
    Count "enters_total" "io_uring_enter calls, or their equivalent without io_uring." ring.enters;
    Count "submitted_total" "Submission queue entries handed to the kernel." ring.submitted;
    Count "completed_total" "Completion queue entries read." ring.completed;
    Count "overflows_total" "Times the completion queue had overflowed." ring.overflows;
    Count "out_of_buffers_total" "Times a stream had to wait for a receive buffer." ring.out_of_buffers;
    Count "refused_total" "Operations refused because too many were alive." ring.refused;
    Count "in_flight" "Operations and streams in flight." ring.in_flight;
    Count "backlog_max" "Greatest length of the backlog of a full submission queue." ring.backlog_max;
}

families! { PREEMPTION of Metrics:
    Number "preemption_vcpus" "vCPUs that can interrupt a poll." preemption.vcpus;
    Count "preemption_suspensions_total" "Polls suspended, over all vCPUs." preemption.suspensions;
    Count "preemption_wakeups_total" "Times a watcher woke up." preemption.wakeups;
    Count "preemption_spurious_wakeups_total" "Times a watcher woke up for nothing." preemption.spurious_wakeups;
    Count "preemption_services_total" "System calls on a ring that its thread made for another." preemption.services;
    Count "stalls_total" "Polls that took longer than the stall limit." stalls.count;
}

fn waits(metrics: &Metrics, text: &mut Text<'_>) -> fmt::Result {
    if !metrics.levels.is_empty() {
        let help = "Time from ready to polled, by level; the sum is estimated from the buckets.";
        text.histogram("level_wait_seconds", help)?;
    }
    for level in &metrics.levels {
        let sum = level.wait.estimated_sum().as_secs_f64();
        let buckets = cumulative_counts(&level.wait);
        text.buckets(&[("level", &level.level)], buckets, sum, level.wait.count())?;
    }
    Ok(())
}

fn latencies(metrics: &Metrics, text: &mut Text<'_>) -> fmt::Result {
    if !metrics.named.is_empty() {
        let help = "Time from the first poll of named work to its end, by name; the sum is \
                    estimated from the buckets.";
        text.histogram("named_latency_seconds", help)?;
    }
    for work in &metrics.named {
        let sum = work.latency.estimated_sum().as_secs_f64();
        let (buckets, count) = (cumulative_counts(&work.latency), work.latency.count());
        text.buckets(&[("name", &work.name)], buckets, sum, count)?;
    }
    Ok(())
}

/// Yields each of [`BOUNDS`], in seconds, with the number of waits in buckets that end at or below
/// that bound.
fn cumulative_counts(waits: &Histogram) -> impl Iterator<Item = (f64, u64)> {
    let mut buckets = waits.buckets().iter().peekable();
    let mut count = 0;
    BOUNDS.into_iter().map(move |bound| {
        while let Some(bucket) = buckets.next_if(|bucket| bucket.to_ns <= bound) {
            count += bucket.count;
        }
        (Duration::from_nanos(bound).as_secs_f64(), count)
    })
}

#[cfg(test)]
mod tests {
    use super::super::RingMetrics;
    use super::*;

    fn sample() -> Metrics {
        let mut metrics = Metrics {
            uptime: Duration::from_millis(1500),
            ..Metrics::default()
        };
        metrics.coroutines.spawned = 7;
        let mut wait = Histogram::default();
        for (from_ns, to_ns, count) in [
            (800, 900, 3),
            (1_800, 2_100, 2),
            (20_000_000_000, 21_000_000_000, 1),
        ] {
            wait.merge(&Histogram::from_buckets(&[(from_ns, to_ns, count)]));
        }
        metrics.levels.push(LevelMetrics {
            level: Level::at::<4>(),
            polls: 6,
            suspensions: 0,
            ready: 1,
            running: 0,
            run: Duration::from_micros(250),
            starve: Duration::ZERO,
            wait: wait.clone(),
        });
        metrics.named.push(NamedMetrics {
            name: "GET /".into(),
            under_way: 1,
            ended: 6,
            polls: 8,
            polling: Duration::from_micros(250),
            longest: Duration::from_micros(90),
            level: Level::at::<4>(),
            latency: wait,
        });
        metrics.vcpus.push(VcpuMetrics {
            ring: RingMetrics {
                enters: 9,
                ..RingMetrics::default()
            },
            ..VcpuMetrics::default()
        });
        metrics
    }

    /// Checks only the parts of the format's grammar that these samples use.
    fn check(text: &str) {
        let mut family = String::new();
        let mut seen = std::collections::HashSet::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                family = rest.split(' ').next().unwrap().to_owned();
                assert!(seen.insert(family.clone()), "{family} comes twice");
                assert!(rest.len() > family.len() + 1, "no help: {line}");
                continue;
            }
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert_eq!(name, family);
                assert!(["counter", "gauge", "histogram"].contains(&kind));
                assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
                continue;
            }
            let (name, value) = line.rsplit_once(' ').unwrap();
            let (name, labels) = name.split_once('{').unwrap_or((name, "}"));
            assert!(
                name.starts_with(family.as_str()),
                "{line} is not of {family}"
            );
            assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '_'));
            assert!(value.parse::<f64>().is_ok(), "{line}");
            let labels = labels.strip_suffix('}').unwrap();
            for label in labels.split(',').filter(|label| !label.is_empty()) {
                let (key, value) = label.split_once('=').unwrap();
                assert!(key.chars().all(|c| c.is_ascii_lowercase()));
                assert!(value.starts_with('"') && value.ends_with('"') && value.len() > 2);
            }
        }
        assert!(text.ends_with('\n'));
    }

    #[test]
    fn the_text_follows_the_format() {
        check(&sample().prometheus().to_string());
        check(&Metrics::default().prometheus().to_string());
    }

    #[test]
    fn names_are_stable() {
        let text = sample().prometheus().to_string();
        for line in [
            "upshift_uptime_seconds 1.5",
            "upshift_spawned_total 7",
            "upshift_level_polls_total{level=\"4\"} 6",
            "upshift_level_run_seconds_total{level=\"4\"} 0.00025",
            "upshift_level_ready{level=\"4\"} 1",
            "upshift_level_wait_seconds_bucket{level=\"4\",le=\"0.000001\"} 3",
            "upshift_level_wait_seconds_bucket{level=\"4\",le=\"0.000002\"} 3",
            "upshift_level_wait_seconds_bucket{level=\"4\",le=\"0.000005\"} 5",
            "upshift_level_wait_seconds_bucket{level=\"4\",le=\"10\"} 5",
            "upshift_level_wait_seconds_bucket{level=\"4\",le=\"+Inf\"} 6",
            "upshift_level_wait_seconds_count{level=\"4\"} 6",
            "upshift_ring_enters_total{vcpu=\"0\"} 9",
            "upshift_preemption_suspensions_total 0",
        ] {
            assert!(text.lines().any(|have| have == line), "{line}\n{text}");
        }
    }
}
