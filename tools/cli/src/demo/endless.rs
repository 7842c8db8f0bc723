//! Experiment 5: level 0 pings against a coroutine of level 40 that never yields, preemption off and on.
//!
//! One connection asks for CPU time that outlasts the measurement, at level 40, in one poll; another sends a ping of level
//! 0 each millisecond. Requests are received at level 0. Without preemption the vCPU hangs and no ping is answered: the
//! run is bounded, and says so. The same pings with nothing in their way, on a CPU that is kept awake, show the best case.

use std::time::Duration;

use anyhow::Result;
use upshift_load::scenario::{self, BATCH_LEVEL};
use upshift_load::{GroupReport, Hog, Report, SpinPlan};

use super::bench::{Bench, planned};
use super::preempted;
use upshift_report::number::{factor, grouped, micros};
use upshift_report::plot::COLOURS;
use upshift_report::{Kind, Look, Plot, Table};

use crate::demo::report::{Finding, Section};
use crate::load::latencies;

const QUANTUM: &str = "50us";
const WARMUP: Duration = Duration::from_millis(100);
/// How long the client waits for the last replies; a server that hangs makes it wait to the end.
const DRAIN: Duration = Duration::from_millis(500);
/// By how much the endless coroutine outlasts the run, on a machine as fast as it was when its speed was measured. It ends, so
/// that the server can be ended in order.
const MARGIN: Duration = Duration::from_millis(700);

fn time(quick: bool) -> Duration {
    Duration::from_millis(if quick { 500 } else { 1200 })
}

/// How long the coroutine of level 40 runs.
fn endless(quick: bool) -> Duration {
    WARMUP + time(quick) + DRAIN + MARGIN
}

/// How long the experiment is planned to take.
pub(crate) fn plan(quick: bool) -> Duration {
    planned(WARMUP, time(quick)) * 3 + (DRAIN + MARGIN) * 2
}

/// What was measured; the last is missing where nothing may preempt.
struct Runs {
    alone: Report,
    off: Report,
    on: Result<Report, Finding>,
}

/// Runs the experiment.
pub(crate) fn run(bench: &mut Bench) -> Result<Section> {
    let awake = bench.awake();
    let alone = measure(bench, "nothing else", "off", false)?;
    let off = measure(bench, "preemption off", "off", true)?;
    let on = preempted::report(|| measure(bench, "preemption on", "on", true))?;
    drop(awake);
    let runs = Runs { alone, off, on };
    Ok(Section {
        title: "5. An endless coroutine".into(),
        intro: format!(
            "On one vCPU a coroutine of level 40 computes for longer than the measurement and never yields. Another \
             connection sends a ping of level 0 each millisecond for {} ms. A runtime that only switches where coroutines \
             let it cannot answer any; with preemption a more urgent coroutine that becomes ready suspends the other at \
             once. Nothing else: the same pings with no coroutine of level 40.",
            time(bench.quick).as_millis()
        ),
        findings: findings(&runs),
        plots: vec![answered_plot(&runs), latency_plot(&runs)],
        tables: vec![table(&runs)],
        commands: commands(bench),
        ..Section::default()
    })
}

fn measure(bench: &mut Bench, label: &str, preempt: &str, hog: bool) -> Result<Report> {
    let mut plan = planned(WARMUP, time(bench.quick));
    if hog {
        plan += DRAIN + MARGIN;
    }
    let server = bench.spin_server(0, preempt, QUANTUM)?;
    let report = bench.spin_load(label, &server, &load(bench.quick, hog), plan)?;
    server.stop(&bench.stop)?;
    Ok(report)
}

fn load(quick: bool, hog: bool) -> SpinPlan {
    let mut plan = scenario::pings(time(quick));
    plan.warmup = WARMUP;
    plan.hog = hog.then(|| Hog {
        service: endless(quick),
        level: BATCH_LEVEL,
    });
    plan
}

impl Runs {
    /// Name, pings and colour, in the order of tables and legends.
    fn all(&self) -> impl Iterator<Item = (&'static str, &GroupReport, usize)> {
        let on = self.on.as_ref().ok().map(|on| ("preemption on", on, 0));
        [
            ("nothing else", &self.alone, 2),
            ("preemption off", &self.off, 1),
        ]
        .into_iter()
        .chain(on)
        .filter_map(|(name, report, colour)| Some((name, report.groups.first()?, colour)))
    }
}

/// Pings sent, as far as they count.
fn sent(pings: &GroupReport) -> u64 {
    pings.requests + pings.unanswered
}

fn findings(runs: &Runs) -> Vec<Finding> {
    let mut findings = Vec::new();
    let [Some(alone), Some(off)] = [&runs.alone, &runs.off].map(|r| r.groups.first()) else {
        return findings;
    };
    findings.push(Finding::new(format!(
        "Without preemption {} of {} pings had no reply at the end{}.",
        grouped(off.unanswered as f64),
        grouped(sent(off) as f64),
        if off.requests == 0 {
            ": the vCPU hangs"
        } else {
            ""
        }
    )));
    match runs.on.as_ref().map(|on| on.groups.first()) {
        Ok(Some(on)) => {
            findings.push(Finding::new(format!(
                "With preemption {} of {} pings were answered.",
                grouped(on.requests as f64),
                grouped(sent(on) as f64)
            )));
            if on.requests > 0 {
                findings.push(Finding::new(format!(
                    "Their p99 is {}; with nothing else on the vCPU it is {} ({}).",
                    micros(on.p99),
                    micros(alone.p99),
                    factor(on.p99, alone.p99),
                )));
            }
        }
        Ok(None) => {}
        Err(why) => findings.push(why.clone()),
    }
    findings
}

fn answered_plot(runs: &Runs) -> Plot {
    let names = runs.all().map(|(name, ..)| name);
    let y = ("pings", Kind::Linear);
    let mut plot = Plot::bars("Pings sent and answered", "run", y, names);
    let mut bar = |name: &str, colour, of: fn(&GroupReport) -> u64| {
        let points = runs.all().enumerate();
        let points = points.map(|(i, (_, pings, _))| (i as f64, of(pings) as f64));
        plot.add(name, Look::Bar, colour, points);
    };
    bar("sent", COLOURS[3], sent);
    bar("answered", COLOURS[0], |pings| pings.requests);
    plot
}

fn latency_plot(runs: &Runs) -> Plot {
    let mut plot = Plot::latencies("Latency of the pings that were answered");
    for (name, pings, colour) in runs.all() {
        match pings.requests {
            0 => plot.add(
                format!("{name} (no replies)"),
                Look::Curve,
                COLOURS[colour],
                [],
            ),
            _ => preempted::add(&mut plot, name, pings, colour),
        }
    }
    plot
}

fn table(runs: &Runs) -> Table {
    let mut table = Table::new(
        "Pings of level 0, one each millisecond",
        &[
            "<run", "sent", "answered", "no reply", "p50", "?p90", "p99", "p99.9", "max",
        ],
    );
    for (name, pings, _) in runs.all() {
        let counts = [sent(pings), pings.requests, pings.unanswered];
        let counts = counts.map(|count| grouped(count as f64));
        let cells = std::iter::once(name.to_owned()).chain(counts);
        table.row(cells.chain(latencies(pings)));
    }
    table
}

fn commands(bench: &Bench) -> Vec<String> {
    let load = load(bench.quick, true);
    preempted::commands(bench, "127.0.0.1:7000@0", QUANTUM, &load)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::sample;

    fn hung() -> Report {
        let mut report = sample(&[[0.0; 3]]);
        report.groups[0].requests = 0;
        report.groups[0].unanswered = 1000;
        report
    }

    #[test]
    fn a_hang_is_shown_as_one() {
        let runs = Runs {
            alone: sample(&[[30.0, 50.0, 60.0]]),
            off: hung(),
            on: Ok(sample(&[[40.0, 90.0, 95.0]])),
        };
        let found = findings(&runs);
        assert!(found[0].text.contains("hangs") && found[0].text.contains("1,000 of 1,000"));
        assert!(found[1].text.contains("1,000 of 1,000 pings were answered"));
        let plot = latency_plot(&runs);
        assert!(plot.series[1].points.is_empty());
        assert!(plot.series[1].name.contains("no replies"));
        assert_eq!(table(&runs).rows[1][4], "–", "no latency is made up");
    }

    #[test]
    fn pings_that_stay_unanswered_with_preemption_are_said() {
        let runs = Runs {
            alone: sample(&[[30.0, 50.0, 60.0]]),
            off: hung(),
            on: Ok(hung()),
        };
        let last = findings(&runs).pop().expect("a finding").text;
        assert!(last.contains(" 0 of 1,000 pings were answered"), "{last}");
    }
}
