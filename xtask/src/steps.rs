//! What `cargo xtask test` tests, and `soak` for longer: one entry and one function per step, in the order in which they run.
//!
//! A step says what is absent by `Done::Skipped`; it fails by `Err`. Limits are several times what a machine with two
//! CPUs needs from nothing; they exist so that a hang is a failure. Builds with other compiler flags have target
//! directories of their own, so that they do not throw each other's work away.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::book;
use crate::confine;
use crate::cpp;
use crate::mpi;
use crate::os;
use crate::packages;
use crate::setup::{self, BARE_TARGET, Tool};
use crate::suite::{Context, Done, Verdict};

/// One line of the report.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    /// Left out by `--quick`.
    pub(crate) slow: bool,
    pub(crate) run: fn(&Context<'_>) -> Verdict,
}

const fn step(name: &'static str, what: &'static str, run: fn(&Context<'_>) -> Verdict) -> Step {
    Step {
        name,
        what,
        slow: false,
        run,
    }
}

const fn slow(name: &'static str, what: &'static str, run: fn(&Context<'_>) -> Verdict) -> Step {
    Step {
        name,
        what,
        slow: true,
        run,
    }
}

pub(crate) static STEPS: [Step; 17] = [
    step(
        "fmt",
        "formatting, bench/, compat/, examples/, mpi/ and os/ too",
        fmt,
    ),
    step("clippy", "lints, os/ too, warnings are errors", clippy),
    step("unit", "unit and integration tests", unit),
    step("doc", "examples in the documentation", doc_tests),
    step(
        "readiness",
        "ring and runtime where io_uring is forbidden, also without rights",
        readiness,
    ),
    step("no_std", "core builds without an operating system", no_std),
    slow("loom", "concurrency models, all interleavings", loom),
    slow("miri", "core under Miri, strict provenance", miri),
    slow("asan", "ring and runtime under AddressSanitizer", asan),
    step("examples", "every example runs to its end", examples),
    step("docs", "documentation and its links, no warnings", docs),
    slow(
        "cpp",
        "C++20 over the C ABI: compilers, sanitizers, servers",
        cpp::step,
    ),
    step("os", "the kernel in QEMU, at 1, 2 and 4 harts", os),
    step(
        "mpi",
        "ranks on Open MPI: lints, tests with mpirun",
        mpi::step,
    ),
    slow("demo", "upshift demo --quick writes its report", demo),
    slow(
        "counts",
        "instructions of operations, against the table",
        counts,
    ),
    slow("bench", "the benchmark driver compiles", bench),
];

/// What `cargo xtask soak` runs: the same things for long.
pub(crate) static SOAKS: [Step; 6] = [
    step(
        "sim",
        "a million generated cases against the laws, and loads against the rule",
        sim,
    ),
    step(
        "daemon",
        "a million messages, random pages, killed daemons, a CPU that is unplugged, a clock that is set",
        daemon_soak,
    ),
    step("tsan", "preemption under ThreadSanitizer", tsan),
    step(
        "cpp",
        "C++ and Rust under ThreadSanitizer, 51,000 cancellations",
        cpp::soak,
    ),
    step(
        "torture",
        "everyday crates and a spinning allocator with preemption, a minute each",
        torture,
    ),
    step(
        "crowded",
        "preemption beside programs that want the CPU, 20 times",
        crowded,
    ),
];

/// Arguments after which a test that passes says what it has printed: `skipped: ` and why. The suite counts these lines.
const SHOW_SKIPS: [&str; 2] = ["--", "--show-output"];

const SANITIZED: [&str; 2] = ["upshift-ring", "upshift"];

/// Tests of the runtime that are also run without rights.
const HUMBLE: [&str; 7] = [
    "async_fd",
    "datagrams",
    "descriptors",
    "file_system",
    "files",
    "net",
    "unix",
];

const EXAMPLE_LIMIT: Duration = Duration::from_secs(20);
const DEMO_LIMIT: Duration = Duration::from_secs(120);

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

fn has_bench(context: &Context<'_>) -> bool {
    context.root.join("bench/Cargo.toml").exists()
}

fn fmt(context: &Context<'_>) -> Verdict {
    need!(context, Tool::Rustfmt);
    let check = |manifest: &'static str| {
        let args = ["fmt", "--all", "--check", "--manifest-path", manifest];
        // rustfmt colours its differences even when they go to a file.
        let plain = ["--", "--color", "never"];
        context.run(cargo(context, args.into_iter().chain(plain)), minutes(1))
    };
    let bench = has_bench(context).then_some("bench/Cargo.toml");
    let programs = [
        "Cargo.toml",
        "compat/programs/Cargo.toml",
        "examples/service/Cargo.toml",
    ];
    let manifests = programs.into_iter().chain(bench);
    all(manifests
        .map(check)
        .chain([os::fmt(context), mpi::fmt(context)]))?;
    passed()
}

fn clippy(context: &Context<'_>) -> Verdict {
    need!(context, Tool::Clippy);
    context.run(
        cargo(
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
        ),
        minutes(8),
    )?;
    if !context.tools.has(Tool::BareTarget) {
        let absence = Tool::BareTarget.absence();
        return Ok(Done::Skipped(format!(
            "{absence}: not os/, the rest passed"
        )));
    }
    os::clippy(context)?;
    passed()
}

fn unit(context: &Context<'_>) -> Verdict {
    tests(context, &["--lib", "--bins", "--tests"], minutes(15))
}

fn doc_tests(context: &Context<'_>) -> Verdict {
    tests(context, &["--doc"], minutes(5))
}

/// `cargo test` over the workspace; without io_uring everything runs on readiness, which is then no pass.
fn tests(context: &Context<'_>, which: &[&str], limit: Duration) -> Verdict {
    let mut command = cargo(context, ["test", "--workspace", "--no-fail-fast"]);
    command.args(which);
    command.args(SHOW_SKIPS);
    context.run(command, limit)?;
    match context.io_uring {
        Ok(()) => context.tests_passed(),
        Err(reason) => Ok(Done::Skipped(format!(
            "{reason}: all passed, but on readiness"
        ))),
    }
}

/// The tests of what does I/O, on the driver for where there is no io_uring. Those that are about io_uring say so, and are counted.
/// Then those of ring, and of the runtime's sockets and files, as a user without rights.
fn readiness(context: &Context<'_>) -> Verdict {
    let run = |of: &[&str], humble: bool| {
        let mut command = cargo(context, ["test", "--no-fail-fast"]);
        command.args(of).args(SHOW_SKIPS);
        confine::tests(&mut command, context.root, humble)?;
        context.run(command, minutes(10))
    };
    let whole = ["-p", "upshift-ring", "-p", "upshift", "--lib", "--tests"];
    let some = HUMBLE.iter().flat_map(|name| ["--test", name]);
    let humble: Vec<_> = ["-p", "upshift"].into_iter().chain(some).collect();
    let mut results = vec![run(&whole, false)];
    if is_root() && has_setpriv() {
        results.push(run(&["-p", "upshift-ring", "--tests"], true));
        results.push(run(&humble, true));
    }
    all(results)?;
    context.tests_passed()
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn has_setpriv() -> bool {
    let asked = Command::new("setpriv").arg("--version").output();
    asked.is_ok_and(|answer| answer.status.success())
}

fn no_std(context: &Context<'_>) -> Verdict {
    need!(context, Tool::BareTarget);
    context.run(
        cargo(
            context,
            ["build", "-p", "upshift-core", "--target", BARE_TARGET],
        ),
        minutes(3),
    )?;
    passed()
}

/// Optimized, because the checker runs each model thousands of times; with assertions, because they are what it checks.
fn loom(context: &Context<'_>) -> Verdict {
    let crates =
        crates_with_loom_tests(&context.root.join("crates")).map_err(|error| error.to_string())?;
    if crates.is_empty() {
        return Ok(Done::Skipped("no crates/*/tests/loom*.rs".to_owned()));
    }
    all(crates.iter().map(|path| {
        let manifest = path.join("Cargo.toml");
        let mut command = cargo(
            context,
            [
                "test",
                "--release",
                "--no-fail-fast",
                "--test",
                "loom*",
                "--manifest-path",
            ],
        );
        command
            .arg(manifest.strip_prefix(context.root).unwrap_or(&manifest))
            .args(SHOW_SKIPS)
            .env("RUSTFLAGS", "--cfg loom")
            .env("CARGO_TARGET_DIR", context.target.join("loom"))
            .env("CARGO_PROFILE_RELEASE_LTO", "off")
            .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
            .env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true");
        default_env(&mut command, "LOOM_MAX_PREEMPTIONS", "3");
        context.run(command, minutes(6))
    }))?;
    context.tests_passed()
}

/// Folders of crates that have a file tests/loom*.rs, sorted.
fn crates_with_loom_tests(crates: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(crates)? {
        let path = entry?.path();
        let is_loom = |path: &PathBuf| stem(path).starts_with("loom");
        if rust_files(&path.join("tests"))?.iter().any(is_loom) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Miri hides the environment from the tests; the two variables that proptest reads are let through.
fn miri(context: &Context<'_>) -> Verdict {
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
    default_env(&mut command, "PROPTEST_CASES", "4");
    // Saving a failing case reads the working directory, which Miri refuses.
    default_env(&mut command, "PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true");
    context.run(command, minutes(10))?;
    context.tests_passed()
}

fn asan(context: &Context<'_>) -> Verdict {
    need!(context, Tool::Nightly);
    if let Err(reason) = context.io_uring {
        return Ok(Done::Skipped(reason.clone()));
    }
    // With a target named, procedural macros and build scripts are built without the sanitizer.
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    if !context.tools.nightly_has_target(&target) {
        return Ok(Done::Skipped(format!("nightly cannot build for {target}")));
    }
    let mut command = cargo(
        context,
        [
            "+nightly",
            "test",
            "--no-fail-fast",
            "--lib",
            "--tests",
            "--target",
            &target,
        ],
    );
    command
        .args(SANITIZED.iter().flat_map(|name| ["-p", name]))
        .args(SHOW_SKIPS)
        .env("RUSTFLAGS", "-Zsanitizer=address")
        .env("CARGO_TARGET_DIR", context.target.join("asan"));
    default_env(&mut command, "ASAN_OPTIONS", "detect_leaks=0");
    context.run(command, minutes(12))?;
    context.tests_passed()
}

fn os(context: &Context<'_>) -> Verdict {
    need!(context, Tool::BareTarget);
    os::test(context)
}

fn examples(context: &Context<'_>) -> Verdict {
    context.run(
        cargo(context, ["build", "--workspace", "--examples"]),
        minutes(5),
    )?;
    if let Err(reason) = context.io_uring {
        return Ok(Done::Skipped(format!("{reason}: built, not run")));
    }
    let mut ran = 0;
    let files = rust_files(&context.root.join("crates/runtime/examples"))
        .map_err(|error| error.to_string())?;
    all(files.iter().map(|file| {
        let text = fs::read_to_string(file)
            .map_err(|error| format!("cannot read {}: {error}", file.display()))?;
        if !text.starts_with("//!") {
            return Err(format!(
                "{} does not begin with a //! line that says what it shows",
                file.display()
            ));
        }
        let mut command = Command::new(context.target.join("debug/examples").join(stem(file)));
        command.current_dir(context.root);
        setup::without_cargo_run(&mut command);
        ran += 1;
        context.run(command, EXAMPLE_LIMIT)
    }))?;
    if ran == 0 {
        return Ok(Done::Skipped(
            "no example in crates/runtime/examples".to_owned(),
        ));
    }
    Ok(Done::Passed(format!("{ran} examples")))
}

fn docs(context: &Context<'_>) -> Verdict {
    let mut command = cargo(context, ["doc", "--workspace", "--no-deps"]);
    command.env("RUSTDOCFLAGS", "-D warnings");
    context.run(command, minutes(5))?;
    let links = book::check_links(context.root)?;
    Ok(Done::Passed(format!("{links} links")))
}

/// `crates/counts` against its table.
fn counts(context: &Context<'_>) -> Verdict {
    if let Err(reason) = context.io_uring {
        return Ok(Done::Skipped(reason.clone()));
    }
    if !packages::VALGRIND.is_there() {
        return Ok(Done::Skipped(packages::VALGRIND.absence()));
    }
    let args = ["run", "--release", "-p", "upshift-counts", "--", "check"];
    context.run(cargo(context, args), minutes(10))?;
    passed()
}

fn demo(context: &Context<'_>) -> Verdict {
    if let Err(reason) = context.io_uring {
        return Ok(Done::Skipped(reason.clone()));
    }
    // Built first, so that the limit of the demo is not spent on the compiler.
    context.run(cargo(context, ["build", "--profile", "quick"]), minutes(8))?;
    let report = context.target.join("demo-report.html");
    match fs::remove_file(&report) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(format!("cannot remove {}: {error}", report.display()));
        }
        _ => {}
    }
    let mut command = cargo(
        context,
        [
            "run",
            "--profile",
            "quick",
            "--",
            "demo",
            "--quick",
            "--report",
        ],
    );
    command.arg(&report);
    context.run(command, DEMO_LIMIT)?;
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

fn bench(context: &Context<'_>) -> Verdict {
    if !has_bench(context) {
        return Ok(Done::Skipped("no bench/Cargo.toml".to_owned()));
    }
    let driver = ["--manifest-path", "bench/Cargo.toml", "-p", "upshift-bench"];
    context.run(
        cargo(
            context,
            ["check", "--all-targets"].into_iter().chain(driver),
        ),
        minutes(7),
    )?;
    passed()
}

fn sim(context: &Context<'_>) -> Verdict {
    all(["soak", "rule"].map(|what| {
        let args = [
            "run",
            "--release",
            "-p",
            "upshift-sim",
            "--",
            what,
            "1000000",
        ];
        context.run(cargo(context, args), minutes(30))
    }))?;
    passed()
}

/// What is suspended for what, without the tests that panic or count on a signal that interrupts a poll: the sanitizer holds signals back.
fn tsan(context: &Context<'_>) -> Verdict {
    need!(context, Tool::Nightly, Tool::RustSrc);
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut command = cargo(context, ["+nightly", "test", "-Zbuild-std"]);
    command
        .args(["--target", &target, "-p", "upshift"])
        .args(["--test", "preempting", "order::"])
        .env("RUSTFLAGS", "-Zsanitizer=thread")
        .env("CARGO_TARGET_DIR", context.target.join("tsan"));
    context.run(command, minutes(20))?;
    context.tests_passed()
}

fn torture(context: &Context<'_>) -> Verdict {
    let mut command = cargo(
        context,
        [
            "test",
            "--release",
            "-p",
            "upshift",
            "--test",
            "torture",
            "--test",
            "spinning",
        ],
    );
    default_env(&mut command, "UPSHIFT_TORTURE_SECONDS", "60");
    context.run(command, minutes(50))?;
    passed()
}

/// Programs that use all of the CPU that they get, until they are dropped.
struct Burners(Vec<std::process::Child>);

impl Burners {
    /// One for each of these CPUs, which also ends by itself.
    fn start(cpus: &[&str]) -> Result<Burners, String> {
        let mut all = Burners(Vec::new());
        for cpu in cpus {
            let mut command = Command::new("timeout");
            command.args([
                "3600",
                "taskset",
                "-c",
                cpu,
                "sh",
                "-c",
                "while :; do :; done",
            ]);
            let child = command.spawn();
            all.0
                .push(child.map_err(|error| format!("timeout: {error}"))?);
        }
        Ok(all)
    }
}

impl Drop for Burners {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // `timeout` passes SIGTERM on, but not SIGKILL.
            let pid = child.id().to_string();
            let _ = Command::new("kill").arg(&pid).status();
            let _ = child.wait();
        }
    }
}

/// What a quiet machine hides: threads that lose the CPU between any two steps.
fn crowded(context: &Context<'_>) -> Verdict {
    let _burners = Burners::start(&["0", "0", "1"])?;
    for _ in 0..20 {
        let mut command = cargo(context, ["test", "-p", "upshift", "--test", "preempting"]);
        command.args(SHOW_SKIPS);
        context.run(command, minutes(5))?;
    }
    passed()
}

/// The tests of the daemon, with more of what they generate.
fn daemon_soak(context: &Context<'_>) -> Verdict {
    let mut command = cargo(context, ["test", "-p", "upshift-daemon", "--test", "it"]);
    command.args(SHOW_SKIPS);
    for (name, value) in [
        ("UPSHIFT_DAEMON_MESSAGES", "1000000"),
        ("UPSHIFT_DAEMON_SCRIBBLE", "60000"),
        ("UPSHIFT_DAEMON_DEATHS", "5000"),
        ("UPSHIFT_DAEMON_UPHEAVAL", "3"),
    ] {
        default_env(&mut command, name, value);
    }
    context.run(command, minutes(30))?;
    let mut command = cargo(context, ["test", "-p", "upshift-sched", "--test", "it"]);
    command.args(["unplugged", "--", "--show-output"]);
    default_env(&mut command, "UPSHIFT_SCHED_UNPLUG", "1");
    context.run(command, minutes(5))?;
    context.tests_passed()
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
