//! The Prometheus text format (version 0.0.4) of a [`Metrics`]. Names and labels are
//! stable; times are seconds.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use super::{Histogram, Metrics, VcpuMetrics};

/// Bounds of the wait histograms, ns: 1, 2 and 5 per decade from 1 µs to 10 s.
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
    /// What to put into the `Content-Type` header.
    pub const CONTENT_TYPE: &'static str = "text/plain; version=0.0.4; charset=utf-8";
}

impl Metrics {
    /// The snapshot in the Prometheus text format.
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

/// The kind of a family of samples.
#[derive(Clone, Copy)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

fn family(to: &mut Formatter<'_>, name: &str, kind: Kind, help: &str) -> fmt::Result {
    let kind = match kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram => "histogram",
    };
    writeln!(to, "# HELP upshift_{name} {help}")?;
    writeln!(to, "# TYPE upshift_{name} {kind}")
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}

/// One family with one sample per label value; nothing if there is none.
fn samples<L: Display, V: Display>(
    to: &mut Formatter<'_>,
    (name, kind, help): (&str, Kind, &str),
    label: &str,
    samples: impl IntoIterator<Item = (L, V)>,
) -> fmt::Result {
    let mut samples = samples.into_iter().peekable();
    if samples.peek().is_some() {
        family(to, name, kind, help)?;
    }
    for (value, sample) in samples {
        writeln!(to, "upshift_{name}{{{label}=\"{value}\"}} {sample}")?;
    }
    Ok(())
}

fn single(
    to: &mut Formatter<'_>,
    (name, kind, help): (&str, Kind, &str),
    value: impl Display,
) -> fmt::Result {
    family(to, name, kind, help)?;
    writeln!(to, "upshift_{name} {value}")
}

impl Display for Prometheus<'_> {
    fn fmt(&self, to: &mut Formatter<'_>) -> fmt::Result {
        coroutines(self.0, to)?;
        levels(self.0, to)?;
        vcpus(self.0, to)?;
        rings(self.0, to)?;
        preemption(self.0, to)
    }
}

fn coroutines(metrics: &Metrics, to: &mut Formatter<'_>) -> fmt::Result {
    use Kind::{Counter, Gauge};
    let help = "Time since the runtime was built.";
    single(to, ("uptime_seconds", Gauge, help), seconds(metrics.uptime))?;
    let all = &metrics.coroutines;
    let help = "Coroutines that have not exited, by state.";
    let states = [
        ("ready", all.ready),
        ("running", all.running),
        ("blocked", all.blocked),
        ("suspended", all.suspended),
    ];
    samples(to, ("coroutines", Gauge, help), "state", states)?;
    let help = "Coroutines spawned.";
    single(to, ("spawned_total", Counter, help), all.spawned)?;
    let help = "Coroutines that have exited.";
    single(to, ("exited_total", Counter, help), all.exited)?;
    let help = "Coroutines that have panicked.";
    single(to, ("panicked_total", Counter, help), all.panicked)?;
    let help = "Threads for blocking functions, by what they do.";
    let blocking = &metrics.blocking;
    let busy = blocking.threads.saturating_sub(blocking.idle);
    let threads = [("busy", busy), ("idle", blocking.idle)];
    samples(to, ("blocking_threads", Gauge, help), "state", threads)?;
    let help = "Blocking functions that wait for a thread.";
    single(to, ("blocking_queued", Gauge, help), blocking.queued)
}

fn levels(metrics: &Metrics, to: &mut Formatter<'_>) -> fmt::Result {
    use Kind::{Counter, Gauge};
    let levels = || metrics.levels.iter();
    let help = "Polls begun or resumed, by level.";
    let polls = levels().map(|level| (level.level, level.polls));
    samples(to, ("level_polls_total", Counter, help), "level", polls)?;
    let help = "Polls suspended, by level.";
    let all = levels().map(|level| (level.level, level.suspensions));
    samples(to, ("level_suspensions_total", Counter, help), "level", all)?;
    let help = "Time spent in polls, by level.";
    let run = levels().map(|level| (level.level, seconds(level.run)));
    samples(to, ("level_run_seconds_total", Counter, help), "level", run)?;
    let help = "Time with something ready and nothing picked, by level.";
    let all = levels().map(|level| (level.level, seconds(level.starve)));
    let name = "level_starve_seconds_total";
    samples(to, (name, Counter, help), "level", all)?;
    let help = "Coroutines ready or suspended, by level.";
    let ready = levels().map(|level| (level.level, level.ready));
    samples(to, ("level_ready", Gauge, help), "level", ready)?;
    if !metrics.levels.is_empty() {
        let help = "Time from ready to polled, by level; the sum is estimated from the buckets.";
        family(to, "level_wait_seconds", Kind::Histogram, help)?;
    }
    for level in levels() {
        wait(to, level.level, &level.wait)?;
    }
    Ok(())
}

fn wait(to: &mut Formatter<'_>, level: impl Display, waits: &Histogram) -> fmt::Result {
    const NAME: &str = "upshift_level_wait_seconds";
    let mut rest = waits.buckets().iter().peekable();
    let mut count = 0;
    for bound in BOUNDS {
        while let Some(bucket) = rest.next_if(|bucket| bucket.to_ns <= bound) {
            count += bucket.count;
        }
        let bound = seconds(Duration::from_nanos(bound));
        writeln!(
            to,
            "{NAME}_bucket{{level=\"{level}\",le=\"{bound}\"}} {count}"
        )?;
    }
    let all = waits.count();
    writeln!(to, "{NAME}_bucket{{level=\"{level}\",le=\"+Inf\"}} {all}")?;
    let sum = seconds(waits.estimated_sum());
    writeln!(to, "{NAME}_sum{{level=\"{level}\"}} {sum}")?;
    writeln!(to, "{NAME}_count{{level=\"{level}\"}} {all}")
}

fn vcpus(metrics: &Metrics, to: &mut Formatter<'_>) -> fmt::Result {
    type Time = fn(&VcpuMetrics) -> Duration;
    type Count = fn(&VcpuMetrics) -> u64;
    let times: [(&str, &str, Time); 5] = [
        ("in_service", "Time in service.", |vcpu| vcpu.in_service),
        ("busy", "Time neither parked nor spinning.", |vcpu| {
            vcpu.busy
        }),
        ("polling", "Time spent in polls.", |vcpu| vcpu.polling),
        ("parked", "Time asleep in the kernel.", |vcpu| vcpu.parked),
        ("spin", "Time spent spinning for work.", |vcpu| vcpu.spin),
    ];
    for (name, help, of) in times {
        let name = format!("vcpu_{name}_seconds_total");
        let all = metrics.vcpus.iter();
        let all = all.map(|vcpu| (vcpu.index, seconds(of(vcpu))));
        samples(to, (&name, Kind::Counter, help), "vcpu", all)?;
    }
    let counts: [(&str, &str, Count); 4] = [
        ("polls", "Polls begun or resumed.", |vcpu| vcpu.polls),
        ("parks", "Times it went to sleep.", |vcpu| vcpu.parks),
        ("stolen", "Coroutines taken from other vCPUs.", |vcpu| {
            vcpu.stolen
        }),
        ("suspensions", "Polls suspended.", |vcpu| vcpu.suspensions),
    ];
    for (name, help, of) in counts {
        let name = format!("vcpu_{name}_total");
        let all = metrics.vcpus.iter().map(|vcpu| (vcpu.index, of(vcpu)));
        samples(to, (&name, Kind::Counter, help), "vcpu", all)?;
    }
    Ok(())
}

fn rings(metrics: &Metrics, to: &mut Formatter<'_>) -> fmt::Result {
    type Count = fn(&VcpuMetrics) -> u64;
    let figures: [(&str, Kind, &str, Count); 8] = [
        (
            "enters_total",
            Kind::Counter,
            "io_uring_enter calls.",
            |v| v.ring.enters,
        ),
        (
            "submitted_total",
            Kind::Counter,
            "Submission queue entries handed to the kernel.",
            |v| v.ring.submitted,
        ),
        (
            "completed_total",
            Kind::Counter,
            "Completion queue entries read.",
            |v| v.ring.completed,
        ),
        (
            "overflows_total",
            Kind::Counter,
            "Times the completion queue was found overflown.",
            |v| v.ring.overflows,
        ),
        (
            "out_of_buffers_total",
            Kind::Counter,
            "Times a stream had to wait for a receive buffer.",
            |v| v.ring.out_of_buffers,
        ),
        (
            "refused_total",
            Kind::Counter,
            "Operations refused because too many were alive.",
            |v| v.ring.refused,
        ),
        (
            "in_flight",
            Kind::Gauge,
            "Operations and streams in flight.",
            |v| v.ring.in_flight,
        ),
        (
            "backlog_max",
            Kind::Gauge,
            "The longest that the backlog of a full submission queue ever was.",
            |v| v.ring.backlog_max,
        ),
    ];
    for (name, kind, help, of) in figures {
        let name = format!("ring_{name}");
        let all = metrics.vcpus.iter().map(|vcpu| (vcpu.index, of(vcpu)));
        samples(to, (&name, kind, help), "vcpu", all)?;
    }
    Ok(())
}

fn preemption(metrics: &Metrics, to: &mut Formatter<'_>) -> fmt::Result {
    use Kind::{Counter, Gauge};
    let stats = &metrics.preemption;
    let help = "vCPUs that can interrupt a poll.";
    single(to, ("preemption_vcpus", Gauge, help), stats.vcpus)?;
    let help = "Polls suspended, over all vCPUs.";
    let name = "preemption_suspensions_total";
    single(to, (name, Counter, help), stats.suspensions)?;
    let help = "Times a sentinel woke up.";
    single(to, ("preemption_looks_total", Counter, help), stats.looks)?;
    let help = "Times a sentinel woke up for nothing.";
    let name = "preemption_useless_looks_total";
    single(to, (name, Counter, help), stats.useless)?;
    let help = "Ring system calls made by a suspended thread.";
    let name = "preemption_services_total";
    single(to, (name, Counter, help), stats.services)?;
    let help = "Polls that took longer than the stall limit.";
    single(to, ("stalls_total", Counter, help), metrics.stalls.count)
}

#[cfg(test)]
mod tests {
    use super::super::{LevelMetrics, RingMetrics};
    use super::*;
    use upshift_core::Level;

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
            wait.merge(&Histogram::of(&[(from_ns, to_ns, count)]));
        }
        metrics.levels.push(LevelMetrics {
            level: Level::at::<4>(),
            polls: 6,
            suspensions: 0,
            ready: 1,
            running: 0,
            run: Duration::from_micros(250),
            starve: Duration::ZERO,
            wait,
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

    /// The grammar of the format, as far as these samples use it.
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
