//! The section `conserve`: the wait of a ready task beside a worker that computes while another one
//! idles.
//!
//! The programs print all samples of a kind. The samples of all rounds together give p50 (with the
//! smallest and the largest p50 of a round), p99 and the largest.

use serde::Deserialize;

use crate::figures;
use crate::options::Options;
use crate::peers::{Built, TWO_WORKERS};
use crate::results::{Figure, SectionResults};
use crate::table::{cross, names};
use crate::verdict::{Row, at_most, row};

/// Kinds that have a target.
const KINDS: [&str; 4] = ["spawn", "wake", "timer", "data"];
/// Upshift without preemption: the waiting coroutine is as urgent as the computing one, less
/// urgent, or more urgent.
const OURS: [&str; 3] = ["upshift", "upshift, less urgent", "upshift, more urgent"];

/// Peers: other runtimes, and threads bound to the idle CPU, which are the lower bound.
const OTHERS: [&str; 5] = ["tokio-mt", "go", "smol", "a thread", "a thread, epoll"];

/// Samples of one kind in one round, in ns.
#[derive(Debug, Deserialize)]
pub(crate) struct Samples {
    bench: String,
    peer: String,
    samples: Vec<u64>,
}

/// Runs all programs in turn, once per round.
pub(crate) fn run(results: &mut SectionResults, options: &Options, built: &Built) {
    let programs = built.of(TWO_WORKERS);
    let all = figures::in_rounds(results, options, &programs, "conserve", |it: &Samples| {
        let p50 = quantile(&it.samples, 0.5) / 1e3;
        eprintln!("  {:<29} {:<18} {p50:>9.1} µs", it.peer, it.bench);
    });
    results.figures = pooled(&all);
}

/// Returns the smallest sample that at least this fraction of the samples does not exceed; 0
/// without samples.
fn quantile(samples: &[u64], quantile: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    let rank = (quantile * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).map_or(0.0, |&ns| ns as f64)
}

/// Returns three figures for each kind and runtime, in the order of the first round.
pub(crate) fn pooled(all: &[Samples]) -> Vec<Figure> {
    let mut figures: Vec<Figure> = Vec::new();
    for first in all {
        let p50 = format!("{} p50", first.bench);
        if figures
            .iter()
            .any(|f| f.bench == p50 && f.peer == first.peer)
        {
            continue;
        }
        let rounds = all
            .iter()
            .filter(|s| s.bench == first.bench && s.peer == first.peer);
        let (mut samples, mut medians) = (Vec::new(), Vec::new());
        for round in rounds {
            samples.extend_from_slice(&round.samples);
            medians.push(quantile(&round.samples, 0.5));
        }
        let figure = |bench: String, ns: f64, (min, max): (f64, f64)| Figure {
            bench,
            peer: first.peer.clone(),
            ns,
            min,
            max,
        };
        let spread = (
            medians.iter().copied().fold(f64::INFINITY, f64::min),
            medians.iter().copied().fold(0.0, f64::max),
        );
        figures.push(figure(p50, quantile(&samples, 0.5), spread));
        for (words, rank) in [("p99", 0.99), ("max", 1.0)] {
            let ns = quantile(&samples, rank);
            figures.push(figure(format!("{} {words}", first.bench), ns, (ns, ns)));
        }
    }
    figures
}

/// Formats a table with a row per runtime and a column per kind.
pub(crate) fn table(found: &SectionResults) -> String {
    let [benches, peers] = names(found);
    let kinds = benches
        .iter()
        .filter_map(|bench| bench.strip_suffix(" p50"));
    let kinds: Vec<&str> = kinds.collect();
    let table = cross("runtime", &peers, &kinds, |peer, kind| {
        let of = |words: &str| found.figure(&format!("{kind} {words}"), peer);
        let us = |ns: f64| ns / 1e3;
        let (p50, p99, max) = (of("p50")?, of("p99")?, of("max")?);
        Some(format!(
            "{:.0} ({:.0}–{:.0}) / {:.0} / {:.0}",
            us(p50.ns),
            us(p50.min),
            us(p50.max),
            us(p99.ns),
            us(max.ns)
        ))
    });
    format!(
        "µs from spawn, wake, deadline or write until the other task runs, while a task on its worker computes for 20 ms and \
         the other worker idles: p50 (smallest–largest of the rounds) / p99 / largest. `a thread` is bound to the idle CPU: the floor.\n\n{table}"
    )
}

/// Returns the goals: the bound of conservation for each kind, at its worst level.
pub(crate) fn rows(section: &SectionResults) -> Vec<Row> {
    let goal = |kind: &str, words: &str, limit: f64| {
        let of = |peer: &str| Some(section.figure(&format!("{kind} {words}"), peer)?.ns / 1e3);
        let ours: Option<Vec<f64>> = OURS.iter().map(|peer| of(peer)).collect();
        let others = OTHERS.into_iter();
        let others = others.filter_map(|peer| Some(format!("{peer} {:.0}", of(peer)?)));
        let others: Vec<String> = others.collect();
        let found = ours.map(|us| {
            let text: Vec<String> = us.iter().map(|us| format!("{us:.0}")).collect();
            let worst = us.iter().copied().fold(0.0, f64::max);
            let text = format!("{} µs; {}", text.join(" · "), others.join(", "));
            (text, at_most(worst, limit))
        });
        row(
            format!("conserve, {kind}: {words} ≤ {limit} µs, equal, less and more urgent"),
            found,
        )
    };
    let both = |kind| [goal(kind, "p50", 200.0), goal(kind, "p99", 1000.0)];
    KINDS.into_iter().flat_map(both).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::Verdict;

    fn samples(peer: &str, samples: &[u64]) -> Samples {
        Samples {
            bench: "spawn".into(),
            peer: peer.into(),
            samples: samples.to_vec(),
        }
    }

    #[test]
    fn percentiles_are_those_of_all_rounds_together() {
        let section = SectionResults {
            figures: pooled(&[
                samples("go", &[9_000, 1_000, 2_000]),
                samples("go", &[3_000, 4_000, 5_000]),
            ]),
            ..SectionResults::default()
        };
        assert_eq!(section.figures.len(), 3);
        assert!(table(&section).contains("| go | 3 (2–4) / 9 / 9 |"));
    }

    #[test]
    fn the_worst_level_decides() {
        let late = samples(OURS[1], &[20_000_000]);
        let section = SectionResults {
            figures: pooled(&[
                samples(OURS[0], &[40_000]),
                late,
                samples(OURS[2], &[40_000]),
            ]),
            ..SectionResults::default()
        };
        let found = rows(&section);
        assert_eq!(found[0].verdict, Verdict::Missed);
        assert_eq!(found[2].verdict, Verdict::Unmeasured);
    }
}
