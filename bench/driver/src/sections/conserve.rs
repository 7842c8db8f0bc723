//! The section `conserve` (work conservation): measures how long a ready task waits while one of
//! two workers computes and the other is idle.
//!
//! The programs print the samples of each kind of wake-up ([`KINDS`]). p50 and p99 are medians over
//! the rounds. A round has 35 samples, so its p99 is the largest of them.

use serde::Deserialize;

use crate::figures;
use crate::goal::{Goal, Values, at_most};
use crate::options::Options;
use crate::peers::{BuiltPrograms, TWO_WORKERS};
use crate::results::{Figure, SectionResults};
use crate::table::{cross_table, quantities_and_runtimes};

/// Kinds of wake-up by which a task becomes ready.
const KINDS: [&str; 4] = ["spawn", "wake", "timer", "data"];
/// Names of Upshift in the results, without preemption. The waiting coroutine is as urgent as the
/// computing one, less urgent, or more urgent.
const UPSHIFT_PEERS: [&str; 3] = ["upshift", "upshift, less urgent", "upshift, more urgent"];

/// Samples of one kind in one round, in ns.
#[derive(Debug, Deserialize)]
pub(crate) struct Samples {
    bench: String,
    peer: String,
    samples: Vec<u64>,
}

pub(crate) fn run(results: &mut SectionResults, options: &Options, built: &BuiltPrograms) {
    for program in built.programs(TWO_WORKERS) {
        let all = figures::output::<Samples>(results, options, &program, "conserve", None);
        for figure in all.iter().flat_map(Samples::figures) {
            if figure.bench.ends_with("p50") {
                let us = figure.ns / 1e3;
                eprintln!("  {:<29} {:<22} {us:>9.1} µs", figure.peer, figure.bench);
            }
            results.add_figure(figure);
        }
    }
}

/// Returns the nearest-rank quantile of the samples: the smallest sample such that at least
/// `fraction` of all samples do not exceed it. Returns 0 without samples.
fn quantile(samples: &[u64], fraction: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    let rank = (fraction * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).map_or(0.0, |&ns| ns as f64)
}

impl Samples {
    /// Returns p50, p99 and the largest sample.
    pub(crate) fn figures(&self) -> [Figure; 3] {
        [("p50", 0.5), ("p99", 0.99), ("max", 1.0)].map(|(percentile, fraction)| {
            let ns = quantile(&self.samples, fraction);
            Figure {
                bench: format!("{} {percentile}", self.bench),
                peer: self.peer.clone(),
                ns,
                min: ns,
                max: ns,
                rounds: Vec::new(),
            }
        })
    }
}

/// Formats a table with a row per runtime and a column per kind.
pub(crate) fn table(section_results: &SectionResults) -> String {
    let [benches, peers] = quantities_and_runtimes(section_results);
    let kinds = benches
        .iter()
        .filter_map(|bench| bench.strip_suffix(" p50"));
    let kinds: Vec<&str> = kinds.collect();
    let table = cross_table("runtime", &peers, &kinds, |peer, kind| {
        let figure =
            |percentile: &str| section_results.figure(&format!("{kind} {percentile}"), peer);
        let us = |ns: f64| ns / 1e3;
        let (p50, p99, max) = (figure("p50")?, figure("p99")?, figure("max")?);
        Some(format!(
            "{:.0} ({:.0}–{:.0}) / {:.0} / {:.0}",
            us(p50.ns),
            us(p50.min),
            us(p50.max),
            us(p99.ns),
            us(max.max)
        ))
    });
    format!(
        "Time in µs from a spawn, wake, deadline or write until the task concerned runs, while another task computes on its worker for 20 ms and \
         the other worker idles: p50 (smallest–largest of the rounds) / p99 / largest. The row `a thread` is a plain thread that is bound to the idle CPU: the lower bound.\n\n{table}"
    )
}

/// Returns the goals: for each kind, limits on the wait at the level at which it is longest.
pub(crate) fn goals(section: &SectionResults) -> Vec<Goal> {
    let goal = |kind: &str, percentile: &str, limit: f64| {
        let goal = at_most(
            format!("{kind}: {percentile} ≤ {limit} µs at any level"),
            1.0,
            "µs",
        );
        UPSHIFT_PEERS.iter().fold(goal, |goal, peer| {
            let values = section.figure_values(&format!("{kind} {percentile}"), peer);
            let values = values.map(|values| values.map(|ns| ns / 1e3));
            goal.cell(*peer, values, Values::limit(limit))
        })
    };
    let both = |kind| [goal(kind, "p50", 200.0), goal(kind, "p99", 1000.0)];
    KINDS.into_iter().flat_map(both).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::goal::Verdict;

    fn section(rounds: &[(&str, &[u64])]) -> SectionResults {
        let mut section = SectionResults::default();
        for (peer, samples) in rounds {
            let samples = Samples {
                bench: "spawn".into(),
                peer: (*peer).into(),
                samples: samples.to_vec(),
            };
            samples
                .figures()
                .into_iter()
                .for_each(|it| section.add_figure(it));
        }
        section
    }

    #[test]
    fn percentiles_are_medians_over_the_rounds() {
        let section = section(&[
            ("go", &[9_000, 1_000, 2_000]),
            ("go", &[3_000, 4_000, 5_000]),
        ]);
        assert_eq!(section.figures.len(), 3);
        let table = table(&section);
        assert!(table.contains("| go | 3 (2–4) / 7 / 9 |"), "{table}");
    }

    #[test]
    fn the_worst_level_decides() {
        let section = section(&[
            (UPSHIFT_PEERS[0], &[40_000]),
            (UPSHIFT_PEERS[1], &[20_000_000]),
            (UPSHIFT_PEERS[2], &[40_000]),
        ]);
        let goals = goals(&section);
        assert_eq!(goals[0].verdict(), Verdict::Missed);
        assert_eq!(goals[2].verdict(), Verdict::Unmeasured);
    }
}
