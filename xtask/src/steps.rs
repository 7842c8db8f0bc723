//! What `cargo xtask test` tests, and `soak` for longer: one entry and one function per step, in the order in which they run.
//!
//! A step says what is absent by `Done::Skipped`; it fails by `Err`. Limits are several times what a machine with two
//! CPUs needs from nothing; they exist so that a hang is a failure. Builds with other compiler flags have target
//! directories of their own, so that they do not throw each other's work away.

mod build;
mod checkers;
mod soak;
mod tests;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::cpp;
use crate::mpi;
use crate::os;
use crate::setup;
use crate::suite::{Context, Done, Verdict};

/// One line of the report.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    /// Left out by `--quick`.
    pub(crate) slow: bool,
    /// What of it runs beside others.
    pub(crate) beside: Option<Beside>,
    pub(crate) run: fn(&Context<'_>) -> Verdict,
}

/// What of a step neither measures time nor depends on it, so that it runs beside that of another one; with the folder that it
/// builds in, a word for each.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Beside {
    Whole(&'static str),
    /// What it runs is built ahead; its tests have the machine to themselves.
    Build(&'static str, fn(&Context<'_>) -> Result<(), String>),
}

impl Beside {
    pub(crate) fn folder(&self) -> &'static str {
        match self {
            Self::Whole(folder) | Self::Build(folder, _) => folder,
        }
    }
}

impl Step {
    const fn whole(self, folder: &'static str) -> Step {
        Step {
            beside: Some(Beside::Whole(folder)),
            ..self
        }
    }

    const fn built_by(
        self,
        folder: &'static str,
        build: fn(&Context<'_>) -> Result<(), String>,
    ) -> Step {
        Step {
            beside: Some(Beside::Build(folder, build)),
            ..self
        }
    }
}

const fn step(name: &'static str, what: &'static str, run: fn(&Context<'_>) -> Verdict) -> Step {
    Step {
        name,
        what,
        slow: false,
        beside: None,
        run,
    }
}

const fn slow(name: &'static str, what: &'static str, run: fn(&Context<'_>) -> Verdict) -> Step {
    Step {
        name,
        what,
        slow: true,
        beside: None,
        run,
    }
}

pub(crate) static STEPS: [Step; 19] = [
    // What is whole beside others; the longest of one thread first.
    step(
        "fmt",
        "formatting, bench/, compat/, examples/, mpi/ and os/ too",
        build::fmt,
    )
    .whole("none"),
    slow("miri", "core under Miri, strict provenance", checkers::miri).whole("miri"),
    step(
        "clippy",
        "lints, os/ too, warnings are errors",
        build::clippy,
    )
    .whole("debug"),
    slow(
        "loom",
        "concurrency models, all interleavings",
        checkers::loom,
    )
    .whole("loom"),
    step(
        "deny",
        "licences, sources and advisories of dependencies",
        build::deny,
    )
    .whole("none"),
    step(
        "docs",
        "documentation and its links, no warnings",
        build::docs,
    )
    .whole("debug"),
    step(
        "no_std",
        "core builds without an operating system",
        build::no_std,
    )
    .whole("bare"),
    slow("bench", "the benchmark driver compiles", build::bench).whole("bench"),
    // What has the machine to itself, but for what it builds.
    step("unit", "unit and integration tests", tests::unit).built_by("debug", tests::build),
    step("doc", "examples in the documentation", tests::doc_tests),
    step(
        "readiness",
        "ring and runtime where io_uring is forbidden, also without rights",
        tests::readiness,
    ),
    slow(
        "asan",
        "ring and runtime under AddressSanitizer",
        checkers::asan,
    )
    .built_by("asan", checkers::build_asan),
    step("examples", "every example runs to its end", tests::examples)
        .built_by("debug", tests::build_examples),
    slow(
        "package",
        "a Debian package, installed and removed on trial",
        build::package,
    ),
    slow(
        "cpp",
        "C++20 over the C ABI: compilers, sanitizers, servers",
        cpp::step,
    ),
    step("os", "the kernel in QEMU, at 1, 2 and 4 harts", tests::os).built_by("os", os::build),
    step(
        "mpi",
        "ranks on Open MPI: lints, tests with mpirun",
        mpi::step,
    )
    .built_by("mpi", mpi::build),
    slow(
        "demo",
        "upshift demo --quick writes its report",
        tests::demo,
    )
    .built_by("quick", tests::build_demo),
    slow(
        "counts",
        "instructions of operations, against the table",
        build::counts,
    )
    .built_by("release", build::build_counts),
];

/// What `cargo xtask soak` runs: the same things for long.
pub(crate) static SOAKS: [Step; 7] = [
    step(
        "sim",
        "a million generated cases against the laws, and loads against the rule",
        soak::sim,
    ),
    step(
        "daemon",
        "a million messages, random pages, killed daemons, a CPU that is unplugged, a clock that is set",
        soak::daemon_soak,
    ),
    step(
        "fuzz",
        "frames, heads, priorities, rules and settings of the web server, a minute each",
        soak::fuzz,
    ),
    step("tsan", "preemption under ThreadSanitizer", checkers::tsan),
    step(
        "cpp",
        "C++ and Rust under ThreadSanitizer, 51,000 cancellations",
        cpp::soak,
    ),
    step(
        "torture",
        "everyday crates and a spinning allocator with preemption, a minute each",
        soak::torture,
    ),
    step(
        "crowded",
        "preemption beside programs that want the CPU, 20 times",
        soak::crowded,
    ),
];

/// Arguments after which a test that passes says what it has printed: `skipped: ` and why. The suite counts these lines.
const SHOW_SKIPS: [&str; 2] = ["--", "--show-output"];

const fn minutes(n: u64) -> Duration {
    Duration::from_secs(60 * n)
}

/// Ends the step as skipped when a tool is missing.
macro_rules! need {
    ($context:expr, $($tool:expr),+) => {
        $(if !$context.tools.has($tool) {
            return Ok(Done::Skipped($tool.absence()));
        })+
    };
}
use need;

fn cargo<'a>(context: &Context<'_>, args: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = setup::cargo(context.root);
    command.args(args);
    command
}

fn passed() -> Verdict {
    Ok(Done::Passed(String::new()))
}

/// Joins what several commands of one step have found wrong.
fn all(results: impl IntoIterator<Item = Result<(), String>>) -> Result<(), String> {
    let errors: Vec<_> = results.into_iter().filter_map(Result::err).collect();
    if errors.is_empty() {
        Ok(())
    } else {
        Err(errors.join("; "))
    }
}

/// Sets a variable for the command unless the user has set it.
fn default_env(command: &mut Command, name: &str, value: &str) {
    if std::env::var_os(name).is_none() {
        command.env(name, value);
    }
}

/// The files *.rs of a folder, sorted; none when it does not exist.
fn rust_files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut files = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<io::Result<Vec<_>>>()?;
    files.retain(|path| path.extension().is_some_and(|extension| extension == "rs"));
    files.sort();
    Ok(files)
}

fn stem(path: &Path) -> String {
    path.file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}
