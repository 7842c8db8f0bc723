//! The suite's steps for kernel/, a separate workspace. All of its packages but the runner target
//! another machine.
//!
//! cargo receives each package by name, because with `--all` it would also format the crates
//! outside kernel/ that kernel/ depends on.

use std::process::Command;

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

/// Name of the run in the short suite, which boots all programs on two harts.
const SHORT_RUN: &str = "stripped";

fn cargo(context: &Context<'_>, args: &[&str]) -> Command {
    let mut command = setup::cargo(&context.root.join("kernel"));
    command.args(args);
    command
}

pub(crate) fn fmt(context: &Context<'_>) -> Result<(), String> {
    let mut command = cargo(context, &["fmt", "--check"]);
    command.args(PACKAGES.iter().flat_map(|name| ["--package", name]));
    // rustfmt colours its differences even in a file.
    command.args(["--", "--color", "never"]);
    context.run(command)
}

/// Runs the lints for the host and for the target, with and without the kernel's own tests.
///
/// # Errors
/// The error of the command that failed.
pub(crate) fn clippy(context: &Context<'_>) -> Result<(), String> {
    let bare = ["--target", BARE_TARGET];
    let packages: [&[&str]; 5] = [
        &["--all-targets"],
        &["-p", "os-kernel"],
        &["-p", "os-kernel", "--features", "selftest,kernel-threads"],
        &["-p", "os-kernel", "--features", "selftest,isolated"],
        // These packages have no `cargo test` tests, which need a library that the target lacks.
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
        context.run(command)?;
    }
    Ok(())
}

pub(crate) fn build(context: &Context<'_>) -> Result<(), String> {
    if !context.tools.has(Tool::BareTarget) {
        return Ok(());
    }
    context.run(cargo(context, &["test", "--quiet", "--no-run"]))?;
    let build = ["run", "--quiet", "-p", "os-runner", "--", "build"];
    context.run(cargo(context, &build))
}

/// Runs the host tests; then boots kernel and programs, and fails on a panic, a time-out or a
/// missing last line.
pub(crate) fn test(context: &Context<'_>) -> Verdict {
    context.run(cargo(context, &["test", "--quiet"]))?;
    if !QEMU.is_installed() {
        return Ok(Done::Skipped(QEMU.absence()));
    }
    let mut boot = cargo(
        context,
        &["run", "--quiet", "-p", "os-runner", "--", "test"],
    );
    if !context.full {
        boot.args(["--only", SHORT_RUN]);
    }
    context.run(boot)?;
    Ok(Done::Passed(String::new()))
}
