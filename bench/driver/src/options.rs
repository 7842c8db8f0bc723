//! The command line.

use std::path::{Path, PathBuf};
use std::time::Duration;

use lexopt::{Arg, Parser, ValueExt};

use crate::section::Section;

/// Printed by `--help` and after a wrong command line.
pub(crate) const HELP: &str = "\
usage: upshift-bench run [options]         measure, then write results/SECTION.json and RESULTS.md
       upshift-bench run --compare COMMIT  build that commit, too, measure both in turn, and print a verdict for each row
       upshift-bench drop --only A,B       delete what is known of these sections, and write RESULTS.md again
       upshift-bench render [--out DIR]    write RESULTS.md again from results/

  --only A,B     sections: plaintext, pipelined, matrix, single, vcpus, levels, preemption, processes,
                 assign, sched, serve, files, cpp, micro, conserve, multi
                 (default: all)
  --peers A,B    only these servers, such as upshift,tokio-ct,c-uring (default: all that can be built); in assign
                 nginx, redis, postgres
  --rounds N     runs of each cell (default 3; 5 in preemption and multi)
  --seconds S    length of a run (default 2; 3 in preemption)
  --quick        1 round of 0.5 s, fewer cells, disturbed runs kept, written to bench/target/quick: to try the benchmarks,
                 not for figures
  --compare COMMIT
                 this tree beside a commit, 5 rounds: nothing is written. Sections: plaintext, pipelined, matrix, single, micro,
                 conserve, multi (default: plaintext, micro, multi: some ten minutes)
  --out DIR      where RESULTS.md and results/ are (default: bench/)

A partial run replaces its own sections and leaves the others as they are; with --peers it also leaves the other servers of the
same commit. Needs two CPUs that are otherwise idle, and a
committed tree: what cannot be repeated is not written to bench/ (with --quick or --out it is measured, and marked).
";

/// Sections of which two commits can be compared.
const COMPARED: [Section; 7] = [
    Section::Plaintext,
    Section::Pipelined,
    Section::Matrix,
    Section::Single,
    Section::Micro,
    Section::Conserve,
    Section::Multi,
];
/// Those that are, if none is named.
const DEFAULT_COMPARED: [Section; 3] = [Section::Plaintext, Section::Micro, Section::Multi];

/// What to do.
pub(crate) enum Command {
    /// Measure.
    Run(Options),
    /// Compare this tree with a commit.
    Compare(Options, String),
    /// Forget sections.
    Drop(Options),
    /// Only write the page.
    Render(Options),
    /// Print [`HELP`].
    Help,
}

/// How to measure.
#[derive(Clone)]
pub(crate) struct Options {
    /// The sections, in the order of the page.
    pub(crate) only: Vec<Section>,
    /// The servers; all if empty.
    pub(crate) peers: Vec<String>,
    /// Runs of each cell.
    pub(crate) rounds: usize,
    /// The number of rounds is the default.
    default_rounds: bool,
    /// Length of a run.
    pub(crate) time: Duration,
    /// The length is the default.
    default_time: bool,
    /// Fewer cells, and disturbed runs are kept.
    pub(crate) quick: bool,
    /// Where the results are.
    pub(crate) out: PathBuf,
}

/// The folder `bench/` of the checkout that the driver was built from.
pub(crate) fn bench_dir() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_owned()
}

impl Options {
    /// Runs of each cell of a section: more by default where tails are compared, or runs are short.
    pub(crate) fn rounds_of(&self, section: Section) -> usize {
        match section {
            Section::Preemption | Section::Multi if self.default_rounds => 5,
            _ => self.rounds,
        }
    }

    /// Length of a run of a section.
    pub(crate) fn time_of(&self, section: Section) -> Duration {
        match section {
            Section::Preemption if self.default_time => Duration::from_secs(3),
            _ => self.time,
        }
    }

    /// Everything else as by default.
    #[cfg(test)]
    pub(crate) fn for_tests(time: Duration, rounds: usize) -> Options {
        Options {
            only: Vec::new(),
            peers: Vec::new(),
            rounds,
            default_rounds: false,
            time,
            default_time: false,
            quick: false,
            out: PathBuf::new(),
        }
    }
}

/// Reads the command line.
pub(crate) fn parse() -> Result<Command, String> {
    let mut words = Parser::from_env();
    let mut command = None;
    let (mut rounds, mut seconds, mut out, mut compare) = (None, None, None, None);
    let mut options = Options {
        only: Section::ALL.to_vec(),
        peers: Vec::new(),
        rounds: 3,
        default_rounds: true,
        time: Duration::from_secs(2),
        default_time: true,
        quick: false,
        out: bench_dir(),
    };
    let mut is_named = false;
    while let Some(word) = words.next().map_err(|e| e.to_string())? {
        match word {
            Arg::Value(value) if command.is_none() => command = Some(text(value)?),
            Arg::Long("only") => {
                let list = list(&mut words)?;
                is_named = true;
                options.only = Section::ALL.to_vec();
                for name in &list {
                    if !Section::ALL.iter().any(|s| s.name() == name) {
                        return Err(format!("no section `{name}`"));
                    }
                }
                options.only.retain(|s| list.iter().any(|n| n == s.name()));
            }
            Arg::Long("peers") => options.peers = list(&mut words)?,
            Arg::Long("rounds") => rounds = Some(number(&mut words, "--rounds")?),
            Arg::Long("seconds") => seconds = Some(number(&mut words, "--seconds")?),
            Arg::Long("compare") => {
                compare = Some(text(words.value().map_err(|e| e.to_string())?)?);
            }
            Arg::Long("quick") => options.quick = true,
            Arg::Long("out") => {
                out = Some(PathBuf::from(words.value().map_err(|e| e.to_string())?))
            }
            Arg::Long("help") | Arg::Short('h') => return Ok(Command::Help),
            other => return Err(other.unexpected().to_string()),
        }
    }
    if options.quick {
        options.rounds = 1;
        options.default_rounds = false;
        options.time = Duration::from_millis(500);
        options.default_time = false;
        options.out = bench_dir().join("target/quick");
    }
    if let Some(rounds) = rounds {
        options.rounds = (rounds as usize).clamp(1, 100);
        options.default_rounds = false;
    }
    if let Some(seconds) = seconds {
        options.time = Duration::try_from_secs_f64(seconds)
            .ok()
            .filter(|time| (0.1..=600.0).contains(&time.as_secs_f64()))
            .ok_or("--seconds must be 0.1 to 600")?;
        options.default_time = false;
    }
    options.out = out.unwrap_or(options.out);
    if let Some(commit) = compare {
        if command.as_deref().is_some_and(|command| command != "run") {
            return Err("--compare measures: it goes with run".into());
        }
        if !is_named {
            options.only.retain(|s| DEFAULT_COMPARED.contains(s));
        }
        if let Some(other) = options.only.iter().find(|s| !COMPARED.contains(s)) {
            return Err(format!(
                "--compare does not know the section `{}`",
                other.name()
            ));
        }
        if options.default_rounds {
            options.rounds = 5;
        }
        return Ok(Command::Compare(options, commit));
    }
    match command.as_deref() {
        Some("run") => Ok(Command::Run(options)),
        Some("drop") if !is_named => Err("drop: name the sections by --only".into()),
        Some("drop") => Ok(Command::Drop(options)),
        Some("render") => Ok(Command::Render(options)),
        Some(other) => Err(format!("no command `{other}`")),
        None => Err("name a command: run, drop or render".into()),
    }
}

fn text(value: std::ffi::OsString) -> Result<String, String> {
    value.string().map_err(|e| e.to_string())
}

fn list(words: &mut Parser) -> Result<Vec<String>, String> {
    let value = text(words.value().map_err(|e| e.to_string())?)?;
    Ok(value.split(',').map(|s| s.trim().to_owned()).collect())
}

fn number(words: &mut Parser, name: &str) -> Result<f64, String> {
    let value = text(words.value().map_err(|e| e.to_string())?)?;
    value
        .parse()
        .map_err(|_| format!("{name} needs a number, not `{value}`"))
}
