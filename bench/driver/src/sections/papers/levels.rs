//! Measures 128 connections at eight levels, on one CPU and on two. The published load is one that
//! a current CPU answers without a queue. With larger matrices, the same connections need 1.3 CPUs.

use std::time::Duration;

use upshift_load::scenario::{LEVELS, OVERLOAD};
use upshift_report::Table;

use super::load::{Load, TOTAL, level_row};
use crate::goal::{Goal, at_most};
use crate::options::Options;
use crate::peers::{BuiltPrograms, Program};
use crate::results::{Run, SectionResults};
use crate::rounds::{self, Entry};
use crate::table::format_value;

pub(super) const NAME: &str = "levels";

/// Number of connections at each level.
const CONNECTIONS_PER_LEVEL: usize = 16;
/// Order of the matrices, and time between the requests of a connection, as published.
const PUBLISHED: (usize, Duration) = (20, Duration::from_millis(50));
/// Order of the large matrices. Their period follows from the capacity of a CPU.
const LARGE: usize = 96;
/// Case in which the capacity of a CPU is measured.
const CAPACITY: &str = "eight levels, n = 96, closed loop on 1 CPU";

pub(super) const LIGHT: &str = "n = 20, every 50 ms";
pub(super) const HEAVY: &str = "n = 96, 130 % of a CPU";

pub(super) fn case(load: &str, cpus: usize) -> String {
    let s = if cpus == 1 { "" } else { "s" };
    format!("eight levels, {load}, {cpus} CPU{s}")
}

pub(super) fn run(results: &mut SectionResults, options: &Options, built: &BuiltPrograms) {
    let program = |cpus: usize| {
        let pin = ["0", "0,1"][cpus - 1];
        let vcpus = cpus.to_string();
        built.upshift(&["matrix-server", "--vcpus", &vcpus, "--pin", pin])
    };
    let (Some(on_one_cpu), Some(on_two_cpus)) = (program(1), program(2)) else {
        return;
    };
    results.note_command("levels, 1 CPU", &on_one_cpu);
    results.note_command("levels, 2 CPUs", &on_two_cpus);
    let (n, period) = PUBLISHED;
    let mut load = Load::new(n, CONNECTIONS_PER_LEVEL, period, options);
    load.levels = &LEVELS;
    let measure = |results: &mut SectionResults, case: &str, program: &Program, load: &Load| {
        let entry = Entry {
            name: TOTAL.to_owned(),
            program,
            load: load.clone(),
        };
        rounds::run(results, case, &[entry], options);
    };
    let closed = Load {
        n: LARGE,
        period: None,
        ..load.clone()
    };
    measure(results, CAPACITY, &on_one_cpu, &closed);
    let capacity = results.median(CAPACITY, TOTAL, |run| run.per_second);
    let heavy = capacity.filter(|capacity| *capacity > 0.0).map(|capacity| {
        let connections = (CONNECTIONS_PER_LEVEL * LEVELS.len()) as f64;
        Load {
            n: LARGE,
            period: Some(Duration::from_secs_f64(connections / (OVERLOAD * capacity))),
            ..load.clone()
        }
    });
    for (name, load) in [(LIGHT, Some(&load)), (HEAVY, heavy.as_ref())] {
        let Some(load) = load else { continue };
        for (cpus, program) in [(1, &on_one_cpu), (2, &on_two_cpus)] {
            let load = Load {
                cpus,
                ..load.clone()
            };
            measure(results, &case(name, cpus), program, &load);
        }
    }
}

pub(super) fn tables(section: &SectionResults) -> String {
    [LIGHT, HEAVY]
        .into_iter()
        .map(|load| table(section, load))
        .collect()
}

fn table(section: &SectionResults, load: &str) -> String {
    let title = format!(
        "### Eight levels, 128 connections, {load}\n\nAnswers per second; latency in µs: mean, 50 %, 99 %, standard deviation. \
         Of two CPUs the client takes what it needs."
    );
    let heads = [
        "<",
        "1 CPU: /s",
        "mean",
        "p50",
        "p99",
        "jitter",
        "2 CPUs: /s",
        "mean",
        "p50",
        "p99",
        "jitter",
    ];
    let figures: [fn(&Run) -> f64; 5] = [
        |run| run.per_second,
        |run| run.mean,
        Run::p50,
        Run::p99,
        |run| run.jitter,
    ];
    let mut table = Table::new(title, &heads);
    for name in LEVELS.map(level_row).into_iter().chain([TOTAL.to_owned()]) {
        let cells_with = |cpus| {
            let cell = section.cell(&case(load, cpus), &name);
            let median = |figure| cell.and_then(|cell| cell.median(figure));
            // Without answers there is no latency.
            let is_answered = median(figures[0]) != Some(0.0);
            let shown = figures.iter().enumerate();
            shown
                .map(|(i, figure)| {
                    format_value(median(*figure).filter(|_| i == 0 || is_answered), 0)
                })
                .collect::<Vec<_>>()
        };
        let cells = [cells_with(1), cells_with(2)].concat();
        if cells.iter().any(|cell| cell != "–") {
            table.row(std::iter::once(name).chain(cells));
        }
    }
    if table.rows.is_empty() {
        return String::new();
    }
    table.markdown()
}

/// Returns the goal: a second CPU does not slow down the most urgent level.
pub(super) fn goals(section: &SectionResults) -> Vec<Goal> {
    let goal = |load| {
        let mean = |cpus| section.values(&case(load, cpus), &level_row(LEVELS[0]), |run| run.mean);
        let title = format!("eight levels, {load}: mean of level 0 with 2 CPUs ≤ with 1");
        at_most(title, 1.0, "µs").cell("", mean(2), mean(1))
    };
    [LIGHT, HEAVY].map(goal).into()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::goal::Verdict;

    /// Returns latencies that grow with the level, at both loads, and that are `factor_of_two_cpus`
    /// times as large with two CPUs.
    pub(in crate::sections::papers) fn measured(factor_of_two_cpus: f64) -> SectionResults {
        let mut section = SectionResults::default();
        for load in [LIGHT, HEAVY] {
            for (cpus, factor) in [(1, 1.0), (2, factor_of_two_cpus)] {
                for level in LEVELS {
                    let mean = (100.0 + f64::from(level)) * factor;
                    let run = Run {
                        per_second: 320.0 / mean,
                        mean,
                        p50: mean,
                        p99: mean,
                        ..Run::default()
                    };
                    section.record(&case(load, cpus), &level_row(level), run);
                }
            }
        }
        section
    }

    #[test]
    fn levels_are_compared_by_number_of_cpus() {
        let section = measured(0.5);
        assert!(
            goals(&section)
                .iter()
                .all(|goal| goal.verdict() == Verdict::Reached)
        );
        assert!(tables(&section).contains("| level 56 |"));
        assert!(!tables(&section).contains(TOTAL));
        assert!(
            goals(&measured(1.2))
                .iter()
                .all(|goal| goal.verdict() == Verdict::Missed)
        );
    }
}
