//! Defines the goals of preemption: limits for single rows, and a limit for all rows together.

use super::cases::{CASES, Case};
use super::cell::{LONG, SHORT, row};
use super::{
    C_SERVER, PREEMPT_AS_ROOT, PREEMPT_OFF, PREEMPT_OFF_AGAIN, PREEMPT_ON, Quantile, is_root,
};
use crate::goal::{Goal, at_most};
use crate::results::{Run, SectionResults};

/// A figure for one class of requests, with the name of the figure.
type Figure = (&'static str, &'static str, Quantile);

const P50: Figure = ("p50", SHORT, Run::p50);
const P95: Figure = ("p95", SHORT, Run::p95);
const P99: Figure = ("p99", SHORT, Run::p99);
const CPU: Figure = ("CPU", SHORT, Run::cpu);
const LONG_P50: Figure = ("p50", LONG, Run::p50);

/// A limit: in each of `rows`, each of `figures` is at most `limit` times the figure of the server
/// `base`.
struct Target {
    rows: &'static [&'static str],
    label: &'static str,
    base: &'static str,
    figures: &'static [Figure],
    limit: f64,
    cause: &'static str,
}

/// Rows in which short requests wait behind long ones.
const BEHIND_LONG: &[&str] = &["long-70", "long-85", "long-90"];
/// Rows in which preemption has little to gain.
const NO_GAIN: &[&str] = &["micros", "exp-9", "exp-14", "plaintext", "serve"];

const TARGETS: [Target; 4] = [
    Target {
        rows: BEHIND_LONG,
        label: "short p50, p95, p99",
        base: C_SERVER,
        figures: &[P50, P95, P99],
        limit: 1.15,
        cause: "not known",
    },
    Target {
        rows: BEHIND_LONG,
        label: "long p50",
        base: C_SERVER,
        figures: &[LONG_P50],
        limit: 1.4,
        cause: "the long ones wait for the short ones on a CPU that is almost always busy",
    },
    Target {
        rows: BEHIND_LONG,
        label: "CPU per request",
        base: C_SERVER,
        figures: &[CPU],
        limit: 1.05,
        cause: "not known",
    },
    Target {
        rows: NO_GAIN,
        label: "p50, p99, CPU per request",
        base: PREEMPT_OFF,
        figures: &[P50, P99, CPU],
        limit: 1.05,
        cause: "not known",
    },
];

/// Ratio of two equal servers above which a row cannot show small differences.
const MAX_EQUAL_RATIO: f64 = 1.0 + crate::goal::NOISE;

/// Largest permitted p99 of short requests in any row, as a multiple of the p99 without preemption.
const MAX_HARM: f64 = 1.1;

pub(crate) fn goals(section: &SectionResults) -> Vec<Goal> {
    let values = |case: &Case, server: &str, (_, class, quantile): Figure| {
        section.values(case.title, &row(server, class), quantile)
    };
    let mut goals = Vec::new();
    for target in &TARGETS {
        let rows = CASES.iter().filter(|case| target.rows.contains(&case.name));
        for case in rows {
            let Target {
                label, base, limit, ..
            } = target;
            let goal = at_most(
                format!("{}: {label} ≤ {limit} × {base}", case.title),
                *limit,
                "µs",
            );
            let goal = target.figures.iter().fold(goal, |goal, &figure| {
                goal.cell(
                    figure.0,
                    values(case, PREEMPT_ON, figure),
                    values(case, base, figure),
                )
            });
            let mut goal = goal.margin().cause(target.cause);
            let equality = target.figures.iter().filter(|_| target.base == PREEMPT_OFF);
            let equality = equality.fold(at_most("", MAX_EQUAL_RATIO, ""), |equality, &figure| {
                let [first, second] =
                    [PREEMPT_OFF, PREEMPT_OFF_AGAIN].map(|server| values(case, server, figure));
                equality
                    .cell("", first.clone(), second.clone())
                    .cell("", second, first)
            });
            if let Some(excess) = equality.excess().filter(|excess| *excess > 1.0) {
                let ratio = excess * MAX_EQUAL_RATIO;
                let why = format!("two equal servers without preemption differ by {ratio:.2} ×");
                goal = goal.excuse(Some(&why));
                goal.discard_figures(why);
            }
            goals.push(goal);
        }
    }
    for server in [PREEMPT_ON, PREEMPT_AS_ROOT] {
        let title = format!("{server}, any row: short p99 ≤ {MAX_HARM} × {PREEMPT_OFF}");
        let goal = CASES
            .iter()
            .fold(at_most(title, MAX_HARM, "µs"), |goal, case| {
                let own = values(case, server, P99);
                goal.cell(case.name, own, values(case, PREEMPT_OFF, P99))
            });
        let excuse = (server == PREEMPT_AS_ROOT && !is_root()).then_some("needs root");
        goals.push(goal.margin().excuse(excuse));
    }
    goals
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::goal::Verdict;

    /// Returns latencies of 100 µs for all servers but [`PREEMPT_ON`], whose latency `latency_of`
    /// gives per case.
    fn measured(latency_of: impl Fn(&str) -> f64) -> SectionResults {
        let mut section = SectionResults::default();
        for case in &CASES {
            for (server, latency) in [
                (PREEMPT_OFF, 100.0),
                (C_SERVER, 100.0),
                (PREEMPT_ON, latency_of(case.name)),
            ] {
                for class in [SHORT, LONG] {
                    let run = Run {
                        p50: latency,
                        p95: latency,
                        p99: latency,
                        user: 1.0,
                        ..Run::default()
                    };
                    section.record(case.title, &row(server, class), run);
                }
            }
        }
        section
    }

    #[test]
    fn a_slow_row_misses_its_own_goal_and_the_goal_for_any_row() {
        let missed = |section: &SectionResults| -> Vec<String> {
            let goals = goals(section).into_iter();
            let missed = goals.filter(|goal| goal.verdict() == Verdict::Missed);
            missed.map(|goal| goal.title).collect()
        };
        assert!(missed(&measured(|_| 90.0)).is_empty());
        let bad = measured(|case| if case == "exp-14" { 120.0 } else { 90.0 });
        let missed = missed(&bad);
        assert_eq!(missed.len(), 2, "{missed:?}");
        assert!(missed[0].starts_with("exponential 50 µs, 14 k/s"));
        assert!(missed[1].starts_with("on, any row"));
    }

    #[test]
    fn a_row_in_which_equal_servers_differ_is_unmeasured() {
        let mut section = measured(|_| 90.0);
        let title = CASES
            .iter()
            .find(|case| case.name == "exp-9")
            .map_or("", |case| case.title);
        let again = |p99| Run {
            p50: 100.0,
            p99,
            user: 1.0,
            ..Run::default()
        };
        let verdict = |section: &SectionResults| {
            let all = goals(section).into_iter();
            let mut goals_of_row = all.filter(|goal| goal.title.starts_with(title));
            goals_of_row.next().map(|goal| goal.verdict())
        };
        section.record(title, &row(PREEMPT_OFF_AGAIN, SHORT), again(101.0));
        assert_eq!(verdict(&section), Some(Verdict::Reached));
        section.cells.pop();
        section.record(title, &row(PREEMPT_OFF_AGAIN, SHORT), again(80.0));
        assert_eq!(verdict(&section), Some(Verdict::Unmeasured));
    }

    #[test]
    fn a_server_that_was_not_measured_leaves_no_verdict() {
        let mut section = measured(|_| 90.0);
        section.cells.retain(|cell| !cell.peer.starts_with("c:"));
        let goals = goals(&section);
        let unmeasured = goals
            .iter()
            .filter(|goal| goal.verdict() == Verdict::Unmeasured);
        // Nine goals compare with C, and one is about the server that runs as root.
        assert_eq!((goals.len(), unmeasured.count()), (16, 10));
    }
}
