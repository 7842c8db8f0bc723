//! Interleaved rounds: every server once per round, the order rotated, disturbed runs repeated up to twice.

use std::time::Duration;

use crate::measure::{DISTURBED, Load, Measured, measure};
use crate::peers::Program;
use crate::results::{Cell, SectionResults};

/// Repeats of a disturbed run.
const REPEATS: usize = 2;

/// From this on, the client's own lateness in µs is named on the page.
const LATE: f64 = 1000.0;

/// One server under one load.
pub(crate) struct Entry<'a> {
    /// Its name in the table.
    pub(crate) name: String,
    /// Its program.
    pub(crate) program: &'a Program,
    /// Its load.
    pub(crate) load: Load,
}

/// Runs all entries `rounds` times; each gives a cell (or one per address, named by `per_address`).
pub(crate) fn run(
    section: &mut SectionResults,
    case: &str,
    entries: &[Entry<'_>],
    rounds: usize,
    per_address: Option<fn(usize) -> String>,
) {
    for round in 0..rounds {
        for i in 0..entries.len() {
            let entry = &entries[(i + round) % entries.len()];
            match undisturbed(section, case, entry) {
                Ok(measured) => {
                    record(section, case, &entry.name, measured.all);
                    if let Some(name) = per_address {
                        for (i, run) in measured.groups.into_iter().enumerate() {
                            record(section, case, &name(i), run);
                        }
                    }
                }
                Err(why) => {
                    let note = format!("{case}, {}, round {}: {why}", entry.name, round + 1);
                    eprintln!("  {note}");
                    section.notes.push(note);
                }
            }
        }
    }
}

fn undisturbed(
    section: &mut SectionResults,
    case: &str,
    entry: &Entry<'_>,
) -> Result<Measured, String> {
    for _ in 0..=REPEATS {
        let measured = measure(entry.program, &entry.load)?;
        let all = &measured.all;
        eprintln!(
            "{case:>24} {:<16} {:>9.0}/s  p50 {:>7.0} p99 {:>8.0} µs  {:>6.2} µs/req  others {:>3.0} %",
            entry.name,
            all.per_second,
            all.p50,
            all.p99,
            all.cpu(),
            100.0 * all.foreign
        );
        if let Some(error) = &all.first_error {
            return Err(format!("{} errors, the first: {error}", all.errors));
        }
        if all.send_lag > LATE {
            section.notes.push(format!(
                "{case}, {}: the client was late by {:.0} µs (99 %): it, not the server, was at its limit",
                entry.name, all.send_lag
            ));
        }
        if all.foreign < DISTURBED || entry.load.keep_disturbed {
            return Ok(measured);
        }
        section.notes.push(format!(
            "{case}, {}: a run was dropped, others used {:.0} % of a CPU",
            entry.name,
            100.0 * all.foreign
        ));
        std::thread::sleep(Duration::from_millis(500));
    }
    Err("no figure: every repeat was disturbed".into())
}

fn record(section: &mut SectionResults, case: &str, peer: &str, run: crate::results::Run) {
    let known = section.cells.iter_mut();
    match known.into_iter().find(|c| c.case == case && c.peer == peer) {
        Some(cell) => cell.runs.push(run),
        None => section.cells.push(Cell {
            case: case.to_owned(),
            peer: peer.to_owned(),
            runs: vec![run],
        }),
    }
}
