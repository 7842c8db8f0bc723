//! Experiment 2: eight priority levels at overload.
//!
//! Eight addresses with levels 0, 8, …, 56 get equal shares of 130 % of what the server can serve,
//! in open loop. What it can serve is measured in open loop too, with far more than it can take:
//! requests that queue on a connection are cheaper than those of a closed loop. With strict
//! priorities the urgent levels must not notice: their latency is compared with that of the top
//! level alone, and the total with the same load at one level. The medians are what the demo ends with.

mod show;

use std::time::Duration;

use anyhow::Result;
use upshift_load::scenario::{LEVELS, ONE_LEVEL, OVERLOAD, OVERLOAD_SIZE};
use upshift_load::{GroupReport, Report};

use super::bench::{Bench, Measurement, Pace, planned};
use crate::choice::Model;
use crate::demo::report::headline::Headline;
use crate::demo::report::{Finding, Section};
use show::{commands, latency_plot, table, throughput_plot};
use upshift_report::number::{factor, grouped, micros};

const CONNECTIONS: usize = 8;
/// How the capacity is measured; the best counts. A closed loop serves less than a flood, but a client that floods the CPU
/// that it shares with the server keeps it from its work.
const CAPACITY: [(&str, Pace); 2] = [
    ("capacity", Pace::Rate(FLOOD)),
    ("capacity, closed loop", Pace::Closed),
];
/// A server that serves less than this, per second, was kept from its CPU.
const PLAUSIBLE: f64 = 100.0;
/// The urgent level keeps its median when this is at most so many times what it is alone.
const MEDIAN_KEPT_FACTOR: f64 = 2.0;
/// Offered to each level when the capacity is measured: more than any server takes, requests per
/// second. The client keeps at most 16 requests per connection in flight.
const FLOOD: f64 = 200_000.0;

struct Times {
    warmup: Duration,
    capacity: Duration,
    alone: Duration,
    overload: Duration,
}

fn times(quick: bool) -> Times {
    let ms = Duration::from_millis;
    if quick {
        Times {
            warmup: ms(100),
            capacity: ms(350),
            alone: ms(500),
            overload: ms(800),
        }
    } else {
        Times {
            warmup: ms(200),
            capacity: ms(800),
            alone: ms(1500),
            overload: ms(2500),
        }
    }
}

/// How long the experiment is planned to take; `cpus` as for [`run`].
pub(crate) fn plan(quick: bool, cpus: usize) -> Duration {
    let times = times(quick);
    let once: Duration = [times.alone, times.overload, times.overload]
        .iter()
        .map(|&t| planned(times.warmup, t))
        .sum();
    let once = once + planned(times.warmup, times.capacity) * CAPACITY.len() as u32;
    once * if on_all_cpus(quick, cpus) { 2 } else { 1 }
}

/// Is there a second run, on all CPUs? The client then shares one of them with the server.
fn on_all_cpus(quick: bool, cpus: usize) -> bool {
    !quick && cpus > 1
}

/// The results on one set of CPUs.
struct Run {
    /// "one vCPU" or "all CPUs".
    place: String,
    vcpus: usize,
    /// Offered per level, requests per second.
    offered: f64,
    capacity: f64,
    alone: Report,
    levels: Report,
    one_level: Report,
}

impl Run {
    /// Was more offered than the server could serve?
    fn overloaded(&self) -> bool {
        self.levels.total.per_second <= 0.97 * self.offered * LEVELS.len() as f64
    }
}

/// Runs the experiment on one vCPU, and on all CPUs if there are more.
pub(crate) fn run(bench: &mut Bench) -> Result<Section> {
    let mut runs = Vec::new();
    let first = bench.placement.server.clone();
    runs.push(run_on(bench, &first, "one vCPU")?);
    if on_all_cpus(bench.quick, bench.placement.all.len()) {
        let all = bench.placement.all.clone();
        runs.push(run_on(bench, &all, &format!("{} vCPUs", all.len()))?);
    }
    let mut section = Section {
        title: "2. Eight levels at overload".into(),
        intro: format!(
            "One server listens on eight addresses with the levels 0 (most urgent), 8, …, 56; {CONNECTIONS} \
             connections to each, n = {OVERLOAD_SIZE}. Every level is offered the same load, together {:.0} % of the capacity \
             (what the server serves when it is offered far too much, or in closed loop if that is more), in open loop: requests come at fixed times \
             whatever the server does, and latency counts from the time a request was due. Waiting are the requests \
             that had no reply at the end; a level whose share cannot be served waits, and its percentiles cover only \
             the replies it got. Where more than 1 % wait, the findings take the age of the oldest for the p99.",
            OVERLOAD * 100.0
        ),
        headline: runs.first().and_then(headline),
        ..Section::default()
    };
    for run in &runs {
        section.findings.extend(findings(run));
        section
            .plots
            .extend([throughput_plot(run), latency_plot(run)]);
        section.tables.push(table(run));
        section.commands.extend(commands(bench, run));
    }
    Ok(section)
}

fn run_on(bench: &mut Bench, cpus: &[usize], place: &str) -> Result<Run> {
    let times = times(bench.quick);
    let mixed = bench.matrix_server(Model::Coroutine, &LEVELS, cpus)?;
    let single = bench.matrix_server(Model::Coroutine, &ONE_LEVEL, cpus)?;
    let mut measure =
        |what: &str, at_levels: bool, groups: usize, pace: Pace, duration: Duration| {
            let server = if at_levels { &mixed } else { &single };
            let levels = if at_levels { &LEVELS } else { &ONE_LEVEL };
            let targets = server
                .addresses
                .iter()
                .zip(levels)
                .take(groups)
                .map(|(&at, level)| (at, format!("level {level}")))
                .collect();
            bench.measure(&Measurement {
                label: &format!("{place}, {what}"),
                targets,
                connections: CONNECTIONS,
                size: OVERLOAD_SIZE,
                pace,
                warmup: times.warmup,
                duration,
                server: server.pid(),
            })
        };
    let mut capacity = 0.0;
    for (what, pace) in CAPACITY {
        let full = measure(what, false, 8, pace, times.capacity)?;
        capacity = full.total.per_second.max(capacity);
    }
    let offered = (OVERLOAD * capacity / 8.0).max(1.0).round();
    let alone = measure("top level alone", true, 1, Pace::Rate(offered), times.alone)?;
    let levels = measure("8 levels", true, 8, Pace::Rate(offered), times.overload)?;
    let one_level = measure("one level", false, 8, Pace::Rate(offered), times.overload)?;
    mixed.stop(&bench.stop)?;
    single.stop(&bench.stop)?;
    Ok(Run {
        place: place.to_owned(),
        vcpus: cpus.len().max(1),
        offered,
        capacity,
        alone,
        levels,
        one_level,
    })
}

/// What the urgent level waits at overload, with levels and without; none where a run has no replies.
fn headline(run: &Run) -> Option<Headline> {
    let alone = run.alone.groups.first()?;
    let top = run.levels.groups.first()?;
    let one = &run.one_level.total;
    if [alone, top, one].iter().any(|group| group.requests == 0) {
        return None;
    }
    let load = format!("{:.0} % load", OVERLOAD * 100.0);
    let verdict = if !run.overloaded() {
        "The server was not overloaded, so its levels had little to decide.".to_owned()
    } else if top.p50 <= MEDIAN_KEPT_FACTOR * alone.p50 {
        format!(
            "At {load}, level 0 keeps its median: {}, alone {}. In one shared queue a request waits {}.",
            micros(top.p50),
            micros(alone.p50),
            micros(one.p50)
        )
    } else {
        format!(
            "At {load}, level 0 has a median of {}, {} what it has alone ({}); one shared queue has {}.",
            micros(top.p50),
            factor(top.p50, alone.p50),
            micros(alone.p50),
            micros(one.p50)
        )
    };
    Some(Headline {
        title: format!("Median latency at {load}"),
        bars: vec![
            ("level 0 alone, idle server".into(), alone.p50),
            ("level 0, seven levels below".into(), top.p50),
            ("all in one shared queue".into(), one.p50),
        ],
        verdict,
    })
}

fn findings(run: &Run) -> Vec<Finding> {
    let place = &run.place;
    let mut findings = Vec::new();
    if let (Some(top), Some(alone)) = (run.levels.groups.first(), run.alone.groups.first()) {
        findings.push(Finding::new(format!(
            "On {place}, level 0 at {:.0} % load: p50 {}, p99 {}; alone on an idle server {} and {} ({} and {}).",
            OVERLOAD * 100.0,
            micros(top.p50),
            micros(top.tail()),
            micros(alone.p50),
            micros(alone.tail()),
            factor(top.p50, alone.p50),
            factor(top.tail(), alone.tail()),
        )));
    }
    let tails: Vec<f64> = run.levels.groups.iter().map(GroupReport::tail).collect();
    // Neighbours within 10 % are equal: neither waits for the other.
    let ordered = tails.windows(2).all(|pair| pair[0] <= pair[1] * 1.1);
    let text = if ordered {
        "never falls from a level to the next"
    } else {
        "is not in the order of the levels"
    };
    let chain = tails
        .iter()
        .map(|&t| micros(t))
        .collect::<Vec<_>>()
        .join(", ");
    findings.push(Finding::new(format!(
        "On {place}, the p99 {text}: {chain}."
    )));
    let [mixed, single] = [run.levels.total.per_second, run.one_level.total.per_second];
    findings.push(Finding::new(format!(
        "On {place}, 8 levels together serve {} requests per second, the same load at one level {} ({}).",
        grouped(mixed),
        grouped(single),
        factor(mixed, single),
    )));
    if run.capacity < PLAUSIBLE {
        findings.push(Finding::failed(format!(
            "On {place} the server's capacity could not be measured: other programs keep client or server from their CPUs."
        )));
    }
    if !run.overloaded() {
        findings.push(Finding::new(format!(
            "On {place} all of the offered load was served: it was no overload, and the levels had little to decide."
        )));
    }
    if run.vcpus > 1 {
        findings.push(Finding::new(format!(
            "On {place} the client shares a CPU with the server, so the latency of all levels includes waiting for the client."
        )));
    }
    let lag = run
        .levels
        .total
        .send_lag_p99
        .max(run.alone.total.send_lag_p99);
    if lag > 1000.0 {
        findings.push(Finding::new(format!(
            "On {place} the client itself was late by {} (p99): latencies of that order are its own.",
            micros(lag)
        )));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::sample;

    #[test]
    fn the_verdict_says_what_was_measured() {
        let report = |tails: [f64; 8]| sample(&tails.map(|tail| [tail; 3]));
        let rising = [1., 2., 3., 4., 5., 6., 7., 8.];
        let mut run = Run {
            place: "one vCPU".into(),
            vcpus: 1,
            offered: 130.0,
            capacity: 800.0,
            alone: report(rising),
            levels: report(rising),
            one_level: report(rising),
        };
        let verdict = |run: &Run| headline(run).expect("replies").verdict;
        assert!(verdict(&run).contains("keeps its median: 1.00 µs"));
        let said = |run: &Run| {
            findings(run)
                .into_iter()
                .map(|f| f.text)
                .collect::<String>()
        };
        assert!(said(&run).contains("never falls"));
        run.levels = report([3., 2., 30., 4., 5., 6., 7., 8.]);
        assert!(verdict(&run).contains("3.00× what it has alone"));
        assert!(said(&run).contains("not in the order"));
        run.offered = 100.0;
        assert!(verdict(&run).contains("not overloaded"));
        run.levels.groups[0].requests = 0;
        assert!(headline(&run).is_none());
        assert_eq!(table(&run).rows.len(), 11);
    }
}
