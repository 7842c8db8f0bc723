//! What the suite asks of kernel/, a workspace of its own whose packages are for another machine, but for the runner.
//!
//! Each package is named: with `--all`, cargo would format the crates outside kernel/ that it uses as well.

use std::process::Command;
use std::time::Duration;

use crate::packages::QEMU;
use crate::setup::{self, BARE_TARGET, Tool};
use crate::step::{Context, Done, Verdict};

const PACKAGES: [&str; 6] = [
    "os-abi",
    "os-kernel",
    "os-pages",
    "os-runner",
    "os-user",
    "os-vdso",
];

fn cargo(context: &Context<'_>, args: &[&str]) -> Command {
    let mut command = setup::cargo(&context.root.join("kernel"));
    command.args(args);
    command
}

const fn minutes(n: u64) -> Duration {
    Duration::from_secs(60 * n)
}

/// Formatting of every package.
///
/// # Errors
/// Those of the command.
pub(crate) fn fmt(context: &Context<'_>) -> Result<(), String> {
    let mut command = cargo(context, &["fmt", "--check"]);
    command.args(PACKAGES.iter().flat_map(|name| ["--package", name]));
    // rustfmt colours its differences even when they go to a file.
    command.args(["--", "--color", "never"]);
    context.run(command, minutes(1))
}

/// Lints: of what runs here, and of what runs there, with the kernel's own tests and without.
///
/// # Errors
/// Those of the commands.
pub(crate) fn clippy(context: &Context<'_>) -> Result<(), String> {
    let bare = ["--target", BARE_TARGET];
    let packages: [&[&str]; 4] = [
        &["--all-targets"],
        &["-p", "os-kernel"],
        &["-p", "os-kernel", "--features", "selftest,kernel-threads"],
        // They have no tests of cargo's kind, which need a library that the target lacks.
        &[
            "-p", "os-pages", "-p", "os-user", "-p", "os-vdso", "--lib", "--bins",
        ],
    ];
    for (number, package) in packages.into_iter().enumerate() {
        let mut command = cargo(context, &["clippy"]);
        command.args(package);
        if number > 0 {
            command.args(bare);
        }
        command.args(["--", "-D", "warnings"]);
        context.run(command, minutes(4))?;
    }
    Ok(())
}

/// Builds what runs here, kernel and programs.
///
/// # Errors
/// Those of the commands.
pub(crate) fn build(context: &Context<'_>) -> Result<(), String> {
    if !context.tools.has(Tool::BareTarget) {
        return Ok(());
    }
    context.run(cargo(context, &["test", "--quiet", "--no-run"]), minutes(3))?;
    let build = ["run", "--quiet", "-p", "os-runner", "--", "build"];
    context.run(cargo(context, &build), minutes(10))
}

/// Tests what runs here; then boots kernel and programs, and fails on a panic, a time-out or a missing last line.
pub(crate) fn test(context: &Context<'_>) -> Verdict {
    context.run(cargo(context, &["test", "--quiet"]), minutes(3))?;
    if !QEMU.is_there() {
        return Ok(Done::Skipped(QEMU.absence()));
    }
    let boot = ["run", "--quiet", "-p", "os-runner", "--", "test"];
    context.run(cargo(context, &boot), minutes(15))?;
    Ok(Done::Passed(String::new()))
}
