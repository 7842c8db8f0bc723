//! Interleaved rounds: every server once per round, the order rotated, disturbed runs repeated up to twice.

use std::time::Duration;

use crate::measure::{DISTURBED, Drive, Measured};
use crate::peers::{Program, Programs};
use crate::results::SectionResults;

/// Repeats of a disturbed run.
const REPEATS: usize = 2;

/// From this on, the client's own lateness in µs is named on the page.
const CLIENT_LAG_US: f64 = 1000.0;

/// One server under one load.
pub(crate) struct Entry<'a, D> {
    /// Its name in the table.
    pub(crate) name: String,
    /// Its program.
    pub(crate) program: &'a Program,
    /// Its load.
    pub(crate) load: D,
}

/// An entry for each program for which there is a load.
pub(crate) fn entries<'a, D>(
    programs: &'a Programs,
    load: impl Fn(&str) -> Option<D>,
) -> Vec<Entry<'a, D>> {
    let entry = |(name, program): &'a (String, Program)| {
        Some(Entry {
            name: name.clone(),
            program,
            load: load(name)?,
        })
    };
    programs.iter().filter_map(entry).collect()
}

/// Runs all entries `rounds` times; each gives the rows that its load names.
pub(crate) fn run<D: Drive>(
    section: &mut SectionResults,
    case: &str,
    entries: &[Entry<'_, D>],
    rounds: usize,
) {
    for round in 0..rounds {
        for i in 0..entries.len() {
            let entry = &entries[(i + round) % entries.len()];
            match undisturbed(section, case, entry, round) {
                Ok(measured) => {
                    for (row, run) in entry.load.rows(&entry.name, measured) {
                        section.record(case, &row, run);
                    }
                }
                Err(why) => {
                    let (name, round) = (&entry.name, round + 1);
                    section.note(format!("{case}, {name}, round {round}: {why}"));
                }
            }
        }
    }
}

fn undisturbed<D: Drive>(
    section: &mut SectionResults,
    case: &str,
    entry: &Entry<'_, D>,
    round: usize,
) -> Result<Measured, String> {
    for _ in 0..=REPEATS {
        let measured = entry.load.measure(entry.program, round)?;
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
        if all.send_lag > CLIENT_LAG_US {
            section.notes.push(format!(
                "{case}, {}: the client was late by {:.0} µs (99 %): it, not the server, was at its limit",
                entry.name, all.send_lag
            ));
        }
        if all.foreign < DISTURBED || entry.load.keep_disturbed() {
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
