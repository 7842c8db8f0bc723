//! `cargo xtask mpi`, and the suite's steps for mpi/, which is a separate workspace because it
//! needs an MPI library to build.
//!
//! rustfmt receives each package by name, because with `--all` cargo would also format the crates
//! outside mpi/ that mpi/ depends on.

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

fn absence() -> Option<String> {
    let missing: Vec<_> = packages::MPI
        .iter()
        .filter(|package| !package.is_installed())
        .map(|package| package.absence())
        .collect();
    (!missing.is_empty()).then(|| missing.join("; "))
}

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
            eprintln!("error: `cargo xtask mpi {word}`: the only subcommand is `bench`");
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

pub(crate) fn fmt(context: &Context<'_>) -> Result<(), String> {
    let mut command = cargo(context.root, &["fmt", "--check"]);
    command.args(PACKAGES.iter().flat_map(|name| ["--package", name]));
    // rustfmt colours its differences even in a file.
    command.args(["--", "--color", "never"]);
    context.run(command)
}

fn skip_reason(context: &Context<'_>) -> Option<String> {
    absence().or_else(|| context.io_uring.clone().err())
}

/// Runs the lints and builds the programs that the tests need.
///
/// # Errors
/// The error of the command that failed.
pub(crate) fn build(context: &Context<'_>) -> Result<(), String> {
    if skip_reason(context).is_some() {
        return Ok(());
    }
    context.run(cargo(context.root, &CLIPPY))?;
    let mut command = cargo(context.root, &TESTS);
    command.arg("--no-run");
    context.run(command)
}

/// Runs the tests, after [`build`] has tried to install missing packages.
pub(crate) fn step(context: &Context<'_>) -> Verdict {
    if let Some(reason) = skip_reason(context) {
        return Ok(Done::Skipped(reason));
    }
    // One of the tests starts a daemon.
    context.run(setup::debug_build(context.root))?;
    let mut command = cargo(context.root, &TESTS);
    command.args(["--no-fail-fast", "--", "--show-output"]);
    context.run_tests(command)?;
    context.tests_passed()
}
