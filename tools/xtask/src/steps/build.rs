//! Steps that check or build without running the tests (formatting, lints, documentation, other
//! targets), and the step that counts instructions.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::columns;
use super::common::{cargo, join_errors, need, passed};
use crate::book;
use crate::example_commands;
use crate::host;
use crate::mpi;
use crate::os;
use crate::package;
use crate::packages;
use crate::setup::{self, BARE_TARGET, DENY, Tool};
use crate::step::{Context, Done, Verdict};

fn has_bench(context: &Context<'_>) -> bool {
    context.root.join("bench/Cargo.toml").exists()
}

pub(super) fn fmt(context: &Context<'_>) -> Verdict {
    need!(context, Tool::Rustfmt);
    let check = |manifest: &'static str| {
        let args = ["fmt", "--all", "--check", "--manifest-path", manifest];
        // rustfmt colours its differences even in a file.
        let plain = ["--", "--color", "never"];
        context.run(cargo(context, args.into_iter().chain(plain)))
    };
    let bench = has_bench(context).then_some("bench/Cargo.toml");
    let programs = [
        "Cargo.toml",
        "compat/go/Cargo.toml",
        "compat/programs/Cargo.toml",
        "examples/service/Cargo.toml",
        "examples/telemetry/Cargo.toml",
    ];
    let manifests = programs.into_iter().chain(bench);
    join_errors(
        manifests
            .map(check)
            .chain([os::fmt(context), mpi::fmt(context)])
            .chain([columns::check(context.root)]),
    )?;
    passed()
}

pub(super) fn clippy(context: &Context<'_>) -> Verdict {
    need!(context, Tool::Clippy);
    context.run(cargo(
        context,
        [
            "clippy",
            "--workspace",
            "--all-targets",
            "--keep-going",
            "--",
            "-D",
            "warnings",
        ],
    ))?;
    if !context.full {
        return passed();
    }
    // Builds `upshift` as a dependent gets it, because in the workspace other packages enable all
    // of its features.
    let alone = ["clippy", "-p", "upshift", "--lib", "--", "-D", "warnings"];
    context.run(cargo(context, alone))?;
    if !context.tools.has(Tool::BareTarget) {
        let absence = Tool::BareTarget.absence();
        return Ok(Done::Skipped(format!(
            "{absence}: kernel/ was not checked, the rest passed"
        )));
    }
    os::clippy(context)?;
    passed()
}

/// Checks the dependencies against deny.toml.
pub(super) fn deny(context: &Context<'_>) -> Verdict {
    if !DENY.is_installed(context.root) && host::is_ci() {
        context.run(DENY.installer(context.root))?;
    }
    if !DENY.is_installed(context.root) {
        return Ok(Done::Skipped(DENY.absence()));
    }
    // The check reads every crate of Cargo.lock, also those that no build for Linux downloads.
    context.run(cargo(context, ["fetch", "--locked"]))?;
    let check = |checks: &[&'static str]| {
        let args = ["deny", "--offline", "check"];
        let command = cargo(context, args.into_iter().chain(checks.iter().copied()));
        context.run(command)
    };
    check(&["licenses", "bans", "sources"])?;
    if !has_advisories() {
        let reason = "no database of advisories (`cargo deny fetch`): the rest passed";
        return Ok(Done::Skipped(reason.to_owned()));
    }
    check(&["advisories"])?;
    passed()
}

fn has_advisories() -> bool {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let databases = home.and_then(|home| fs::read_dir(home.join("advisory-dbs")).ok());
    databases.is_some_and(|mut databases| {
        databases.any(|entry| entry.is_ok_and(|entry| entry.path().is_dir()))
    })
}

pub(super) fn no_std(context: &Context<'_>) -> Verdict {
    need!(context, Tool::BareTarget);
    let mut command = cargo(
        context,
        ["build", "-p", "upshift-core", "--target", BARE_TARGET],
    );
    // In the tests' target directory this build would wait for the builds of the tests.
    command.env("CARGO_TARGET_DIR", context.target.join("bare"));
    context.run(command)?;
    passed()
}

pub(super) fn docs(context: &Context<'_>) -> Verdict {
    let mut command = cargo(context, ["doc", "--workspace", "--no-deps"]);
    command.env("RUSTDOCFLAGS", "-D warnings");
    context.run(command)?;
    let links = book::check_links(context.root)?;
    let paths = book::check_paths(context.root)?;
    let examples = example_commands::check(context.root)?;
    let summary =
        format!("{links} links, {paths} named paths, {examples} commands that run an example");
    Ok(Done::Passed(summary))
}

/// Tries `cargo package`, `cargo install`, the Debian package and the image, with the debug build
/// of the command.
pub(super) fn package(context: &Context<'_>) -> Verdict {
    if !host::has_program("dpkg-deb") {
        return Ok(Done::Skipped("dpkg-deb is not installed".to_owned()));
    }
    context.run(setup::debug_build(context.root))?;
    let binary = context.target.join("debug/upshift");
    // Same as `cargo publish`, without the registry and without building each crate again.
    let pack = ["package", "--workspace", "--no-verify", "--allow-dirty"];
    context.run(cargo(context, pack.into_iter().chain(["--offline"])))?;
    // Uses the profile whose crates are already built.
    let installed = context.target.join("xtask/installed");
    let mut install = cargo(context, ["install", "--debug", "--locked", "--no-track"]);
    install.args(["--force", "--path", "tools/cli", "--root"]);
    install.arg(&installed);
    context.run(install)?;
    let mut version = Command::new(installed.join("bin/upshift"));
    version.arg("--version");
    context.run(version)?;
    let packaged = package::package(context.root, &binary);
    let (_, package) = packaged.map_err(|error| error.to_string())?;
    let imaged = package::image::image(context.root, &binary);
    let (_, image) = imaged.map_err(|error| error.to_string())?;
    let results = format!("{package}; {image}");
    // A trial that did not run reports that it did not.
    if results.contains("not ") {
        return Ok(Done::Skipped(results));
    }
    Ok(Done::Passed(results))
}

fn skip_reason(context: &Context<'_>) -> Option<String> {
    if let Err(reason) = context.io_uring {
        return Some(reason.clone());
    }
    let valgrind = &packages::VALGRIND;
    (!valgrind.is_installed()).then(|| valgrind.absence())
}

pub(super) fn build_counts(context: &Context<'_>) -> Result<(), String> {
    if skip_reason(context).is_some() {
        return Ok(());
    }
    let args = ["build", "--release", "-p", "upshift-counts"];
    context.run(cargo(context, args))
}

/// Counts instructions, and compares the counts with the table of `scheduler/counts`.
pub(super) fn counts(context: &Context<'_>) -> Verdict {
    if let Some(reason) = skip_reason(context) {
        return Ok(Done::Skipped(reason));
    }
    let args = ["run", "--release", "-p", "upshift-counts", "--", "check"];
    context.run(cargo(context, args))?;
    passed()
}

pub(super) fn bench(context: &Context<'_>) -> Verdict {
    if !has_bench(context) {
        return Ok(Done::Skipped("no bench/Cargo.toml".to_owned()));
    }
    let driver = ["--manifest-path", "bench/Cargo.toml", "-p", "upshift-bench"];
    context.run(cargo(
        context,
        ["check", "--all-targets"].into_iter().chain(driver),
    ))?;
    passed()
}
