//! The section `micro`: each runtime's program runs once pinned to CPU 0 and once free.

use crate::figures::figures;
use crate::peers::{Built, UPSHIFT};
use crate::results::{Figure, SectionResults};
use crate::verdict::{Row, at_most, row};

/// Runs all that were built.
pub(super) fn run(results: &mut SectionResults, built: &Built) {
    for (micro, program) in built.micro() {
        for (part, cpu) in [("one-thread", Some(0)), ("two-threads", None)] {
            eprintln!("{} {part}", micro.id);
            if let Err(why) = figures(&program, part, cpu, &mut results.figures) {
                eprintln!("  {why}");
                results.notes.push(format!("{} {part}: {why}", micro.id));
            }
        }
    }
}

/// Name of the figure, words, limit, unit.
const MICRO: [(&str, &str, f64, &str); 9] = [
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

/// What the section was to reach.
pub(super) fn rows(section: &SectionResults, rows: &mut Vec<Row>) {
    for (bench, words, limit, unit) in MICRO {
        let of = |f: &&Figure| f.bench == bench;
        let ours = section
            .figures
            .iter()
            .filter(of)
            .find(|f| f.peer == UPSHIFT);
        let peers = section
            .figures
            .iter()
            .filter(of)
            .filter(|f| f.peer != UPSHIFT);
        let best = peers.min_by(|a, b| a.ns.total_cmp(&b.ns));
        rows.push(row(
            format!("{words}: ≤ {limit} {unit}"),
            ours.map(|us| {
                let peer = best.map_or(String::new(), |b| {
                    format!("; best peer {} {:.1}", b.peer, b.ns)
                });
                (format!("{:.1} {unit}{peer}", us.ns), at_most(us.ns, limit))
            }),
        ));
    }
}
