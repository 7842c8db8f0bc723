//! `cargo xtask mpi`, and what the suite asks of mpi/: a workspace of its own, because it needs an MPI library to build.
//!
//! Each package is named to rustfmt: with `--all`, cargo would format the crates outside mpi/ that it uses as well.

use std::path::Path;
use std::process::{Command, ExitCode};

use crate::bench::foreground;
use crate::packages;
use crate::run::Stop;
use crate::setup;
use crate::step::{Context, Done, Verdict};

const PACKAGES: [&str; 4] = [
    "upshift-mpi",
    "upshift-mpi-bench",
    "upshift-mpi-cases",
    "upshift-mpi-matrix",
];

const TESTS: [&str; 2] = ["test", "--workspace"];
const CLIPPY: [&str; 6] = [
    "clippy",
    "--workspace",
    "--all-targets",
    "--",
    "-D",
    "warnings",
];

fn cargo(root: &Path, args: &[&str]) -> Command {
    let mut command = setup::cargo(&root.join("mpi"));
    command.args(args);
    command
}

/// What is missing, in words.
fn absence() -> Option<String> {
    let missing: Vec<_> = packages::MPI
        .iter()
        .filter(|package| !package.is_there())
        .map(|package| package.absence())
        .collect();
    (!missing.is_empty()).then(|| missing.join("; "))
}

/// Builds and tests, or measures.
pub(crate) fn command(root: &Path, args: &[String]) -> ExitCode {
    match Stop::on_signals() {
        Ok(stop) => packages::install(&packages::MPI, &stop),
        Err(error) => {
            eprintln!("error: cannot handle signals: {error}");
            return ExitCode::FAILURE;
        }
    }
    if let Some(absence) = absence() {
        eprintln!("error: {absence}");
        return ExitCode::FAILURE;
    }
    let steps = match args.split_first() {
        None => vec![
            // One of the tests starts a daemon.
            setup::debug_build(root),
            cargo(root, &CLIPPY),
            cargo(root, &TESTS),
            cargo(root, &["build", "--workspace", "--release"]),
        ],
        Some((word, rest)) if word == "bench" => {
            let run = ["run", "--release", "-p", "upshift-mpi-bench", "--"];
            let mut bench = cargo(root, &run);
            bench.args(rest.iter().filter(|word| *word != "--"));
            vec![bench]
        }
        Some((word, _)) => {
            eprintln!("error: `cargo xtask mpi {word}`: it knows `bench`, or nothing");
            return ExitCode::FAILURE;
        }
    };
    for mut step in steps {
        if let Err(code) = foreground(&mut step) {
            return code;
        }
    }
    ExitCode::SUCCESS
}

/// Formatting of every package.
///
/// # Errors
/// Those of the command.
pub(crate) fn fmt(context: &Context<'_>) -> Result<(), String> {
    let mut command = cargo(context.root, &["fmt", "--check"]);
    command.args(PACKAGES.iter().flat_map(|name| ["--package", name]));
    // rustfmt colours its differences even when they go to a file.
    command.args(["--", "--color", "never"]);
    context.run(command)
}

/// Why nothing is tested here.
fn untestable(context: &Context<'_>) -> Option<String> {
    absence().or_else(|| context.io_uring.clone().err())
}

/// Lints, and what the tests are built from.
///
/// # Errors
/// Those of the commands.
pub(crate) fn build(context: &Context<'_>) -> Result<(), String> {
    if untestable(context).is_some() {
        return Ok(());
    }
    context.run(cargo(context.root, &CLIPPY))?;
    let mut command = cargo(context.root, &TESTS);
    command.arg("--no-run");
    context.run(command)
}

/// The tests. What is missing has been installed by now if it could be.
pub(crate) fn step(context: &Context<'_>) -> Verdict {
    if let Some(why) = untestable(context) {
        return Ok(Done::Skipped(why));
    }
    // One of the tests starts a daemon.
    context.run(setup::debug_build(context.root))?;
    let mut command = cargo(context.root, &TESTS);
    command.args(["--no-fail-fast", "--", "--show-output"]);
    context.run_tests(command)?;
    context.tests_passed()
}
