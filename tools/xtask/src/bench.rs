//! `cargo xtask bench`: builds the command and starts the benchmark driver, after listing the
//! programs to compare with that cannot be built here. A full run also measures MPI and the kernel.
//! `cargo xtask os` starts the kernel's runner.
//!
//! The started program inherits the terminal, receives the signals and determines the exit status.
//! No command has a time limit, since only the user knows how long a measurement may take.

use std::path::Path;
use std::process::{Command, ExitCode};

use crate::{mpi, packages, run, setup};

/// Subcommands of the driver that need no build, unlike `run`.
const COMMANDS_WITHOUT_BUILD: [&str; 2] = ["drop", "render"];

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
        .is_some_and(|word| COMMANDS_WITHOUT_BUILD.contains(&word.as_str()));
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
    if is_whole_run(args) {
        return measure_other_workspaces(root);
    }
    ExitCode::SUCCESS
}

/// Returns whether the arguments are those of a full run of all sections, into the project's pages.
fn is_whole_run(args: &[String]) -> bool {
    let other = ["--only", "--out", "--help", "-h"];
    let is_other = |word: &String| other.iter().any(|option| word.starts_with(option));
    args.iter().any(|word| word == "--full") && !args.iter().any(is_other)
}

/// Measures the two workspaces with pages of their own, MPI and the kernel. The kernel's evaluation
/// does not repeat the points that it has already measured at this commit.
fn measure_other_workspaces(root: &Path) -> ExitCode {
    let code = mpi::command(root, &["bench".to_owned()]);
    if code != ExitCode::SUCCESS {
        return code;
    }
    os(root, &["evaluate".to_owned(), "--docs".to_owned()])
}

/// Runs the kernel's runner in the caller's folder, to which the user's paths are relative.
pub(crate) fn os(root: &Path, args: &[String]) -> ExitCode {
    if !packages::QEMU.is_installed() {
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

/// Runs a command in the terminal. If it fails, the error is its exit status.
pub(crate) fn foreground(command: &mut Command) -> Result<(), ExitCode> {
    eprintln!("$ {}", run::command_line(command));
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

#[cfg(test)]
mod tests {
    use super::is_whole_run;

    #[test]
    fn a_full_run_of_some_sections_measures_nothing_else() {
        let is_whole = |text: &str| {
            let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
            is_whole_run(&words)
        };
        assert!(is_whole("--full"));
        assert!(!is_whole("--full --only micro"));
        assert!(!is_whole("--full --out=elsewhere"));
        assert!(!is_whole("--quick"));
    }
}
