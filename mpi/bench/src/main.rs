//! Implements `cargo xtask mpi bench`. It measures what overlap of communication and computing,
//! levels (the urgency of requests) and serving requests achieve on 1, 2 and 4 ranks. From the
//! measured costs it also computes a model of 64 and 1,024 ranks.
//!
//! A measurement does the same work on the same ranks in several *ways*, which are compared. The
//! driver starts this program by `mpirun` once for each way of each measurement, in interleaved
//! rounds. The driver prints medians with their spread, and writes them into
//! `mpi/bench/FIGURES.md`, unless `--quick` is given or the sources differ from those of a commit.
//! All ranks share one machine, so no network is measured.

mod collective;
mod costs;
mod model;
mod overlap;
mod page;
mod sizes;
mod urgent;
mod work;

use std::collections::BTreeMap;
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use clap::Parser;

/// Measures upshift-mpi.
#[derive(Debug, Parser)]
struct Arguments {
    /// Only show that the program works, in about a minute: the figures mean nothing
    #[arg(long)]
    quick: bool,
    /// Numbers of ranks
    #[arg(long, value_delimiter = ',', default_value = "1,2,4")]
    ranks: Vec<usize>,
    /// Run only this measurement, and write no file
    #[arg(long)]
    only: Option<String>,
    /// Run as a rank: the name of the measurement, and the way
    #[arg(long, hide = true, num_args = 2)]
    rank: Option<Vec<String>>,
}

/// The measurements, each with its ways.
const MEASUREMENTS: [(&str, &[&str]); 5] = [
    ("costs", &["blocking", "upshift"]),
    (
        "sizes",
        &["blocking", "blocking, in pieces", "thread", "upshift"],
    ),
    ("overlap", &["blocking", "threads", "upshift"]),
    ("urgent", &["alone", "equals", "levels"]),
    ("collective", &["alone", "serving", "both"]),
];

/// The measurements, each with a description for the page.
const DESCRIPTIONS: [(&str, &str); 5] = [
    (
        "costs",
        "a message of 8 bytes and one of 4 MiB, half a round trip between ranks 0 and 1; a call and its reply; a multiplication with addition",
    ),
    (
        "sizes",
        "one operation at a time, ms, from a barrier to a barrier; the size is the longest buffer of any rank. blocking: MPI copies directly from process to process; in pieces: MPI sends pieces instead, as by default with `Launch`; thread: a thread starts the operation and calls `MPI_Wait`, also in pieces",
    ),
    (
        "overlap",
        "1 MiB each way between pairs of ranks, and computing that takes as long: each alone, and both at once; hidden: the share of the shorter one that overlaps the other",
    ),
    (
        "urgent",
        "100 urgent requests a second for products of order 16, open loop, on all ranks in turn: alone; beside batch products of order 384 spread over all ranks, as equals and with levels",
    ),
    (
        "collective",
        "allreduce of 1 MiB without pause at level 20; 200 calls a second to the next rank at level 0, open loop; both",
    ),
];

/// Values of each round, by measurement, number of ranks, way and figure.
type Figures = BTreeMap<(String, usize, String, String), Vec<f64>>;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(rank) = &arguments.rank {
        let [name, way] = rank.as_slice() else {
            return ExitCode::FAILURE;
        };
        let scale = if arguments.quick { 1 } else { 10 };
        let result = match name.as_str() {
            "costs" => costs::run(way, scale),
            "sizes" => sizes::run(way, arguments.quick),
            "overlap" => overlap::run(way, scale),
            "urgent" => urgent::run(way, scale),
            _ => collective::run(way, scale),
        };
        return match result {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("error: {error}");
                ExitCode::FAILURE
            }
        };
    }
    match drive(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn drive(arguments: &Arguments) -> Result<(), String> {
    let start_time = Instant::now();
    let rounds = if arguments.quick { 1 } else { 3 };
    let mut figures = Figures::new();
    for _ in 0..rounds {
        for (name, ways) in MEASUREMENTS {
            if arguments.only.as_deref().is_some_and(|only| only != name) {
                continue;
            }
            for ranks in &arguments.ranks {
                if name == "costs" && *ranks != 2 {
                    continue;
                }
                for way in ways {
                    measure(arguments, name, *ranks, way, &mut figures)?;
                }
            }
        }
    }
    let tables = match &arguments.only {
        Some(_) => page::measured_tables(&figures),
        None => page::tables(&figures)?,
    };
    println!("{tables}");
    let seconds = start_time.elapsed().as_secs_f64();
    println!("{rounds} rounds, {seconds:.0} s; {}", page::machine());
    match page::commit() {
        _ if arguments.quick || arguments.only.is_some() => Ok(()),
        None => {
            Err("the sources differ from their commit: mpi/bench/FIGURES.md is not written".into())
        }
        Some(commit) => page::write(&format!(
            "At {commit}, {rounds} interleaved rounds, {seconds:.0} s; {}. Medians with (smallest–largest).\n{tables}",
            page::machine()
        )),
    }
}

fn measure(
    arguments: &Arguments,
    name: &str,
    ranks: usize,
    way: &str,
    figures: &mut Figures,
) -> Result<(), String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new("timeout");
    command
        .args(["-k", "5", "150", "mpirun", "--oversubscribe"])
        .args(["-n", &ranks.to_string()])
        .arg(program)
        .args(["--rank", name, way])
        .args(arguments.quick.then_some("--quick"))
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .stdin(Stdio::null())
        .stderr(Stdio::inherit());
    eprintln!("$ mpirun --oversubscribe -n {ranks} upshift-mpi-bench --rank {name} {way}");
    let output = command.output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(format!("{name} {way} on {ranks} ranks: {}", output.status));
    }
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        // A measurement prints `figure NAME VALUE`, the name with its unit.
        if let Some((figure, value)) = line
            .strip_prefix("figure ")
            .and_then(|rest| rest.rsplit_once(' '))
            && let Ok(value) = value.parse()
        {
            let key = (name.to_owned(), ranks, way.to_owned(), figure.to_owned());
            figures.entry(key).or_default().push(value);
        }
    }
    Ok(())
}
