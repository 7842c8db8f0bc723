//! Steps that run tests, examples and programs.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::process::Command;

use serde_json::Value;

use super::common::{SHOW_SKIPS, cargo, join_errors, need, rust_files, stem};
use crate::confine;
use crate::os;
use crate::setup::{self, Tool};
use crate::step::{Context, Done, Verdict};

/// Tests of the runtime that also run without privileges.
const UNPRIVILEGED_TESTS: [&str; 8] = [
    "async_fd",
    "datagrams",
    "descriptors",
    "file_system",
    "files",
    "files_errors",
    "net",
    "unix",
];

const UNIT_TEST_ARGS: [&str; 3] = ["--lib", "--bins", "--tests"];

pub(super) fn unit(context: &Context<'_>) -> Verdict {
    tests(context, &UNIT_TEST_ARGS)
}

pub(super) fn build(context: &Context<'_>) -> Result<(), String> {
    let mut command = cargo(context, ["test", "--workspace", "--no-run"]);
    command.args(UNIT_TEST_ARGS);
    context.run(command)
}

pub(super) fn doc_tests(context: &Context<'_>) -> Verdict {
    tests(context, &["--doc"])
}

/// Runs `cargo test` over the workspace. Without io_uring all I/O uses the readiness driver
/// (epoll), which does not count as a pass.
pub(super) fn tests(context: &Context<'_>, targets: &[&str]) -> Verdict {
    let mut command = cargo(context, ["test", "--workspace", "--no-fail-fast"]);
    command.args(targets).args(SHOW_SKIPS);
    context.run_tests(command)?;
    match context.io_uring {
        Ok(()) => context.tests_passed(),
        Err(reason) => Ok(Done::Skipped(format!(
            "{reason}: all passed, but on the readiness driver"
        ))),
    }
}

/// Runs the I/O tests on the readiness driver (epoll); tests that need io_uring print
/// `skipped: REASON` and are counted. Then runs the tests of `ring`, and of the runtime's sockets
/// and files, as a user without privileges.
///
/// The command names the whole workspace without the core, so that the features are those of `unit`
/// and nothing is built again; the unit tests of the other libraries take a second.
pub(super) fn readiness(context: &Context<'_>) -> Verdict {
    let run = |args: &[&str], unprivileged: bool| {
        let mut command = cargo(context, ["test", "--no-fail-fast"]);
        command.args(args).args(SHOW_SKIPS);
        confine::wrap_tests(&mut command, context.root, unprivileged)?;
        context.run_tests(command)
    };
    const PACKAGES: [&str; 3] = ["--workspace", "--exclude", "upshift-core"];
    let ring = test_programs(context, "upshift-ring")?;
    let runtime = test_programs(context, "upshift")?;
    let with_io = ring.iter().chain(&runtime).map(String::as_str);
    let mut results = vec![run(
        &[&PACKAGES[..], &["--lib"], &test_args(with_io)].concat(),
        false,
    )];
    if is_root() && has_setpriv() {
        let unprivileged_tests = ring.iter().map(String::as_str).chain(UNPRIVILEGED_TESTS);
        results.push(run(&["-p", "upshift-ring", "--lib"], true));
        results.push(run(
            &[&PACKAGES[..], &test_args(unprivileged_tests)].concat(),
            true,
        ));
    }
    join_errors(results)?;
    context.tests_passed()
}

/// Returns `--test NAME` for each name, without duplicates.
fn test_args<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let names: BTreeSet<_> = names.collect();
    names
        .into_iter()
        .flat_map(|name| ["--test", name])
        .collect()
}

fn test_programs(context: &Context<'_>, package: &str) -> Result<Vec<String>, String> {
    let mut command = cargo(
        context,
        [
            "metadata",
            "--format-version",
            "1",
            "--no-deps",
            "--offline",
        ],
    );
    let output = command
        .output()
        .map_err(|error| format!("cargo metadata: {error}"))?;
    let metadata: Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("cargo metadata: {error}"))?;
    let array = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let packages = array(&metadata["packages"]);
    let package = packages.iter().find(|entry| entry["name"] == package);
    let targets = package.map_or_else(Vec::new, |package| array(&package["targets"]));
    let is_test = |target: &&Value| array(&target["kind"]).iter().any(|kind| kind == "test");
    let names = targets
        .iter()
        .filter(is_test)
        .filter_map(|target| target["name"].as_str());
    Ok(names.map(str::to_owned).collect())
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn has_setpriv() -> bool {
    let output = Command::new("setpriv").arg("--version").output();
    output.is_ok_and(|output| output.status.success())
}

pub(super) fn os(context: &Context<'_>) -> Verdict {
    need!(context, Tool::BareTarget);
    os::test(context)
}

/// Builds the examples, and the other parts of the debug build that the steps use.
pub(super) fn build_examples(context: &Context<'_>) -> Result<(), String> {
    context.run(setup::debug_build(context.root))
}

pub(super) fn examples(context: &Context<'_>) -> Verdict {
    if let Err(reason) = context.io_uring {
        return Ok(Done::Skipped(format!("{reason}: built, not run")));
    }
    let mut count = 0;
    let files = rust_files(&context.root.join("linux/runtime/examples"))
        .map_err(|error| error.to_string())?;
    join_errors(files.iter().map(|file| {
        let text = fs::read_to_string(file)
            .map_err(|error| format!("cannot read {}: {error}", file.display()))?;
        if !text.starts_with("//!") {
            return Err(format!(
                "{} does not begin with a //! line that describes the example",
                file.display()
            ));
        }
        let mut command = Command::new(context.target.join("debug/examples").join(stem(file)));
        command.current_dir(context.root);
        setup::without_cargo_run(&mut command);
        count += 1;
        context.run(command)
    }))?;
    if count == 0 {
        return Ok(Done::Skipped(
            "no example in linux/runtime/examples".to_owned(),
        ));
    }
    Ok(Done::Passed(format!("{count} examples")))
}

/// Builds the demo in advance, while other steps run.
pub(super) fn build_demo(context: &Context<'_>) -> Result<(), String> {
    if context.io_uring.is_err() {
        return Ok(());
    }
    context.run(cargo(context, ["build", "--release"]))
}

pub(super) fn demo(context: &Context<'_>) -> Verdict {
    if let Err(reason) = context.io_uring {
        return Ok(Done::Skipped(reason.clone()));
    }
    let report = context.target.join("demo-report.html");
    match fs::remove_file(&report) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(format!("cannot remove {}: {error}", report.display()));
        }
        _ => {}
    }
    let mut command = cargo(
        context,
        ["run", "--release", "--", "demo", "--quick", "--report"],
    );
    command.arg(&report);
    context.run(command)?;
    let length = fs::metadata(&report).map(|found| found.len()).unwrap_or(0);
    if length == 0 {
        return Err(format!(
            "the demo ended well but {} is empty or missing",
            report.display()
        ));
    }
    Ok(Done::Passed(format!(
        "report of {} KiB",
        length.div_ceil(1024)
    )))
}
