//! The goals of preemption, each judged for each of its rows.

use super::cases::CASES;
use super::cell::{LONG, SHORT, row};
use super::{C, OFF, ON, Quantile, ROOT};
use crate::results::{Run, SectionResults};
use crate::verdict::{Row, row as verdict, within};

/// A limit on the ratio of figures of a class to those of another server, in some rows.
struct Goal {
    rows: &'static [&'static str],
    words: &'static str,
    base: &'static str,
    figures: &'static [(&'static str, Quantile)],
    limit: f64,
}

/// Rows in which short requests wait behind long ones.
const BEHIND_LONG: &[&str] = &["long-70", "long-85", "long-90"];
/// Rows in which preemption has little to gain.
const HARMLESS: &[&str] = &["micros", "exp-9", "exp-14", "plaintext", "serve"];

const GOALS: [Goal; 4] = [
    Goal {
        rows: BEHIND_LONG,
        words: "short p50, p95, p99",
        base: C,
        figures: &[(SHORT, Run::p50), (SHORT, Run::p95), (SHORT, Run::p99)],
        limit: 1.15,
    },
    Goal {
        rows: BEHIND_LONG,
        words: "long p50",
        base: C,
        figures: &[(LONG, Run::p50)],
        limit: 1.4,
    },
    Goal {
        rows: BEHIND_LONG,
        words: "CPU per request",
        base: C,
        figures: &[(SHORT, Run::cpu)],
        limit: 1.05,
    },
    Goal {
        rows: HARMLESS,
        words: "p50, p99, CPU per request",
        base: OFF,
        figures: &[(SHORT, Run::p50), (SHORT, Run::p99), (SHORT, Run::cpu)],
        limit: 1.05,
    },
];

/// Limit, in every row, of the p99 of short requests as a multiple of that without preemption.
const HARM: f64 = 1.1;

/// Returns all goals of the section.
pub(crate) fn rows(section: &SectionResults) -> Vec<Row> {
    let mut rows = Vec::new();
    for goal in &GOALS {
        let cases = CASES.iter().filter(|case| goal.rows.contains(&case.name));
        for case in cases {
            let Goal {
                words, base, limit, ..
            } = goal;
            let target = format!("preemption, {}: {words} ≤ {limit} × {base}", case.title);
            rows.push(verdict(target, goal.measured(section, case.title)));
        }
    }
    rows.extend([ON, ROOT].map(|server| harm(section, server)));
    rows
}

impl Goal {
    fn measured(
        &self,
        section: &SectionResults,
        case: &str,
    ) -> Option<(String, crate::verdict::Verdict)> {
        let ratio = |&(class, quantile): &(&str, Quantile)| {
            let ratio = section.ratio(case, &row(ON, class), &row(self.base, class), quantile)?;
            Some(ratio.median)
        };
        let ratios: Vec<f64> = self.figures.iter().map(ratio).collect::<Option<_>>()?;
        let texts: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.2}")).collect();
        let is_kept = ratios.iter().all(|&ratio| ratio <= self.limit);
        Some((format!("{} ×", texts.join(", ")), within(is_kept)))
    }
}

/// Judges the measured rows and names the worst.
fn harm(section: &SectionResults, server: &str) -> Row {
    let ratio = |title: &'static str| {
        let ratio = section.ratio(title, &row(server, SHORT), &row(OFF, SHORT), Run::p99)?;
        Some((ratio.median, title))
    };
    let ratios: Vec<_> = CASES.iter().filter_map(|case| ratio(case.title)).collect();
    let worst = ratios.iter().max_by(|a, b| a.0.total_cmp(&b.0));
    let good = ratios.iter().filter(|(ratio, _)| *ratio <= HARM).count();
    let found = worst.map(|(ratio, title)| {
        let text = format!("worst {ratio:.2} ×, {title}; {good} of {}", ratios.len());
        (text, within(*ratio <= HARM))
    });
    let target = format!("preemption, {server}, any row: short p99 ≤ {HARM} × {OFF}");
    verdict(target, found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::Verdict;

    /// Returns latencies of 100 µs, except for the server that is on: `of` gives its latency.
    fn measured(of: impl Fn(&str) -> f64) -> SectionResults {
        let mut section = SectionResults::default();
        for case in &CASES {
            for (server, latency) in [(OFF, 100.0), (C, 100.0), (ON, of(case.name))] {
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
    fn a_row_that_is_worse_misses_its_goal_and_that_of_any_row() {
        let verdicts = |section: &SectionResults| -> Vec<(bool, String)> {
            let rows = rows(section).into_iter();
            let missed = |row: Row| (row.verdict == Verdict::Missed, row.measured);
            rows.map(missed).collect()
        };
        assert!(
            verdicts(&measured(|_| 90.0))
                .iter()
                .all(|(missed, _)| !missed)
        );
        let bad = measured(|case| if case == "exp-14" { 120.0 } else { 90.0 });
        let missed: Vec<String> = verdicts(&bad)
            .into_iter()
            .filter_map(|(missed, text)| missed.then_some(text))
            .collect();
        assert_eq!(missed.len(), 2, "{missed:?}");
        assert_eq!(missed[0], "1.20, 1.20, 1.00 ×");
        assert!(missed[1].contains("exponential 50 µs, 14 k/s; 14 of 15"));
    }

    #[test]
    fn a_server_that_was_not_measured_leaves_no_verdict() {
        let mut section = measured(|_| 90.0);
        section.cells.retain(|cell| !cell.peer.starts_with("c:"));
        let rows = rows(&section);
        let unmeasured = rows.iter().filter(|r| r.verdict == Verdict::Unmeasured);
        // Nine goals need C, and one is the row of root.
        assert_eq!((rows.len(), unmeasured.count()), (16, 10));
    }
}
