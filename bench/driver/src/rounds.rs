//! Measures interleaved rounds: every server runs once per round, in an order that rotates.
//!
//! A run is *disturbed* if other programs or the hypervisor took much CPU time, or if the client
//! was late. A disturbed run is repeated at once, at most twice. The last repeat counts even if it
//! is disturbed. The results record the numbers of repeated runs and of disturbed runs that count
//! ([`repeat_while_disturbed`]).

use std::time::Duration;

use crate::measure::{Drive, Measured};
use crate::options::Options;
use crate::peers::{Program, Programs};
use crate::results::{Run, SectionResults};

const REPEATS: usize = 2;
const PAUSE: Duration = Duration::from_millis(500);

/// Smallest share of a CPU whose use by other programs disturbs a run.
const FOREIGN: f64 = 0.10;
/// Share of a CPU above which the hypervisor disturbs a run.
const STEAL: f64 = 0.01;
/// Largest lateness of an open-loop client (99 %) that never disturbs a run, in µs.
const LATE_US: f64 = 100.0;
/// Largest permitted lateness of an open-loop client (99 %), as a share of the run's 99 % latency.
const LATE_SHARE: f64 = 0.1;

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
        let taken = repeat_while_disturbed(section, options, &name, || {
            let measured = measured(case, entry, round)?;
            let why = disturbance_of(&measured.all);
            Ok((measured, why))
        });
        match taken {
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
    let mut left = REPEATS;
    loop {
        let (taken, disturbance) = take()?;
        let Some(why) = disturbance else {
            section.runs += 1;
            return Ok(taken);
        };
        if left == 0 || !options.has_repeats() {
            section.runs += 1;
            section.disturbed += 1;
            section.note(format!(
                "round {round}: {name}: {why}: counts although disturbed"
            ));
            return Ok(taken);
        }
        eprintln!("  round {round}: {name}: {why}: repeated");
        section.repeated += 1;
        left -= 1;
        std::thread::sleep(PAUSE);
    }
}

pub(crate) fn disturbance_of(run: &Run) -> Option<String> {
    if run.send_lag > LATE_US.max(LATE_SHARE * run.p99) {
        return Some(format!(
            "the client was late by {:.0} µs (99 %)",
            run.send_lag
        ));
    }
    disturbance_by_others(run.foreign, run.steal)
}

/// Returns the disturbance by other programs and by the hypervisor, given their shares of a CPU.
pub(crate) fn disturbance_by_others(foreign: f64, steal: f64) -> Option<String> {
    if steal > STEAL {
        Some(format!("the hypervisor took {:.1} %", 100.0 * steal))
    } else if foreign >= FOREIGN {
        Some(format!("others used {:.0} % of a CPU", 100.0 * foreign))
    } else {
        None
    }
}

/// Measures one run, and prints the result.
fn measured<D: Drive>(case: &str, entry: &Entry<'_, D>, round: usize) -> Result<Measured, String> {
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
    }

    fn two_rounds(late: usize, change: impl Fn(&mut Options)) -> (SectionResults, [usize; 2]) {
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

    #[test]
    fn lateness_is_compared_with_the_latency() {
        let run = |send_lag, p99| Run {
            send_lag,
            p99,
            ..Run::default()
        };
        assert_eq!(disturbance_of(&run(90.0, 100.0)), None);
        assert!(disturbance_of(&run(110.0, 100.0)).is_some());
        assert_eq!(disturbance_of(&run(110.0, 2000.0)), None);
        assert!(
            disturbance_by_others(0.0, 0.02).is_some() && disturbance_by_others(0.1, 0.0).is_some()
        );
        assert_eq!(disturbance_by_others(0.05, 0.005), None);
    }
}
