//! The sections `micro` and `multi`. `micro` runs the microbenchmarks of each runtime, pinned to
//! CPU 0 and unpinned. `multi` measures spawning, yielding, waking and channels on two workers.

use crate::figures;
use crate::goal::{Goal, Values, at_most};
use crate::options::Options;
use crate::peers::{BuiltPrograms, CONSERVE_ONLY, MICRO, TWO_WORKERS, UPSHIFT};
use crate::results::{Figure, SectionResults};
use crate::table::{cross_table, quantities_and_runtimes};

pub(super) fn run(results: &mut SectionResults, options: &Options, built: &BuiltPrograms) {
    for program in built.programs(MICRO) {
        for (part, cpu) in [("one-thread", Some(0)), ("two-threads", None)] {
            figures::measure(results, options, &program, part, cpu);
        }
    }
}

pub(super) fn run_multi(results: &mut SectionResults, options: &Options, built: &BuiltPrograms) {
    let mut programs = built.programs(TWO_WORKERS);
    programs.retain(|(id, _)| !CONSERVE_ONLY.contains(&id.as_str()));
    for program in &programs {
        figures::measure(results, options, program, "multi", None);
    }
}

/// Formats the table of figures: a row for each runtime, a column for each quantity.
pub(super) fn table(section_results: &SectionResults) -> String {
    let [benches, peers] = quantities_and_runtimes(section_results);
    let table = cross_table("runtime", &peers, &benches, |peer, bench| {
        let Figure { ns, min, max, .. } = section_results.figure(bench, peer)?;
        Some(format!("{ns:.1} ({min:.1}–{max:.1})"))
    });
    format!("ns per operation; `bytes-per-task` in bytes.\n\n{table}")
}

/// Limits of figures: name, description, limit, unit.
const LIMITS: [(&str, &str, f64, &str); 9] = [
    ("yield-2", "yield between two coroutines", 30.0, "ns"),
    ("spawn-join", "spawn + join, one", 75.0, "ns"),
    ("spawn-join-1000", "spawn + join, batch of 1000", 75.0, "ns"),
    ("timer", "timer create + cancel", 100.0, "ns"),
    (
        "channel-hop",
        "channel wake on the same vCPU, per hop",
        150.0,
        "ns",
    ),
    (
        "cross-wake",
        "wake of a vCPU on another CPU, per hop",
        2000.0,
        "ns",
    ),
    (
        "bytes-per-task",
        "memory, 1 M idle coroutines of 24 bytes",
        120.0,
        "B",
    ),
    ("reprio", "reprio of a queued coroutine", 40.0, "ns"),
    ("need-preempt", "need_preempt", 2.0, "ns"),
];

/// The workloads of `multi`.
const BENCHES: [&str; 7] = [
    "spawn local",
    "spawn remote, idle",
    "spawn remote, busy",
    "yield",
    "ping-pong",
    "chained spawn",
    "mpsc, 10 senders",
];

fn best_peer<'a>(section: &'a SectionResults, bench: &str) -> Option<&'a Figure> {
    let figures = section.figures.iter();
    let peers = figures.filter(|f| f.bench == bench && !f.peer.starts_with(UPSHIFT));
    peers.min_by(|a, b| a.ns.total_cmp(&b.ns))
}

pub(super) fn goals(section: &SectionResults) -> Vec<Goal> {
    let goal = |(bench, description, limit, unit): (&str, &str, f64, &'static str)| {
        at_most(format!("{description}: ≤ {limit} {unit}"), 1.0, unit).cell(
            "",
            section.figure_values(bench, UPSHIFT),
            Values::limit(limit),
        )
    };
    LIMITS.map(goal).into()
}

/// Returns the goals of `multi`: in every workload at most the time of the best peer.
pub(super) fn multi_goals(section: &SectionResults) -> Vec<Goal> {
    let goal = |bench| {
        let best = best_peer(section, bench).map(|figure| figure.peer.as_str());
        at_most(format!("two workers, {bench}: ≤ best runtime"), 1.0, "ns").cell(
            "",
            section.figure_values(bench, UPSHIFT),
            best.and_then(|peer| section.figure_values(bench, peer)),
        )
    };
    BENCHES.map(goal).into()
}
