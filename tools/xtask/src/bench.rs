//! `cargo xtask bench`: builds the command, names the peers that cannot be built here and calls the
//! benchmark driver. `cargo xtask os`: calls the runner of the kernel.
//!
//! The child inherits the terminal, receives the signals and determines the exit status. No command
//! has a time limit, since only the user knows how long a measurement may take.

use std::path::Path;
use std::process::{Command, ExitCode};

use crate::{packages, run, setup};

/// Subcommands of the driver that need no build, unlike `run`.
const COMMANDS: [&str; 2] = ["drop", "render"];

/// Runs the benchmarks and returns the exit status of the first command that fails.
pub(crate) fn command(root: &Path, args: &[String]) -> ExitCode {
    if !root.join("bench/Cargo.toml").exists() {
        eprintln!("error: bench/Cargo.toml is missing: run this in a full checkout");
        return ExitCode::FAILURE;
    }
    for package in packages::missing() {
        eprintln!("note: {}", package.absence());
    }
    let is_run = !args
        .first()
        .is_some_and(|word| COMMANDS.contains(&word.as_str()));
    let mut build = setup::cargo(root);
    build.args(["build", "--release"]);
    let mut driver = setup::cargo(root);
    driver
        .args([
            "run",
            "--release",
            "--manifest-path",
            "bench/Cargo.toml",
            "-p",
            "upshift-bench",
            "--",
        ])
        .args(is_run.then_some("run"))
        .args(args);
    for mut step in is_run.then_some(build).into_iter().chain([driver]) {
        if let Err(code) = foreground(&mut step) {
            return code;
        }
    }
    ExitCode::SUCCESS
}

/// Runs the kernel's runner in the caller's folder, to which the user's paths are relative.
pub(crate) fn os(root: &Path, args: &[String]) -> ExitCode {
    if !packages::QEMU.is_there() {
        eprintln!("note: {}", packages::QEMU.absence());
    }
    let workspace = root.join("kernel");
    let mut runner = setup::cargo(&workspace);
    runner
        .current_dir(".")
        .args(["run", "--quiet", "--manifest-path"])
        .arg(workspace.join("Cargo.toml"))
        .args(["-p", "os-runner", "--"])
        .args(args);
    foreground(&mut runner).map_or_else(|code| code, |()| ExitCode::SUCCESS)
}

pub(crate) fn foreground(command: &mut Command) -> Result<(), ExitCode> {
    eprintln!("$ {}", run::shown(command));
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(status
            .code()
            .and_then(|code| u8::try_from(code).ok())
            .map_or(ExitCode::FAILURE, ExitCode::from)),
        Err(error) => {
            eprintln!(
                "error: cannot start {}: {error}",
                command.get_program().display()
            );
            Err(ExitCode::FAILURE)
        }
    }
}
