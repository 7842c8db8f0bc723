//! The sections `micro` and `multi`: each runtime's program, pinned to CPU 0 and free; and
//! spawning, yielding, waking and channels on two workers.

use crate::figures;
use crate::options::Options;
use crate::peers::{Built, MICRO, NOT_MULTI, TWO_WORKERS, UPSHIFT};
use crate::results::{Figure, SectionResults, medians};
use crate::table::{cross, names};
use crate::verdict::{Row, at_most, row};

/// Runs all built programs.
pub(super) fn run(results: &mut SectionResults, built: &Built) {
    for (name, program) in built.of(MICRO) {
        for (part, cpu) in [("one-thread", Some(0)), ("two-threads", None)] {
            eprintln!("{name} {part}");
            if let Err(why) = figures::figures(&program, part, cpu, &mut results.figures) {
                results.note(format!("{name} {part}: {why}"));
            }
        }
    }
}

/// Runs all programs in turn, once per round.
pub(super) fn run_multi(results: &mut SectionResults, options: &Options, built: &Built) {
    let mut programs = built.of(TWO_WORKERS);
    programs.retain(|(id, _)| !NOT_MULTI.contains(&id.as_str()));
    let all = figures::in_rounds(results, options, &programs, "multi", |figure: &Figure| {
        eprintln!("  {:<18} {:>10.1}", figure.bench, figure.ns);
    });
    results.figures = medians(&all);
}

/// Formats the table of figures: a row for each runtime, a column for each quantity.
pub(super) fn table(found: &SectionResults) -> String {
    let [benches, peers] = names(found);
    let table = cross("runtime", &peers, &benches, |peer, bench| {
        let Figure { ns, min, max, .. } = found.figure(bench, peer)?;
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
    let peers = figures.filter(|f| f.bench == bench && f.peer != UPSHIFT);
    peers.min_by(|a, b| a.ns.total_cmp(&b.ns))
}

/// Returns the goals of `micro`.
pub(super) fn rows(section: &SectionResults) -> Vec<Row> {
    let goal = |(bench, words, limit, unit): (&str, &str, f64, &str)| {
        let best = best_peer(section, bench);
        let best = best.map(|it| format!("; best peer {} {:.1}", it.peer, it.ns));
        let found = section.figure(bench, UPSHIFT).map(|us| {
            let text = format!("{:.1} {unit}{}", us.ns, best.unwrap_or_default());
            (text, at_most(us.ns, limit))
        });
        row(format!("{words}: ≤ {limit} {unit}"), found)
    };
    LIMITS.map(goal).into()
}

/// Returns the goals of `multi`: the shortest time in every row.
pub(super) fn multi_rows(section: &SectionResults) -> Vec<Row> {
    let goal = |bench| {
        let both = section
            .figure(bench, UPSHIFT)
            .zip(best_peer(section, bench));
        let found = both.map(|(us, best)| {
            let text = format!("{:.0} ns; best peer {} {:.0}", us.ns, best.peer, best.ns);
            (text, at_most(us.ns, best.ns))
        });
        row(format!("two workers, {bench}: no runtime faster"), found)
    };
    BENCHES.map(goal).into()
}
