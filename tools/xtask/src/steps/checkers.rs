//! Steps that run tests under Loom, Miri and the sanitizers.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::common::{SHOW_SKIPS, cargo, default_env, need, rust_files, stem};
use crate::layout;
use crate::setup::Tool;
use crate::step::{Context, Done, Verdict};

/// Packages that are tested under AddressSanitizer.
const SANITIZED: [&str; 2] = ["upshift-ring", "upshift"];

/// Models of the core that take less than a second.
const SHORTEST_MODELS: [&str; 3] = ["loom_inbox", "loom_search", "loom_state"];

/// Runs the Loom models. They are optimized, because Loom runs each model thousands of times, and
/// have assertions, which Loom checks in each run. One command covers all crates, so that they
/// share dependencies.
pub(super) fn loom(context: &Context<'_>) -> Verdict {
    let mut command = cargo(context, ["test", "--release", "--no-fail-fast"]);
    if context.full {
        command.args(["--test", "loom*"]);
        for path in crates_with_loom_tests(context.root).map_err(|error| error.to_string())? {
            let manifest = fs::read_to_string(path.join("Cargo.toml"));
            let manifest = manifest.map_err(|error| error.to_string())?;
            let mut names = manifest
                .lines()
                .filter_map(|line| line.strip_prefix("name = "));
            let name = names.next().ok_or("a package without a name")?;
            command.args(["-p", name.trim_matches('"')]);
        }
    } else {
        command.args(["-p", "upshift-core"]);
        command.args(SHORTEST_MODELS.iter().flat_map(|model| ["--test", model]));
    }
    command
        .args(SHOW_SKIPS)
        .env("RUSTFLAGS", "--cfg loom")
        .env("CARGO_TARGET_DIR", context.target.join("loom"))
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
        .env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true");
    default_env(&mut command, "LOOM_MAX_PREEMPTIONS", "3");
    context.run(command)?;
    context.tests_passed()
}

/// Returns the folders of crates that have a file tests/loom*.rs, sorted.
fn crates_with_loom_tests(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut folders = Vec::new();
    for path in layout::crates(root)? {
        let is_loom = |path: &PathBuf| stem(path).starts_with("loom");
        if rust_files(&path.join("tests"))?.iter().any(is_loom) {
            folders.push(path);
        }
    }
    Ok(folders)
}

/// Runs the tests under Miri, which hides all environment variables from them except the two that
/// proptest reads.
pub(super) fn miri(context: &Context<'_>) -> Verdict {
    need!(context, Tool::Nightly, Tool::Miri, Tool::RustSrc);
    let mut command = cargo(
        context,
        [
            "+nightly",
            "miri",
            "test",
            "--no-fail-fast",
            "-p",
            "upshift-core",
        ],
    );
    command.args(SHOW_SKIPS);
    command.env("CARGO_TARGET_DIR", context.target.join("miri"));
    default_env(
        &mut command,
        "MIRIFLAGS",
        "-Zmiri-strict-provenance -Zmiri-symbolic-alignment-check -Zmiri-env-forward=PROPTEST_CASES \
         -Zmiri-env-forward=PROPTEST_DISABLE_FAILURE_PERSISTENCE",
    );
    // Generated cases take half of the time, so Miri runs only two of each test; the step `unit`
    // runs 256.
    default_env(&mut command, "PROPTEST_CASES", "2");
    // Saving a failing case reads the working directory, which Miri refuses.
    default_env(&mut command, "PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true");
    context.run(command)?;
    context.tests_passed()
}

/// Returns the target for AddressSanitizer, or the reason why the sanitizer cannot be used. With an
/// explicit target, procedural macros and build scripts are built without the sanitizer.
fn asan_target(context: &Context<'_>) -> Result<String, String> {
    if !context.tools.has(Tool::Nightly) {
        return Err(Tool::Nightly.absence());
    }
    context.io_uring.as_ref().map_err(Clone::clone)?;
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    if !context.tools.nightly_has_target(&target) {
        return Err(format!("nightly cannot build for {target}"));
    }
    Ok(target)
}

fn asan_tests(context: &Context<'_>, target: &str) -> Command {
    let args = ["+nightly", "test", "--lib", "--tests", "--target", target];
    let mut command = cargo(context, args);
    command
        .args(SANITIZED.iter().flat_map(|name| ["-p", name]))
        .env("RUSTFLAGS", "-Zsanitizer=address --cfg sanitized")
        .env("CARGO_TARGET_DIR", context.target.join("asan"));
    default_env(&mut command, "ASAN_OPTIONS", "detect_leaks=0");
    command
}

pub(super) fn build_asan(context: &Context<'_>) -> Result<(), String> {
    let Ok(target) = asan_target(context) else {
        return Ok(());
    };
    let mut command = asan_tests(context, &target);
    command.arg("--no-run");
    context.run(command)
}

pub(super) fn asan(context: &Context<'_>) -> Verdict {
    let target = match asan_target(context) {
        Ok(target) => target,
        Err(reason) => return Ok(Done::Skipped(reason)),
    };
    let mut command = asan_tests(context, &target);
    command.arg("--no-fail-fast").args(SHOW_SKIPS);
    context.run_tests(command)?;
    context.tests_passed()
}

/// Runs the tests of suspended polls under ThreadSanitizer. Tests that panic, or that need a signal
/// to interrupt a poll, are left out, because the sanitizer delays signals.
pub(super) fn tsan(context: &Context<'_>) -> Verdict {
    need!(context, Tool::Nightly, Tool::RustSrc);
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut command = cargo(context, ["+nightly", "test", "-Zbuild-std"]);
    command
        .args(["--target", &target, "-p", "upshift"])
        .args(["--test", "preempting", "order::"])
        .env("RUSTFLAGS", "-Zsanitizer=thread --cfg sanitized")
        .env("CARGO_TARGET_DIR", context.target.join("tsan"));
    context.run(command)?;
    context.tests_passed()
}
