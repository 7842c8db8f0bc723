//! The section `multi`: spawning, giving way, waking and channels on two workers.

use crate::figures;
use crate::options::Options;
use crate::peers::{Built, UPSHIFT};
use crate::results::{Figure, SectionResults, medians};
use crate::section::Section;
use crate::verdict::{Row, at_most, row};

/// The workloads.
const BENCHES: [&str; 7] = [
    "spawn local",
    "spawn remote, idle",
    "spawn remote, busy",
    "yield",
    "ping-pong",
    "chained spawn",
    "mpsc, 10 senders",
];

/// Runs all programs in turn, once for each round.
pub(crate) fn run(results: &mut SectionResults, options: &Options, built: &Built) {
    let mut all: Vec<Figure> = Vec::new();
    for round in 0..options.rounds_of(Section::Multi) {
        for (name, program) in built.multi() {
            let name = format!("round {}: {name}", round + 1);
            eprintln!("{name}");
            let notes = &mut results.notes;
            let taken: Vec<Figure> = figures::undisturbed(&program, "multi", &name, options, notes);
            for figure in &taken {
                eprintln!("  {:<18} {:>10.1}", figure.bench, figure.ns);
            }
            all.extend(taken);
        }
    }
    results.figures = medians(&all);
}

/// What was to be reached: the shortest time in every row.
pub(crate) fn rows(section: &SectionResults, rows: &mut Vec<Row>) {
    for bench in BENCHES {
        let of = |f: &&Figure| f.bench == bench;
        let figures = || section.figures.iter().filter(of);
        let ours = figures().find(|f| f.peer == UPSHIFT);
        let best = figures()
            .filter(|f| f.peer != UPSHIFT)
            .min_by(|a, b| a.ns.total_cmp(&b.ns));
        rows.push(row(
            format!("two workers, {bench}: no runtime faster"),
            ours.zip(best).map(|(us, best)| {
                let text = format!("{:.0} ns; best peer {} {:.0}", us.ns, best.peer, best.ns);
                (text, at_most(us.ns, best.ns))
            }),
        ));
    }
}
