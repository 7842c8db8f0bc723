//! Builds the kernel and its programs, boots them in QEMU, and checks their output.
//!
//! `build` calls cargo, `archive` writes the archive of the programs, `qemu` starts the machine and
//! enforces its time limit. `suite` is the test matrix, `session` drives the console, `peer` is the
//! other end of the machine's network connections, and `elf_patch` produces the invalid images.
//! `trace`, `timeline` and `svg` show the states of threads and coroutines; `sequence` is the
//! expected trace of a program. `state` shows where each hart of a hung machine is, `disk` creates
//! disks, `record` checks the frames of the network card. `bench` counts instructions, and
//! `evaluate` measures a server.

#![forbid(unsafe_code)]

mod archive;
mod bench;
mod build;
mod disk;
mod elf_patch;
mod evaluate;
mod peer;
mod qemu;
mod record;
mod sequence;
mod session;
mod state;
mod suite;
mod svg;
mod timeline;
mod trace;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use evaluate::Selection;

/// Builds the kernel and its programs, boots them in QEMU, and checks their output
#[derive(Parser)]
#[command(name = "os-runner", max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Builds the images of the tests, without running a test
    Build(Build),
    /// Boots to a shell, with the console on the terminal
    Run(Run),
    /// Puts files on the image of a disk, and lists its files
    Disk(DiskArgs),
    /// Runs the test matrix
    Test(Test),
    /// Runs all tests repeatedly, then with more seeds of chaos
    Soak(Soak),
    /// Kills a machine with a disk in the middle of its writes
    PowerCut {
        /// Number of kills [default: as in soak]
        #[arg(long, value_name = "N")]
        seeds: Option<u64>,
    },
    /// Counts the instructions of operations
    Bench {
        /// Boots a kernel that the page tables of programs do not map
        #[arg(long)]
        isolated: bool,
    },
    /// Measures the matrix server of the papers, in four models
    Evaluate(Evaluate),
    /// Measures four rings of 128 coroutines on 1 to 5 vCPUs, on 4 harts
    Rings,
    /// Boots a program and prints its states over time
    Trace(Trace),
}

#[derive(Args)]
struct Build {
    /// Builds for a processor without Zba, Zbb and Zbs
    #[arg(long)]
    rv64gc: bool,
}

#[derive(Args)]
struct Run {
    /// Harts, 1 to 8
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = harts())]
    smp: u32,
    /// The image of a disk, created if the file does not exist
    #[arg(long, value_name = "FILE")]
    disk: Option<PathBuf>,
    /// Adds a network card; port HOST of 127.0.0.1 leads to port MACHINE of the machine
    #[arg(long, value_name = "HOST:MACHINE", value_parser = forward)]
    network: Option<qemu::Network>,
    /// Builds and boots for a processor without Zba, Zbb and Zbs
    #[arg(long)]
    rv64gc: bool,
    /// Builds a kernel that the page tables of programs do not map
    #[arg(long, conflicts_with = "rv64gc")]
    isolated: bool,
    /// The command line of the kernel; without init=PROGRAM the shell starts
    #[arg(value_name = "KERNEL ARGUMENT")]
    arguments: Vec<String>,
}

#[derive(Args)]
struct DiskArgs {
    /// The image, created if the file does not exist
    image: PathBuf,
    /// A program of kernel/user/src/bin, which becomes bin/PROGRAM
    #[arg(long, value_name = "PROGRAM")]
    program: Vec<String>,
    /// A file, and its name on the disk
    #[arg(long, value_name = "FILE=NAME", value_parser = named_file)]
    put: Vec<(PathBuf, String)>,
}

#[derive(Args)]
struct Test {
    /// Harts of the machines, 1 to 8 each
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1,2,4,8", value_parser = harts())]
    smp: Vec<u32>,
    /// Number of seeds of chaos
    #[arg(long, value_name = "N", default_value_t = suite::SEEDS)]
    seeds: u64,
    /// This seed of chaos only
    #[arg(long, value_name = "N", conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Only the machines whose name contains this text
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
}

#[derive(Args)]
struct Soak {
    /// Harts, 1 to 8
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = harts())]
    smp: u32,
    /// Number of repetitions
    #[arg(long, value_name = "N", default_value_t = 20)]
    runs: u64,
    /// Only the machines whose name contains this text
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
}

#[derive(Args)]
struct Evaluate {
    #[command(flatten)]
    part: Part,
    /// Also lists the most expensive functions, with --profile
    #[arg(long, requires = "profile")]
    sources: bool,
    /// The folder of points and plots [default: target/kernel-evaluation]
    #[arg(long, value_name = "FOLDER")]
    to: Option<PathBuf>,
    /// Uses docs/kernel-evaluation, which is part of the documentation
    #[arg(long, conflicts_with = "to")]
    docs: bool,
}

/// The points to measure. Without a flag: the points that the folder does not have.
#[derive(Args)]
#[group(multiple = false)]
struct Part {
    /// A few points
    #[arg(long)]
    quick: bool,
    /// The papers' figures, with clocks so slow that the harts cannot answer all requests
    #[arg(long)]
    saturation: bool,
    /// Profiles the instructions of a request
    #[arg(long)]
    profile: bool,
    /// Draws the existing points, without a measurement
    #[arg(long)]
    draw: bool,
}

#[derive(Args)]
struct Trace {
    /// Harts, 1 to 8
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = harts())]
    smp: u32,
    /// Instructions count as time
    #[arg(long)]
    icount: bool,
    /// Records kept per hart
    #[arg(long, value_name = "N", default_value_t = 4096)]
    records: u64,
    /// Prints JSON
    #[arg(long)]
    json: bool,
    /// Draws the timeline into this file
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    svg: Option<PathBuf>,
    /// The program
    #[arg(default_value = "traced")]
    program: String,
    /// The argument of the program
    argument: Option<String>,
}

fn harts() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=8)
}

/// Parses two ports, such as 5007:7.
fn forward(text: &str) -> Result<qemu::Network, String> {
    let ports = text.split_once(':');
    let ports = ports.and_then(|(port, to)| Some((port.parse().ok()?, to.parse().ok()?)));
    match ports {
        Some((port @ 1.., to @ 1..)) => Ok(qemu::Network::ForwardedTo { port, to }),
        _ => Err("write two ports, first the port of this host: 5007:7".to_owned()),
    }
}

/// Parses a file and its name on the disk, such as notes.txt=notes/today.
fn named_file(text: &str) -> Result<(PathBuf, String), String> {
    match text.split_once('=') {
        Some((file, name)) if !file.is_empty() && !name.is_empty() => {
            Ok((file.into(), name.to_owned()))
        }
        _ => Err("write a file and its name on the disk: notes.txt=notes/today".to_owned()),
    }
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().task {
        Task::Build(args) => build_all(build::Isa::from_flag(args.rv64gc)),
        Task::Disk(args) => put(args),
        Task::Run(args) => run(args),
        Task::Test(args) => {
            let seeds = args
                .seed
                .map_or(suite::Seeds::First(args.seeds), suite::Seeds::Only);
            suite::run(&args.smp, seeds, args.only.as_deref())
        }
        // All tests repeatedly, then the seeds that the matrix leaves out.
        Task::Soak(args) => suite::soak(args.smp, args.runs, args.only.as_deref()),
        Task::PowerCut { seeds } => suite::power_cuts(seeds),
        Task::Bench { isolated } => bench::run(isolated),
        Task::Evaluate(args) => evaluate(args),
        Task::Rings => rings(),
        Task::Trace(args) => show_trace(&args),
    };
    match outcome {
        Ok(code) => code,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::from(2)
        }
    }
}

fn evaluate(args: Evaluate) -> Result<ExitCode, String> {
    let flags = [
        (args.part.quick, Selection::Quick),
        (args.part.saturation, Selection::Saturation),
        (args.part.profile, Selection::Profile(args.sources)),
        (args.part.draw, Selection::Draw),
    ];
    let selection = flags.into_iter().find(|(is_given, _)| *is_given);
    let selection = selection.map_or(Selection::All, |(_, selection)| selection);
    let folder = if args.docs {
        "../docs/kernel-evaluation"
    } else {
        "target/kernel-evaluation"
    };
    let folder = args.to.unwrap_or_else(|| build::root().join(folder));
    evaluate::run(selection, &folder)
}

/// Boots with 4 harts and prints the figures of the program `rings`. Time does not count
/// instructions in this mode, because the harts would run in turn.
fn rings() -> Result<ExitCode, String> {
    let image = build::image()?;
    let machine = qemu::Machine::new(4, "init=rings");
    let outcome = qemu::run(&image, &machine, Duration::from_secs(60))?;
    let figures = outcome
        .output
        .lines()
        .filter_map(|line| line.strip_prefix("figure: "));
    figures.for_each(|figure| println!("{figure}"));
    match outcome.status {
        Some(0) => Ok(ExitCode::SUCCESS),
        _ => Err(outcome.output),
    }
}

/// Builds the images of the tests. For RV64GC, builds only the image of `run` and prints its paths.
fn build_all(isa: build::Isa) -> Result<ExitCode, String> {
    if isa == build::Isa::Default {
        build::with_kernel_threads()?;
        return Ok(ExitCode::SUCCESS);
    }
    let image = build::image_for(isa)?;
    println!("{}\n{}", image.kernel.display(), image.archive.display());
    Ok(ExitCode::SUCCESS)
}

/// Boots with the console on the terminal.
fn run(args: Run) -> Result<ExitCode, String> {
    let image = if args.isolated {
        build::isolated()?
    } else {
        build::image_for(build::Isa::from_flag(args.rv64gc))?
    };
    let mut arguments = args.arguments;
    let selects_program = |word: &String| word.starts_with("init=") || word.starts_with("selftest");
    if !arguments.iter().any(selects_program) {
        arguments.push("init=shell".to_owned());
    }
    if let Some(disk) = &args.disk {
        disk::create_if_missing(disk)?;
    }
    let machine = qemu::Machine {
        cpu: if args.rv64gc { build::RV64GC_CPU } else { "" },
        network: args.network.unwrap_or(qemu::Network::No),
        ..qemu::Machine::new(args.smp, &arguments.join(" "))
    };
    eprintln!("Ctrl-A X ends QEMU, whatever the machine does");
    let status = qemu::command(&image, &machine, args.disk.as_deref())
        .status()
        .map_err(qemu::explain)?;
    Ok(ExitCode::from(status.code().unwrap_or(1) as u8))
}

/// Puts files on the image of a disk.
fn put(args: DiskArgs) -> Result<ExitCode, String> {
    let mut files = Vec::new();
    if !args.program.is_empty() {
        build::image()?;
    }
    for program in args.program {
        files.push((format!("bin/{program}"), build::program(&program)?));
    }
    for (file, name) in args.put {
        let bytes = std::fs::read(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        files.push((name, bytes));
    }
    disk::put_and_list(&args.image, &files)?;
    Ok(ExitCode::SUCCESS)
}

/// Boots a program with tracing enabled, and prints the trace.
fn show_trace(args: &Trace) -> Result<ExitCode, String> {
    let program = &args.program;
    let with = args
        .argument
        .as_ref()
        .map_or(String::new(), |word| format!(" with={word}"));
    let image = build::image()?;
    let arguments = format!("init={program}{with} trace={}", args.records);
    let machine = qemu::Machine {
        icount: args.icount,
        ..qemu::Machine::new(args.smp, &arguments)
    };
    let outcome = qemu::run(&image, &machine, Duration::from_secs(120))?;
    let trace = trace::parse(&outcome.output)
        .ok_or_else(|| format!("{}\nthe machine has printed no trace", outcome.output))?;
    match &args.svg {
        Some(file) => {
            let written = std::fs::write(file, svg::draw(program, &trace));
            written.map_err(|error| format!("{}: {error}", file.display()))?;
            println!("{}", file.display());
        }
        None if args.json => println!("{}", timeline::json(&trace)),
        None => print!("{}", timeline::text(program, &trace)),
    }
    match outcome.status {
        Some(0) => Ok(ExitCode::SUCCESS),
        status => Err(format!("`{program}` has ended with {status:?}, not 0")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(line: &str) -> Result<Task, clap::Error> {
        let words = std::iter::once("os-runner").chain(line.split_whitespace());
        Cli::try_parse_from(words).map(|words| words.task)
    }

    #[test]
    fn options_may_appear_anywhere() {
        let Ok(Task::Trace(args)) = task("trace --smp 2 child --json") else {
            panic!("the line is not parsed as a trace")
        };
        assert_eq!(
            (args.smp, args.program.as_str(), args.json),
            (2, "child", true)
        );
        assert!(args.argument.is_none() && !args.icount);
        let Ok(Task::Run(args)) = task("run init=tests with=a,b --smp 4 trace=9") else {
            panic!("the line is not parsed as a run")
        };
        assert_eq!(args.arguments, ["init=tests", "with=a,b", "trace=9"]);
        let Ok(Task::Run(args)) = task("run --network 5007:7 --disk file") else {
            panic!("the line is not parsed as a run with a network")
        };
        let to_echo = qemu::Network::ForwardedTo { port: 5007, to: 7 };
        assert!(args.network == Some(to_echo) && args.arguments.is_empty() && !args.isolated);
        let Ok(Task::Test(args)) = task("test --smp 2,4") else {
            panic!("the line is not parsed as a test")
        };
        assert_eq!((args.smp, args.seeds), (vec![2, 4], suite::SEEDS));
    }

    #[test]
    fn invalid_command_lines_are_errors() {
        for line in [
            "",
            "test --smp 9",
            "test --smp",
            "test --seed x",
            "test --seed 1 --seeds 2",
            "bench left",
            "run --rv64gc --isolated",
            "evaluate --quick --saturation",
            "evaluate --sources",
            "run --network 5007",
            "run --network 0:7",
            "run --network 5007:70000",
            "disk",
            "disk image --put file",
            "trace --json --svg file",
        ] {
            assert!(task(line).is_err(), "{line}");
        }
    }
}
