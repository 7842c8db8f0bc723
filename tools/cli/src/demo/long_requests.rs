//! Experiment 4: a few long requests among many short ones, preemption off and on.
//!
//! One vCPU serves 20,000 requests per second; one in 200 burns a thousand times as much CPU as the others, all at the same
//! level. Without preemption a request that arrives during a long one waits for its end; with it, the long request is suspended
//! when it has had its quantum and another one waits. The same load without its long requests shows what is left to gain.
//! The client's process burns nothing and asks in open loop, so nothing is hidden.

use std::time::Duration;

use anyhow::Result;
use upshift_load::{Report, scenario};

use super::bench::{Bench, planned};
use super::preempted;
use super::timeline::{self, Load};
use upshift_report::number::{factor, grouped, micros};
use upshift_report::{Plot, Table};

use crate::demo::report::{Finding, Section};
use crate::load::latencies;

const TITLE: &str = "4. Long requests among short ones";
const QUANTUM: &str = "50us";
const WARMUP: Duration = Duration::from_millis(200);
/// The client's own lateness from which on it is mentioned, µs.
const CLIENT_LAG_US: f64 = 50.0;

fn time(quick: bool) -> Duration {
    Duration::from_millis(if quick { 700 } else { 2500 })
}

/// How long the experiment is planned to take.
pub(crate) fn plan(quick: bool) -> Duration {
    planned(WARMUP, time(quick)) * 3 + timeline::plan()
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
    let alone = measure(bench, "no long requests", "off", scenario::short_alone)?;
    let off = measure(bench, "preemption off", "off", scenario::long_among_short)?;
    let on =
        preempted::report(|| measure(bench, "preemption on", "on", scenario::long_among_short))?;
    // As the server is at its best here.
    let preempt = if on.is_ok() { "on" } else { "off" };
    let picture = timeline::picture(bench, preempt, QUANTUM, scenario::long_among_short)?;
    let runs = Runs { alone, off, on };
    let kept = if awake.is_some() {
        " A thread that runs only when nothing else wants to keeps the server's CPU from halting."
    } else {
        ""
    };
    let mut section = Section {
        title: TITLE.into(),
        intro: format!(
            "A server on one vCPU gets 20,000 requests per second on 32 connections, as from independent clients. A \
             request costs 0.5 µs of CPU, but one in 200 costs 500 µs; all have the same level, and the server does not \
             know beforehand which are long. Latency counts from the time a request was due. With preemption, a request that \
             has run for {} while others wait is suspended in the middle of its poll.{kept}",
            QUANTUM.replace("us", " µs")
        ),
        findings: findings(&runs),
        plots: vec![
            plot(&runs, 0, "Short requests"),
            plot(&runs, 1, "Long requests"),
        ],
        tables: vec![table(&runs)],
        commands: commands(bench),
        ..Section::default()
    };
    match picture {
        Ok(svg) => section.timelines.push(svg),
        Err(why) => section.findings.push(why),
    }
    section.plots.retain(|plot| !plot.series.is_empty());
    Ok(section)
}

fn measure(bench: &mut Bench, label: &str, preempt: &str, load: Load) -> Result<Report> {
    let time = time(bench.quick);
    let server = bench.spin_server(32, preempt, QUANTUM)?;
    let mut plan = load(time);
    plan.warmup = WARMUP;
    let report = bench.spin_load(label, &server, &plan, planned(WARMUP, time))?;
    server.stop(&bench.stop)?;
    Ok(report)
}

impl Runs {
    /// Name, report and colour, in the order of tables and legends.
    fn all(&self) -> impl Iterator<Item = (&'static str, &Report, usize)> {
        [
            ("no long requests", &self.alone, 2),
            ("preemption off", &self.off, 1),
        ]
        .into_iter()
        .chain(self.on.as_ref().ok().map(|on| ("preemption on", on, 0)))
    }
}

fn findings(runs: &Runs) -> Vec<Finding> {
    let mut findings = Vec::new();
    let [Some(alone), Some(off)] = [&runs.alone, &runs.off].map(|r| r.groups.first()) else {
        return findings;
    };
    match runs.on.as_ref().map(|on| on.groups.first()) {
        Ok(Some(on)) => {
            findings.push(Finding::new(format!(
                "With preemption the p99 of short requests is {}; without it {} ({}), without any long request {} ({}).",
                micros(on.p99),
                micros(off.p99),
                factor(on.p99, off.p99),
                micros(alone.p99),
                factor(on.p99, alone.p99),
            )));
            findings.push(Finding::new(format!(
                "The p99.9 of short requests is {} with and {} without preemption, their median {} and {}.",
                micros(on.p999),
                micros(off.p999),
                micros(on.p50),
                micros(off.p50),
            )));
            let long = |report: &Report| report.groups.get(1).map(|group| group.p50);
            if let (Some(with), Some(without)) =
                (runs.on.as_ref().ok().and_then(long), long(&runs.off))
            {
                findings.push(Finding::new(format!(
                    "The median of the long requests is {} with and {} without preemption.",
                    micros(with),
                    micros(without),
                )));
            }
        }
        Ok(None) => {}
        Err(why) => {
            findings.push(why.clone());
            findings.push(Finding::new(format!(
                "Without preemption the p99 of short requests is {}, {} of what it is without any long request ({}).",
                micros(off.p99),
                factor(off.p99, alone.p99),
                micros(alone.p99),
            )));
        }
    }
    let late = runs.all().map(|(_, report, _)| report.total.send_lag_p99);
    let late = late.fold(0.0, f64::max);
    if late > CLIENT_LAG_US {
        findings.push(Finding::new(format!(
            "The client itself was late by up to {} (p99): latencies of that order are its own.",
            micros(late)
        )));
    }
    findings
}

fn plot(runs: &Runs, class: usize, title: &str) -> Plot {
    let mut plot = Plot::latencies(format!("{title}: latency by percentile"));
    for (name, report, colour) in runs.all() {
        if let Some(group) = report.groups.get(class) {
            preempted::add(&mut plot, name, group, colour);
        }
    }
    plot
}

fn table(runs: &Runs) -> Table {
    let mut table = Table::new(
        "Latency by class",
        &[
            "<run",
            "<class",
            "served/s",
            "p50",
            "?p90",
            "p99",
            "p99.9",
            "?max",
            "?waiting",
            "CPU/request",
        ],
    );
    for (name, report, _) in runs.all() {
        for (i, group) in report.groups.iter().enumerate() {
            let (name, cpu) = match i {
                0 => (name.to_owned(), micros(report.server_cpu())),
                _ => (String::new(), String::new()),
            };
            let cells = [name, group.label.clone(), grouped(group.per_second)].into_iter();
            let cells = cells.chain(latencies(group));
            table.row(cells.chain([grouped(group.unanswered as f64), cpu]));
        }
    }
    table
}

fn commands(bench: &Bench) -> Vec<String> {
    let mut load = scenario::long_among_short(time(bench.quick));
    load.warmup = WARMUP;
    preempted::commands(bench, "127.0.0.1:7000", QUANTUM, &load)
}

#[cfg(test)]
mod tests {
    use crate::demo::sample;

    use super::*;

    #[test]
    fn both_sides_of_each_comparison_are_said() {
        let long = [500.0, 600.0, 700.0];
        let runs = Runs {
            alone: sample(&[[33.0, 80.0, 100.0]]),
            off: sample(&[[33.0, 450.0, 500.0], long]),
            on: Ok(sample(&[[36.0, 110.0, 200.0], [900.0, 950.0, 990.0]])),
        };
        let text: String = findings(&runs)
            .into_iter()
            .map(|found| found.text)
            .collect();
        for figure in ["110 µs", "450 µs", "200 µs", "36.0 µs", "900 µs"] {
            assert!(text.contains(figure), "{figure}: {text}");
        }
        assert_eq!(table(&runs).rows.len(), 5);
        assert_eq!(plot(&runs, 0, "t").series.len(), 3);
        assert_eq!(plot(&runs, 1, "t").series.len(), 2);
    }

    #[test]
    fn why_there_is_no_run_is_in_the_report() {
        let runs = Runs {
            alone: sample(&[[33.0, 80.0, 100.0]]),
            off: sample(&[[33.0, 450.0, 500.0]]),
            on: Err(Finding::failed("Failed: no ring.")),
        };
        let found = findings(&runs);
        assert!(found[0].text.contains("Failed") && found[0].text.contains("no ring"));
        assert!(found[0].failed && !found[1].failed);
        assert_eq!(plot(&runs, 0, "t").series.len(), 2);
    }
}
