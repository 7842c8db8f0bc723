//! Measures interleaved rounds: every server runs once per round, in an order that rotates.
//!
//! A run is *disturbed* if other programs or the hypervisor took much CPU time, or if the client
//! was late. A disturbed run is repeated at once, at most twice. The last repeat is recorded even
//! if it is disturbed, but then it decides no goal. The results record the numbers of repeated runs
//! and of recorded disturbed runs ([`repeat_while_disturbed`]).

use std::time::Duration;

use crate::measure::{Drive, Measured};
use crate::options::Options;
use crate::peers::{Program, Programs};
use crate::results::{Run, SectionResults};

/// Largest number of repeats of a disturbed run.
const REPEATS: usize = 2;
/// Pause before a repeat.
const PAUSE: Duration = Duration::from_millis(500);

/// A server under a load.
pub(crate) struct Entry<'a, D> {
    pub(crate) name: String,
    pub(crate) program: &'a Program,
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

/// Runs all entries once, in the order of the current round; each produces the rows that its load
/// names.
pub(crate) fn run<D: Drive>(
    section: &mut SectionResults,
    case: &str,
    entries: &[Entry<'_, D>],
    options: &Options,
) {
    let round = options.round;
    for i in 0..entries.len() {
        let entry = &entries[(i + round) % entries.len()];
        let name = format!("{case}, {}", entry.name);
        let outcome = repeat_while_disturbed(section, options, &name, || {
            let measured = measure_and_print(case, entry, round)?;
            let why = measured.all.disturbance();
            Ok((measured, why))
        });
        match outcome {
            Ok(measured) => {
                for (row, run) in entry.load.rows(&entry.name, measured) {
                    section.record(case, &row, Run { round, ..run });
                }
            }
            Err(why) => section.note(format!("round {}: {name}: {why}", round + 1)),
        }
    }
}

/// Takes a measurement, and takes it again while `take` reports a disturbance, at most [`REPEATS`]
/// times. Nothing is repeated in a quick run, or beyond the section's time limit.
pub(crate) fn repeat_while_disturbed<T>(
    section: &mut SectionResults,
    options: &Options,
    name: &str,
    mut take: impl FnMut() -> Result<(T, Option<String>), String>,
) -> Result<T, String> {
    let round = options.round + 1;
    let mut repeats_left = REPEATS;
    loop {
        let (value, disturbance) = take()?;
        let Some(why) = disturbance else {
            section.runs += 1;
            return Ok(value);
        };
        if repeats_left == 0 || !options.has_repeats() {
            section.runs += 1;
            section.disturbed += 1;
            section.note(format!(
                "round {round}: {name}: {why}: counts although disturbed"
            ));
            return Ok(value);
        }
        eprintln!("  round {round}: {name}: {why}: repeated");
        section.repeated += 1;
        repeats_left -= 1;
        std::thread::sleep(PAUSE);
    }
}

/// Measures one run, and prints the result.
fn measure_and_print<D: Drive>(
    case: &str,
    entry: &Entry<'_, D>,
    round: usize,
) -> Result<Measured, String> {
    let measured = entry.load.measure(entry.program, round)?;
    let all = &measured.all;
    eprintln!(
        "{case:>24} {:<16} {:>9.0}/s  p50 {:>7.0} p99 {:>8.0} µs  {:>6.2} µs/req  others {:>3.0} %  steal {:>4.1} %  late {:>4.0} µs",
        entry.name,
        all.per_second,
        all.p50,
        all.p99,
        all.cpu(),
        100.0 * all.foreign,
        100.0 * all.steal,
        all.send_lag
    );
    match &all.first_error {
        Some(error) => Err(format!("{} errors, the first: {error}", all.errors)),
        None => Ok(measured),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::MAX_LATENESS_US;
    use std::cell::Cell;

    /// A load whose client is late in the first `late_runs` runs.
    struct LateClient {
        late_runs: usize,
        runs: Cell<usize>,
    }

    impl Drive for LateClient {
        fn measure(&self, _: &Program, round: usize) -> Result<Measured, String> {
            let run = self.runs.get();
            self.runs.set(run + 1);
            let all = Run {
                p50: round as f64,
                send_lag: if run < self.late_runs {
                    2.0 * MAX_LATENESS_US
                } else {
                    0.0
                },
                ..Run::default()
            };
            Ok(Measured {
                all,
                groups: Vec::new(),
            })
        }
    }

    fn two_rounds(late_runs: usize, change: impl Fn(&mut Options)) -> (SectionResults, [usize; 2]) {
        let program = Program::new("".into(), &[]);
        let entry = |(name, late_runs): (&str, usize)| Entry {
            name: name.to_owned(),
            program: &program,
            load: LateClient {
                late_runs,
                runs: Cell::new(0),
            },
        };
        let entries = [("quiet", 0), ("late", late_runs)].map(entry);
        let mut section = SectionResults::default();
        let mut options = Options::for_tests(Duration::from_secs(1));
        change(&mut options);
        for round in 0..2 {
            options.round = round;
            run(&mut section, "a", &entries, &options);
        }
        (section, entries.map(|entry| entry.load.runs.get()))
    }

    #[test]
    fn a_disturbed_run_is_repeated() {
        let (section, runs) = two_rounds(1, |_| ());
        assert_eq!(runs, [2, 3]);
        let cell = section.cell("a", "late").unwrap();
        let rounds: Vec<_> = cell.runs.iter().map(|run| (run.round, run.p50)).collect();
        assert_eq!(rounds, [(0, 0.0), (1, 1.0)]);
        assert_eq!(
            (section.runs, section.repeated, section.disturbed),
            (4, 1, 0)
        );
        assert!(section.notes.is_empty() && !section.is_disturbed());
    }

    #[test]
    fn a_run_that_stays_disturbed_counts_and_is_named() {
        let (section, runs) = two_rounds(usize::MAX, |_| ());
        assert_eq!(runs, [2, 6]);
        assert_eq!(section.cell("a", "late").unwrap().runs.len(), 2);
        assert_eq!(
            (section.runs, section.repeated, section.disturbed),
            (4, 4, 2)
        );
        assert!(section.is_disturbed());
        assert_eq!(
            section.notes[1],
            "round 2: a, late: the client was late by 200 µs (99 %): counts although disturbed"
        );
    }

    #[test]
    fn nothing_is_repeated_in_a_quick_run_or_beyond_the_time_limit() {
        for change in [
            |options: &mut Options| options.quick = true,
            |options: &mut Options| options.deadline = Some(std::time::Instant::now()),
        ] {
            let (section, runs) = two_rounds(usize::MAX, change);
            assert_eq!((runs, section.disturbed), ([2, 2], 2));
        }
    }
}
