//! Part 1: eight priority levels at overload.
//!
//! Eight addresses with levels 0, 8, …, 56 get equal shares of 130 % of the server's capacity, in
//! open loop (requests leave at fixed times, whether or not earlier ones were answered). With
//! strict priorities the overload must not affect the most urgent level. Its latency is compared
//! with its latency without the other levels, and with the latency of the same load at one level.

use anyhow::Result;
use upshift_load::scenario::{LEVELS, ONE_LEVEL, OVERLOAD, OVERLOAD_SIZE};
use upshift_load::{Group, GroupReport, Pace, Plan, Report, Work};

use super::part::{Line, Part, Row};
use super::stage::{Server, Stage};
use upshift_report::number::integer;

const CONNECTIONS: usize = 8;
/// Requests per second for each level while the capacity is measured, more than any server takes.
const FLOOD_RATE: f64 = 50_000.0;

/// Reports of the measurements that are compared.
struct Runs {
    /// Requests per second for each level.
    offered: f64,
    alone: Report,
    levels: Report,
    one_level: Report,
}

pub(super) fn run(stage: &mut Stage) -> Result<Part> {
    let mixed = stage.server("matrix-server", &LEVELS, &[])?;
    let single = stage.server("matrix-server", &ONE_LEVEL, &[])?;
    let measure = |name: &str, server: &Server, groups: usize, pace: Pace, millis: u64| {
        let targets = server.addresses.iter().zip(LEVELS).take(groups);
        let groups =
            targets.map(|(&addr, level)| Group::new(addr, CONNECTIONS, format!("level {level}")));
        let work = Work::Matrix { n: OVERLOAD_SIZE };
        let mut plan = Plan::new(groups.collect(), work, stage.time(millis));
        (plan.pace, plan.warmup) = (pace, stage.time(500));
        stage.measure(name, server, plan)
    };
    let mut capacity = 0.0;
    // Both paces are measured, and the larger result counts. Queued requests on a connection are
    // cheaper than requests of a closed loop, but a flooding client that shares the server's CPU
    // keeps the server from its work.
    let flood = Pace::OpenRate {
        per_second: FLOOD_RATE,
    };
    for (name, pace) in [
        ("capacity, offered too much", flood),
        ("capacity, closed loop", Pace::Closed),
    ] {
        let full = measure(name, &single, 8, pace, 1000)?;
        capacity = full.total.per_second.max(capacity);
    }
    let offered = (OVERLOAD * capacity / LEVELS.len() as f64).max(1.0).round();
    let pace = Pace::OpenRate {
        per_second: offered,
    };
    let runs = Runs {
        offered,
        alone: measure("level 0 alone", &mixed, 1, pace, 2500)?,
        levels: measure("eight levels", &mixed, 8, pace, 4000)?,
        one_level: measure("all at one level", &single, 8, pace, 4000)?,
    };
    mixed.stop(stage)?;
    single.stop(stage)?;
    Ok(part(&runs))
}

fn part(runs: &Runs) -> Part {
    let total = runs.offered * LEVELS.len() as f64;
    let mut lines = Vec::new();
    let mut rows = Vec::new();
    if let (Some(top), Some(alone)) = (runs.levels.groups.first(), runs.alone.groups.first()) {
        let load = format!("at {:.0} % load", 100.0 * OVERLOAD);
        let one = &runs.one_level.total;
        for (percentile, figure) in [
            ("p50", p50 as fn(&GroupReport) -> f64),
            ("p99", GroupReport::p99_with_unanswered),
        ] {
            let title = format!("level 0, {percentile}");
            lines.push(Line::compare(
                &title,
                (top, &load),
                (alone, "alone"),
                figure,
            ));
            let one_queue = (one, "with all in one queue");
            lines.push(Line::compare(&title, (top, &load), one_queue, figure));
        }
        rows.push(Row::new("level 0 alone", alone, 8));
        for (i, (group, level)) in runs.levels.groups.iter().zip(LEVELS).enumerate() {
            rows.push(Row::new(format!("level {level}"), group, i));
        }
        rows.push(Row {
            colour: None,
            ..Row::new("eight levels together", &runs.levels.total, 0)
        });
        rows.push(Row::new("all at one level", one, 9));
    }
    // All of the load was served, with a margin of 3 %.
    if runs.levels.total.per_second > 0.97 * total {
        lines.push(Line::note(
            "All of the offered load was served: there was no overload, so levels mattered little.",
        ));
    }
    Part {
        title: format!("1. Eight levels at {:.0} % load", 100.0 * OVERLOAD),
        intro: format!(
            "One server listens on eight addresses with the levels 0 (most urgent), 8, …, 56 and squares matrices of order \
             {OVERLOAD_SIZE}. Each level is offered {} requests per second on {CONNECTIONS} connections, together {:.0} % of \
             what the server can serve. `waiting` counts the requests without a reply at the end; where more than 1 % wait, \
             the age of the oldest is given as the p99.",
            integer(runs.offered),
            100.0 * OVERLOAD,
        ),
        lines,
        rows,
        palette: 'p',
    }
}

fn p50(group: &GroupReport) -> f64 {
    group.p50
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::part::Verdict;
    use crate::demo::sample;

    #[test]
    fn the_urgent_level_is_compared_with_itself_alone_and_with_one_queue() {
        let report = |tails: [f64; 8]| sample(&tails.map(|tail| [tail; 3]));
        let mut runs = Runs {
            offered: 130.0,
            alone: report([100.0; 8]),
            levels: report([150., 2., 3., 4., 5., 6., 7., 8.]),
            one_level: report([9000.0; 8]),
        };
        let verdicts = |runs: &Runs| -> Vec<Verdict> {
            part(runs).lines.iter().map(|line| line.verdict).collect()
        };
        use Verdict::{Better, Worse};
        assert_eq!(verdicts(&runs), [Worse, Better, Worse, Better]);
        // Level 0 alone, the eight levels, their total, and all at one level.
        assert_eq!(part(&runs).rows.len(), 11);
        runs.offered = 100.0;
        assert!(part(&runs).lines[4].text.contains("no overload"));
    }
}
