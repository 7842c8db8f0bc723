//! Interleaved rounds: every server runs once per round, in an order that rotates.
//!
//! A disturbed run is repeated up to twice: alone ([`run`]), or with its whole round if the runs of
//! a round are compared ([`run_whole`]).

use std::time::Duration;

use crate::measure::{DISTURBED, Drive, Measured};
use crate::peers::{Program, Programs};
use crate::results::{Run, SectionResults};

/// Number of repeats of a disturbed run, or of its round.
const REPEATS: usize = 2;
/// Pause before a repeat.
const PAUSE: Duration = Duration::from_millis(500);

/// Share of time that the hypervisor may take during a run of a whole round.
const STEAL: f64 = 0.01;
/// Lateness of the client (99 %) that a run of a whole round may have, in µs.
const LATE_US: f64 = 100.0;

/// Lateness of the client, in µs, from which it is named on the page.
const CLIENT_LAG_US: f64 = 1000.0;

/// A server under a load.
pub(crate) struct Entry<'a, D> {
    /// Name in the table.
    pub(crate) name: String,
    /// Program of the server.
    pub(crate) program: &'a Program,
    /// Load on the server.
    pub(crate) load: D,
}

/// Creates an entry for each program for which there is a load.
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

/// Runs all entries `rounds` times; each produces the rows that its load names.
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
                        section.record(case, &row, Run { round, ..run });
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

/// Runs all entries `rounds` times. The runs of a round count together: a round with a disturbed
/// run is repeated, at most twice, and then counts as it is. Notes the number of disturbed rounds.
pub(crate) fn run_whole<D: Drive>(
    section: &mut SectionResults,
    case: &str,
    entries: &[Entry<'_, D>],
    rounds: usize,
) {
    let (mut repeated, mut kept) = (0, 0);
    for round in 0..rounds {
        let mut attempt = 0;
        let runs = loop {
            let is_last = attempt == REPEATS;
            match whole(section, case, entries, round, is_last) {
                Ok((runs, is_disturbed)) => {
                    kept += usize::from(is_disturbed);
                    break runs;
                }
                Err(why) => eprintln!("  once more: {why}"),
            }
            (attempt, repeated) = (attempt + 1, repeated + 1);
            std::thread::sleep(PAUSE);
        };
        for (row, run) in runs {
            section.record(case, &row, Run { round, ..run });
        }
    }
    if repeated > 0 {
        section.note(format!(
            "{case}: {repeated} disturbed rounds were repeated; {kept} of {rounds} count although disturbed"
        ));
    }
}

/// Rows of a round, and whether it was disturbed; after a disturbance only the last attempt
/// continues.
type Whole = (Vec<(String, Run)>, bool);

fn whole<D: Drive>(
    section: &mut SectionResults,
    case: &str,
    entries: &[Entry<'_, D>],
    round: usize,
    is_last: bool,
) -> Result<Whole, String> {
    let (mut rows, mut is_disturbed) = (Vec::new(), false);
    for i in 0..entries.len() {
        let entry = &entries[(i + round) % entries.len()];
        match measured(case, entry, round) {
            Ok(measured) => {
                if let Some(why) = disturbance(&measured.all)
                    && !entry.load.keep_disturbed()
                {
                    is_disturbed = true;
                    if !is_last {
                        return Err(format!("{}: {why}", entry.name));
                    }
                }
                rows.extend(entry.load.rows(&entry.name, measured));
            }
            Err(why) => section.note(format!(
                "{case}, {}, round {}: {why}",
                entry.name,
                round + 1
            )),
        }
    }
    Ok((rows, is_disturbed))
}

/// Returns the reason for which a run of a whole round does not count, if there is one.
fn disturbance(run: &Run) -> Option<String> {
    if run.steal > STEAL {
        Some(format!("the hypervisor took {:.1} %", 100.0 * run.steal))
    } else if run.foreign >= DISTURBED {
        Some(format!("others used {:.0} % of a CPU", 100.0 * run.foreign))
    } else if run.send_lag > LATE_US {
        Some(format!("the client was late by {:.0} µs", run.send_lag))
    } else {
        None
    }
}

/// Measures one run, and prints the result.
fn measured<D: Drive>(case: &str, entry: &Entry<'_, D>, round: usize) -> Result<Measured, String> {
    let measured = entry.load.measure(entry.program, round)?;
    let all = &measured.all;
    eprintln!(
        "{case:>24} {:<16} {:>9.0}/s  p50 {:>7.0} p99 {:>8.0} µs  {:>6.2} µs/req  others {:>3.0} %  late {:>4.0} µs",
        entry.name,
        all.per_second,
        all.p50,
        all.p99,
        all.cpu(),
        100.0 * all.foreign,
        all.send_lag
    );
    match &all.first_error {
        Some(error) => Err(format!("{} errors, the first: {error}", all.errors)),
        None => Ok(measured),
    }
}

fn undisturbed<D: Drive>(
    section: &mut SectionResults,
    case: &str,
    entry: &Entry<'_, D>,
    round: usize,
) -> Result<Measured, String> {
    for _ in 0..=REPEATS {
        let measured = measured(case, entry, round)?;
        let all = &measured.all;
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
        std::thread::sleep(PAUSE);
    }
    Err("no figure: every repeat was disturbed".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// A server whose client is late in its first runs.
    struct Late {
        late: usize,
        runs: Cell<usize>,
    }

    impl Drive for Late {
        fn measure(&self, _: &Program, round: usize) -> Result<Measured, String> {
            let run = self.runs.get();
            self.runs.set(run + 1);
            let all = Run {
                p50: round as f64,
                send_lag: if run < self.late { 2.0 * LATE_US } else { 0.0 },
                ..Run::default()
            };
            Ok(Measured {
                all,
                groups: Vec::new(),
            })
        }

        fn keep_disturbed(&self) -> bool {
            false
        }
    }

    fn two_rounds(late: usize) -> (SectionResults, [usize; 2]) {
        let program = Program::new("".into(), &[]);
        let entry = |(name, late): (&str, usize)| Entry {
            name: name.to_owned(),
            program: &program,
            load: Late {
                late,
                runs: Cell::new(0),
            },
        };
        let entries = [("quiet", 0), ("late", late)].map(entry);
        let mut section = SectionResults::default();
        run_whole(&mut section, "a", &entries, 2);
        (section, entries.map(|entry| entry.load.runs.get()))
    }

    #[test]
    fn a_disturbed_round_is_repeated_as_a_whole() {
        let (section, runs) = two_rounds(1);
        assert_eq!(runs, [3, 3]);
        let cell = section.cell("a", "quiet").unwrap();
        let rounds: Vec<_> = cell.runs.iter().map(|run| (run.round, run.p50)).collect();
        assert_eq!(rounds, [(0, 0.0), (1, 1.0)]);
        assert!(section.notes[0].contains("1 disturbed rounds were repeated; 0 of 2"));
    }

    #[test]
    fn a_round_that_stays_disturbed_counts_and_is_named() {
        let (section, runs) = two_rounds(usize::MAX);
        assert_eq!(runs[1], 6);
        assert_eq!(section.cell("a", "late").unwrap().runs.len(), 2);
        assert!(section.notes[0].contains("4 disturbed rounds were repeated; 2 of 2"));
    }
}
