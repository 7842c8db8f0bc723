//! `cargo xtask compat`: how much of what is written for tokio runs on Upshift.
//!
//! `tokio`: tokio's published tests, from the registry's copy of its package. They are compiled where they lie, against a library of
//! tokio's name that is made of `upshift::{sync, time, task}` (`compat/tokio-names`), and each test runs in a process of its own, within
//! its time. What is printed is the table of `docs/ecosystem.md`.
//!
//! `programs`: crates that need a runtime of tokio, as they are, against real servers.
//!
//! `service`: `examples/service`, which uses many of them together, on both drivers and in a container.

mod programs;
mod servers;
mod service;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::Subcommand;

use crate::run::{Stop, run};
use crate::setup;

/// The subject: files that test nothing of it, or nothing on this system, are left out.
const FILES: [&str; 26] = [
    "sync_barrier",
    "sync_broadcast",
    "sync_broadcast_weak",
    "sync_errors",
    "sync_mpsc",
    "sync_mpsc_weak",
    "sync_mutex",
    "sync_mutex_owned",
    "sync_notify",
    "sync_notify_owned",
    "sync_once_cell",
    "sync_oneshot",
    "sync_panic",
    "sync_rwlock",
    "sync_semaphore",
    "sync_semaphore_owned",
    "sync_set_once",
    "sync_watch",
    "time_interval",
    "time_panic",
    "time_pause",
    "time_rt",
    "time_sleep",
    "time_timeout",
    "task_abort",
    "task_join_set",
];
const ALSO: [&str; 1] = ["join_handle_panic"];

/// For one test; the slowest takes a second.
const TEST_LIMIT: Duration = Duration::from_secs(10);
const BUILD_LIMIT: Duration = Duration::from_secs(600);

#[derive(Subcommand)]
pub(crate) enum Compat {
    /// tokio's published tests against `upshift::{sync, time, task}`
    Tokio {
        /// Only these files (`sync_mpsc`)
        files: Vec<String>,
    },
    /// Crates that need a runtime of tokio, against postgres, redis and HTTP servers
    Programs {
        /// Only these operations (`redis`)
        operations: Vec<String>,
    },
    /// The service of examples/: its routes, and its urgent request alone and beside a job and 600 downloads
    Service {
        /// Only what is here, in a surrounding of this name
        #[arg(long, hide = true)]
        inside: Option<String>,
        /// Only on this driver, and not in a container
        #[arg(long, value_parser = ["ring", "readiness"])]
        driver: Option<String>,
        /// Beside `upshift daemon` with rules that give postgres and redis a level; needs root; not in a container
        #[arg(long)]
        daemon: bool,
    },
}

pub(crate) fn command(root: &Path, what: &Compat) -> ExitCode {
    let done = match what {
        Compat::Tokio { files } => tokio(root, files),
        Compat::Programs { operations } => programs::programs(root, operations),
        Compat::Service {
            inside,
            driver,
            daemon,
        } => service::service(root, inside.as_deref(), driver.as_deref(), *daemon),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What became of a file.
#[derive(Default)]
struct Count {
    passed: usize,
    total: usize,
}

fn tokio(root: &Path, only: &[String]) -> Result<(), String> {
    let stop = Stop::on_signals().map_err(|error| error.to_string())?;
    let names = root.join("compat/tokio-names");
    let tests = published(root, &names)?;
    let package = root.join("target/xtask/tokio-tests");
    let chosen: Vec<&str> = FILES
        .iter()
        .chain(&ALSO)
        .copied()
        .filter(|file| only.is_empty() || only.iter().any(|only| only == file))
        .collect();
    lay_out(&names, &package, &tests, &chosen)?;
    let mut all = Count::default();
    println!("| file | passed | of |\n|---|---|---|");
    let mut failed = String::new();
    for file in chosen {
        if stop.is_set() {
            return Err("interrupted".to_owned());
        }
        let count = match build(root, &package, file, &stop)? {
            Some(program) => test(&package, file, &program, &mut failed, &stop)?,
            None => {
                let _ = writeln!(failed, "{file}: does not compile, see {file}.log");
                let source = fs::read_to_string(tests.join(format!("{file}.rs")));
                let total = declared(&source.map_err(|error| error.to_string())?);
                Count { passed: 0, total }
            }
        };
        println!("| `{file}` | {} | {} |", count.passed, count.total);
        all.passed += count.passed;
        all.total += count.total;
    }
    println!("| all | {} | {} |", all.passed, all.total);
    if !failed.is_empty() {
        println!("\n{failed}");
    }
    Ok(())
}

/// The folder of tests in the registry's copy of tokio.
fn published(root: &Path, names: &Path) -> Result<PathBuf, String> {
    let mut metadata = setup::cargo(root);
    metadata
        .args(["metadata", "--format-version", "1", "--manifest-path"])
        .arg(names.join("Cargo.toml"));
    let output = metadata.output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stderr);
    let found: serde_json::Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("cargo metadata: {error}: {text}"))?;
    let packages = found["packages"].as_array().into_iter().flatten();
    let path = packages
        .filter(|package| package["name"] == "tokio")
        .find_map(|package| package["manifest_path"].as_str())
        .ok_or("cargo metadata names no tokio")?;
    let tests = Path::new(path).with_file_name("tests");
    match tests.is_dir() {
        true => Ok(tests),
        false => Err(format!("{} is not there", tests.display())),
    }
}

/// A package of our library and their tests, each where it lies.
fn lay_out(names: &Path, package: &Path, tests: &Path, files: &[&str]) -> Result<(), String> {
    let manifest =
        fs::read_to_string(names.join("Cargo.toml")).map_err(|error| error.to_string())?;
    let library = names.join("src/lib.rs");
    let runtime = names.join("../../crates/runtime");
    let mut manifest = manifest
        .replace(
            "name = \"tokio\"",
            &format!("name = \"tokio\"\npath = {library:?}"),
        )
        .replace("\"../../crates/runtime\"", &format!("{runtime:?}"));
    for file in files {
        let path = tests.join(format!("{file}.rs"));
        let _ = write!(manifest, "\n[[test]]\nname = {file:?}\npath = {path:?}\n");
    }
    fs::create_dir_all(package)
        .and_then(|()| fs::write(package.join("Cargo.toml"), manifest))
        .and_then(|()| match names.join("Cargo.lock") {
            lock if lock.is_file() => fs::copy(lock, package.join("Cargo.lock")).map(|_| ()),
            _ => Ok(()),
        })
        .map_err(|error| format!("{}: {error}", package.display()))
}

/// The test program of a file; `None` if it does not compile.
fn build(root: &Path, package: &Path, file: &str, stop: &Stop) -> Result<Option<PathBuf>, String> {
    let log_path = package.join(format!("{file}.log"));
    let log = fs::File::create(&log_path).map_err(|error| error.to_string())?;
    let mut build = setup::cargo(root);
    build
        .args(["test", "--no-run", "--test", file, "--manifest-path"])
        .arg(package.join("Cargo.toml"))
        .args(["--message-format", "json-render-diagnostics"])
        .env("CARGO_TARGET_DIR", package.join("target"))
        .env("RUSTFLAGS", "--cap-lints allow");
    let ending =
        run(&mut build, BUILD_LIMIT, Some(&log), stop).map_err(|error| error.to_string())?;
    if ending.success().is_err() {
        return Ok(None);
    }
    let log = fs::read_to_string(log_path).map_err(|error| error.to_string())?;
    let messages = log.lines().filter(|line| line.starts_with('{'));
    Ok(messages
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["target"]["name"] == file)
        .find_map(|message| message["executable"].as_str().map(PathBuf::from)))
}

/// Runs the tests of a program one by one.
fn test(
    package: &Path,
    file: &str,
    program: &Path,
    failed: &mut String,
    stop: &Stop,
) -> Result<Count, String> {
    let listed = Command::new(program).arg("--list").output();
    let listed = listed.map_err(|error| error.to_string())?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let mut count = Count::default();
    for name in listed
        .lines()
        .filter_map(|line| line.strip_suffix(": test"))
    {
        let log_path = package.join(format!("{file}.{}.log", name.replace(':', "_")));
        let log = fs::File::create(&log_path).map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        command.args(["--exact", name, "--test-threads", "1"]);
        let ending = run(&mut command, TEST_LIMIT, Some(&log), stop);
        let passed = ending.map_err(|error| error.to_string())?.success();
        count.total += 1;
        match passed {
            Ok(()) => {
                count.passed += 1;
                let _ = fs::remove_file(log_path);
            }
            Err(reason) => {
                let _ = writeln!(failed, "{file}::{name}: {reason}");
            }
        }
    }
    Ok(count)
}

/// How many tests a source declares.
fn declared(source: &str) -> usize {
    let is_test = |line: &&str| {
        let line = line.trim_start();
        ["#[test]", "#[tokio::test", "#[maybe_tokio_test"]
            .iter()
            .any(|attribute| line.starts_with(attribute))
    };
    source.lines().filter(is_test).count()
}
