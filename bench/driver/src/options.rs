//! Parses the command line.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, ValueEnum};

use crate::section::Section;

/// Runs the benchmarks of Upshift beside its peers.
///
/// A partial run replaces the results of its own sections and keeps those of the others; with
/// --peers or --rows it also keeps the other results of its sections from the same commit. Needs
/// two otherwise idle CPUs. Results that go to bench/ need a tree without uncommitted changes; with
/// --quick or --out such changes are measured, too, and the results are marked.
#[derive(Parser)]
#[command(name = "upshift-bench", max_term_width = 100)]
struct Arguments {
    /// Command to run
    command: Option<Action>,

    /// Measure only these sections: plaintext, pipelined, matrix, single, vcpus, levels, papers,
    /// preemption, processes, assign, sched, serve, files, cpp, micro, conserve, multi
    /// [default: all; with --compare: plaintext, micro, multi]
    #[arg(long, value_name = "A,B", value_delimiter = ',', value_parser = section)]
    only: Vec<Section>,

    /// Measure only these servers, such as upshift,tokio-ct,c-uring (in the section assign: nginx,
    /// redis, postgres) [default: all that can be built]
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    peers: Vec<String>,

    /// Measure only these rows, such as long-70,serve in preemption or n20-100,idle-50k in papers
    /// [default: all]
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    rows: Vec<String>,

    /// Number of rounds, which is the number of runs of each server under each load [default: 5 (7
    /// in preemption), or fewer, but at least 3, if a section reaches its time limit]
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,

    /// Length of a run in seconds, 0.1 to 600 [default: 2; 1 in matrix, papers and files; 2.5 in
    /// preemption]
    #[arg(long, value_name = "S", value_parser = seconds)]
    seconds: Option<Duration>,

    /// Measure all sections at one commit; their time limits add up to 113 minutes. Skips sections
    /// that are complete at this commit. Fails if goals have no figures, and lists them. `cargo
    /// xtask bench --full` afterwards measures MPI and the kernel, too
    #[arg(long, conflicts_with_all = ["quick", "peers", "rows", "rounds", "seconds", "compare"])]
    full: bool,

    /// Measure one round with runs of 0.5 s and fewer loads, and do not repeat disturbed runs.
    /// Takes about 15 minutes and writes to bench/target/quick; only the ratios are meaningful
    #[arg(long)]
    quick: bool,

    /// Compare this tree with a commit, in 5 alternating rounds; prints a verdict for each row and
    /// writes nothing. Sections: plaintext, pipelined, matrix, single, micro, conserve, multi;
    /// about ten minutes by default
    #[arg(long, value_name = "COMMIT")]
    compare: Option<String>,

    /// Folder of RESULTS.md and results/ [default: bench/]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Action {
    /// Measure, then write results/SECTION.json and RESULTS.md
    Run,
    /// Delete the results of the sections that --only names, and write RESULTS.md again
    Drop,
    /// Write RESULTS.md again from results/
    Render,
}

/// Sections in which two commits can be compared.
const COMPARABLE_SECTIONS: [Section; 7] = [
    Section::Plaintext,
    Section::Pipelined,
    Section::Matrix,
    Section::Single,
    Section::Micro,
    Section::Conserve,
    Section::Multi,
];
/// Sections that are compared if none is named.
const DEFAULT_COMPARED_SECTIONS: [Section; 3] =
    [Section::Plaintext, Section::Micro, Section::Multi];

pub(crate) enum Command {
    Run(Options),
    /// Compare this tree with a commit
    Compare(Options, String),
    /// Delete the results of sections
    Drop(Options),
    /// Only write the page
    Render(Options),
}

/// Settings of a measurement.
#[derive(Clone)]
pub(crate) struct Options {
    pub(crate) sections: Vec<Section>,
    pub(crate) peers: Vec<String>,
    /// Rows of the sections `preemption` and `papers`; all if empty.
    pub(crate) rows: Vec<String>,
    /// Number of runs for each cell, from the command line; the section's default if `None`.
    rounds: Option<usize>,
    /// Length of a run from the command line; the section's default if `None`.
    seconds: Option<Duration>,
    /// Number of the current round, from 0.
    pub(crate) round: usize,
    /// Length of a run in the current section.
    pub(crate) time: Duration,
    /// End of the current section's time limit, after which no run is repeated.
    pub(crate) deadline: Option<Instant>,
    /// Whether complete sections are skipped, and the run fails if a goal has no figures.
    pub(crate) full: bool,
    /// Whether fewer cells are measured, and disturbed runs are kept.
    pub(crate) quick: bool,
    pub(crate) out: PathBuf,
}

/// Returns the folder `bench/` of the checkout that the driver was built from.
pub(crate) fn bench_dir() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_owned()
}

/// Fewest rounds of a section, even beyond its time limit.
pub(crate) const MIN_ROUNDS: usize = 3;

impl Options {
    /// Returns the largest number of rounds of a section. The default is larger for `preemption`,
    /// which compares tail latencies.
    pub(crate) fn rounds_of(&self, section: Section) -> usize {
        match section {
            _ if self.rounds.is_some() || self.quick => self.rounds.unwrap_or(1),
            Section::Preemption => 7,
            _ => 5,
        }
    }

    /// Whether the rounds beyond a section's time limit are skipped.
    pub(crate) fn has_limit(&self) -> bool {
        self.rounds.is_none()
    }

    /// Whether disturbed runs are repeated.
    pub(crate) fn has_repeats(&self) -> bool {
        let is_over = self.deadline.is_some_and(|end| Instant::now() >= end);
        !self.quick && !is_over
    }

    /// Returns the length of a run in a section. By default, runs are shorter where there are many
    /// cells.
    pub(crate) fn time_of(&self, section: Section) -> Duration {
        let millis = match section {
            _ if self.quick => 500,
            Section::Preemption => 2500,
            Section::Matrix | Section::Papers | Section::Files => 1000,
            _ => 2000,
        };
        self.seconds.unwrap_or(Duration::from_millis(millis))
    }

    #[cfg(test)]
    pub(crate) fn for_tests(time: Duration) -> Options {
        Options {
            sections: Vec::new(),
            peers: Vec::new(),
            rows: Vec::new(),
            rounds: None,
            seconds: None,
            round: 0,
            time,
            deadline: None,
            full: false,
            quick: false,
            out: PathBuf::new(),
        }
    }
}

/// Parses the command line. Exits the process after the help or an error.
pub(crate) fn parse() -> Command {
    options_of(Arguments::parse()).unwrap_or_else(|message| {
        let kind = ErrorKind::ValueValidation;
        Arguments::command().error(kind, message).exit()
    })
}

fn options_of(arguments: Arguments) -> Result<Command, String> {
    let is_named = !arguments.only.is_empty();
    let mut options = Options {
        sections: Section::ALL.to_vec(),
        peers: arguments.peers,
        rows: arguments.rows,
        rounds: arguments.rounds.map(|rounds| rounds.clamp(1, 100)),
        seconds: arguments.seconds,
        round: 0,
        time: Duration::ZERO,
        deadline: None,
        full: arguments.full,
        quick: arguments.quick,
        out: arguments.out.unwrap_or_else(|| {
            if arguments.quick {
                bench_dir().join("target/quick")
            } else {
                bench_dir()
            }
        }),
    };
    if is_named {
        // Sorted in the order of the page.
        options
            .sections
            .retain(|section| arguments.only.contains(section));
    }
    if let Some(commit) = arguments.compare {
        if arguments
            .command
            .is_some_and(|command| command != Action::Run)
        {
            return Err("--compare needs the command `run` or none".into());
        }
        if !is_named {
            options
                .sections
                .retain(|s| DEFAULT_COMPARED_SECTIONS.contains(s));
        }
        if let Some(section) = options
            .sections
            .iter()
            .find(|s| !COMPARABLE_SECTIONS.contains(s))
        {
            return Err(format!(
                "--compare cannot measure the section `{}`",
                section.name()
            ));
        }
        return Ok(Command::Compare(options, commit));
    }
    match arguments.command {
        Some(Action::Run) => Ok(Command::Run(options)),
        Some(Action::Drop) if !is_named => Err("drop: name the sections with --only".into()),
        Some(Action::Drop) => Ok(Command::Drop(options)),
        Some(Action::Render) => Ok(Command::Render(options)),
        None => Err("give a command: run, drop or render".into()),
    }
}

fn section(name: &str) -> Result<Section, String> {
    let section = Section::ALL.into_iter().find(|s| s.name() == name.trim());
    section.ok_or_else(|| {
        let names = Section::ALL.map(Section::name).join(", ");
        format!("the sections are {names}")
    })
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok();
    seconds
        .filter(|seconds| (0.1..=600.0).contains(seconds))
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "expected a number of seconds from 0.1 to 600".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Command, String> {
        let arguments = ["upshift-bench"].into_iter().chain(line.split(' '));
        let arguments = Arguments::try_parse_from(arguments).map_err(|error| error.to_string())?;
        options_of(arguments)
    }

    #[test]
    fn arguments_become_options() {
        Arguments::command().debug_assert();
        let Ok(Command::Run(options)) = read("run --only micro,plaintext --seconds 0.5") else {
            panic!("not a measurement");
        };
        assert_eq!(options.sections, [Section::Plaintext, Section::Micro]);
        assert_eq!(options.time_of(Section::Preemption).as_millis(), 500);
        assert_eq!(options.rounds_of(Section::Multi), 5);
        assert!(options.has_limit());
        assert_eq!(options.out, bench_dir());
        let Ok(Command::Run(options)) = read("run --quick --rounds 2") else {
            panic!("not a measurement");
        };
        let limits = (
            options.rounds_of(Section::Papers),
            options.time_of(Section::Papers),
        );
        assert_eq!(limits, (2, Duration::from_millis(500)));
        assert!(!options.has_limit());
        assert!(options.out.ends_with("target/quick"));
        let Ok(Command::Compare(options, commit)) = read("--compare HEAD~1") else {
            panic!("not a comparison");
        };
        assert_eq!(
            (commit.as_str(), options.rounds_of(Section::Micro)),
            ("HEAD~1", 5)
        );
        assert_eq!(options.sections, DEFAULT_COMPARED_SECTIONS);
    }

    #[test]
    fn invalid_arguments_are_errors() {
        for wrong in [
            "drop",
            "nonsense",
            "--quick",
            "run --only nonsense",
            "run --seconds 0",
            "run --full --quick",
            "run --full --peers upshift",
            "render --compare HEAD",
            "run --compare HEAD --only serve",
            "run --rounds x",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
