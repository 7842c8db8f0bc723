//! Runs tokio's published tests, from the registry's copy of the package, against Upshift.
//!
//! The tests are compiled in place, against a library named tokio that re-exports
//! `upshift::{sync, time, task}` (`compat/tokio-names`). Each test runs in its own process, with a
//! time limit.
//!
//! `compat/tokio-names/differences.txt` lists the tests that fail, each with its reason. The list
//! is compared both ways: an unlisted test that fails and a listed test that passes are errors.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::run::{Limits, Stop, run};
use crate::setup;
use crate::step::{Context, Done, Verdict};

/// The test files that apply. Files that test none of these modules, or nothing on Linux, are left
/// out.
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
/// Test files that apply and are not named after a module.
const OTHER_FILES: [&str; 1] = ["join_handle_panic"];

/// Time limit of one test; the slowest takes a second.
const TEST_LIMIT: Duration = Duration::from_secs(10);
/// File that lists the tests that are known to fail.
const DIFFERENCES: &str = "differences.txt";

/// Results of the tests.
#[derive(Default)]
struct Report {
    /// Rows of a Markdown table: file, passed tests, all tests.
    table: String,
    /// The failed tests (`file::test`), each with the reason.
    failed: BTreeMap<String, String>,
    /// Names of all tests that ran.
    all: BTreeSet<String>,
}

impl Report {
    fn add(&mut self, file: &str, results: BTreeMap<String, Result<(), String>>) {
        let passed = results.values().filter(|result| result.is_ok()).count();
        let _ = writeln!(self.table, "| `{file}` | {passed} | {} |", results.len());
        for (name, result) in results {
            let name = format!("{file}::{name}");
            if let Err(reason) = result {
                self.failed.insert(name.clone(), reason);
            }
            self.all.insert(name);
        }
    }

    /// Returns the number of passed tests and of all tests, for example "491 of 506".
    fn count(&self) -> String {
        format!(
            "{} of {}",
            self.all.len() - self.failed.len(),
            self.all.len()
        )
    }

    fn text(&self) -> String {
        let mut text = format!("| file | passed | of |\n|---|---|---|\n{}", self.table);
        let _ = writeln!(text, "\n{} passed", self.count());
        for (name, reason) in &self.failed {
            let _ = writeln!(text, "failed: {name}: {reason}");
        }
        text
    }

    /// Compares the failed tests with the list.
    fn compare(&self, known: &BTreeSet<String>) -> Result<(), String> {
        let mut wrong = Vec::new();
        for (name, reason) in &self.failed {
            if !known.contains(name) {
                wrong.push(format!("{name} fails ({reason}) and is not listed"));
            }
        }
        for name in known.intersection(&self.all) {
            if !self.failed.contains_key(name) {
                wrong.push(format!("{name} passes and is listed"));
            }
        }
        if wrong.is_empty() {
            return Ok(());
        }
        Err(format!(
            "compat/tokio-names/{DIFFERENCES}: {}",
            wrong.join("; ")
        ))
    }
}

pub(super) fn command(root: &Path, only: &[String]) -> Result<(), String> {
    let stop = Stop::on_signals().map_err(|error| error.to_string())?;
    let report = report(root, only, &stop, None)?;
    print!("{}", report.text());
    report.compare(&known(root)?)
}

/// Builds the tests; without the registry there is nothing to build.
pub(super) fn build_all(root: &Path, stop: &Stop) -> Result<(), String> {
    let Ok(package) = lay_out(root)? else {
        return Ok(());
    };
    for file in files(&[]) {
        // A file that does not compile counts as a failed test when the tests run.
        build(root, &package, file, stop)?;
    }
    Ok(())
}

pub(super) fn step(context: &Context<'_>) -> Verdict {
    if let Err(absence) = lay_out(context.root)? {
        return Ok(Done::Skipped(absence));
    }
    let report = report(context.root, &[], context.stop, Some(context.deadline))?;
    let text = report.text();
    match context.log_file()? {
        Some(mut log) => log.write_all(text.as_bytes()),
        None => io::stdout().write_all(text.as_bytes()),
    }
    .map_err(|error| error.to_string())?;
    report.compare(&known(context.root)?)?;
    Ok(Done::Passed(format!("{} tests", report.count())))
}

fn files(only: &[String]) -> Vec<&'static str> {
    FILES
        .iter()
        .chain(&OTHER_FILES)
        .copied()
        .filter(|file| only.is_empty() || only.iter().any(|only| only == file))
        .collect()
}

/// Reads the tests that are known to fail. A line is `file::test: reason`; `#` begins a comment.
fn known(root: &Path) -> Result<BTreeSet<String>, String> {
    let path = root.join("compat/tokio-names").join(DIFFERENCES);
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let lines = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| match line.split_once(": ") {
            Some((name, reason)) if !reason.trim().is_empty() => Ok(name.to_owned()),
            _ => Err(format!(
                "{}: a line without a reason: {line}",
                path.display()
            )),
        })
        .collect()
}

fn report(
    root: &Path,
    only: &[String],
    stop: &Stop,
    deadline: Option<Instant>,
) -> Result<Report, String> {
    let package = lay_out(root)??;
    let mut report = Report::default();
    for file in files(only) {
        let results = match build(root, &package, file, stop)? {
            Some(program) => test(&package, file, &program, stop)?,
            None => {
                let why = format!("does not compile, see {}/{file}.log", package.display());
                BTreeMap::from([("*".to_owned(), Err(why))])
            }
        };
        if stop.is_set() {
            return Err("interrupted".to_owned());
        }
        if deadline.is_some_and(|deadline| Instant::now() > deadline) {
            return Err("the suite's time is used up (--minutes)".to_owned());
        }
        report.add(file, results);
    }
    Ok(report)
}

/// Lays the tests out as a package: our library, and tokio's test files by their paths. The inner
/// error explains why the registry is missing.
fn lay_out(root: &Path) -> Result<Result<PathBuf, String>, String> {
    let names = root.join("compat/tokio-names");
    let tests = match published(root, &names)? {
        Ok(tests) => tests,
        Err(absence) => return Ok(Err(absence)),
    };
    let package = root.join("target/xtask/tokio-tests");
    let manifest =
        fs::read_to_string(names.join("Cargo.toml")).map_err(|error| error.to_string())?;
    let library = names.join("src/lib.rs");
    let runtime = root.join("linux/runtime");
    let mut manifest = manifest
        .replace(
            "name = \"tokio\"",
            &format!("name = \"tokio\"\npath = {library:?}"),
        )
        .replace("\"../../linux/runtime\"", &format!("{runtime:?}"));
    for file in files(&[]) {
        let path = tests.join(format!("{file}.rs"));
        let _ = write!(manifest, "\n[[test]]\nname = {file:?}\npath = {path:?}\n");
    }
    fs::create_dir_all(&package)
        .and_then(|()| fs::write(package.join("Cargo.toml"), manifest))
        .and_then(|()| fs::copy(names.join("Cargo.lock"), package.join("Cargo.lock")))
        .map_err(|error| format!("{}: {error}", package.display()))?;
    Ok(Ok(package))
}

/// Returns the folder of tests in the registry's copy of tokio. The inner error explains why the
/// registry is missing.
fn published(root: &Path, names: &Path) -> Result<Result<PathBuf, String>, String> {
    let mut metadata = setup::cargo(root);
    metadata
        .args([
            "metadata",
            "--locked",
            "--format-version",
            "1",
            "--manifest-path",
        ])
        .arg(names.join("Cargo.toml"));
    let output = metadata.output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        let stderr_text = String::from_utf8_lossy(&output.stderr).into_owned();
        return match stderr_text
            .lines()
            .find(|line| line.contains("failed to download"))
        {
            Some(line) => Ok(Err(format!("tokio's tests: {}", line.trim()))),
            None => Err(format!("cargo metadata: {stderr_text}")),
        };
    }
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("cargo metadata: {error}"))?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let path = packages
        .filter(|package| package["name"] == "tokio")
        .find_map(|package| package["manifest_path"].as_str())
        .ok_or("cargo metadata names no tokio")?;
    let tests = Path::new(path).with_file_name("tests");
    if tests.is_dir() {
        Ok(Ok(tests))
    } else {
        Err(format!("{} is not there", tests.display()))
    }
}

/// Builds the test program of a file; `None` if it does not compile.
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
    let ending = run(&mut build, Limits::of_progress(), Some(&log), stop)
        .map_err(|error| error.to_string())?;
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

/// Runs the tests of a program one by one, and a failed test once more.
fn test(
    package: &Path,
    file: &str,
    program: &Path,
    stop: &Stop,
) -> Result<BTreeMap<String, Result<(), String>>, String> {
    let listed = Command::new(program).arg("--list").output();
    let listed = listed.map_err(|error| error.to_string())?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let mut results = BTreeMap::new();
    for name in listed
        .lines()
        .filter_map(|line| line.strip_suffix(": test"))
    {
        let log_path = package.join(format!("{file}.{}.log", name.replace(':', "_")));
        let run_once = || {
            let log = fs::File::create(&log_path)?;
            let mut command = Command::new(program);
            command.args(["--exact", name, "--test-threads", "1"]);
            run(&mut command, Limits::within(TEST_LIMIT), Some(&log), stop)
        };
        let mut result = run_once().map_err(|error| error.to_string())?.success();
        if result.is_err() {
            result = run_once().map_err(|error| error.to_string())?.success();
        }
        if result.is_ok() {
            let _ = fs::remove_file(log_path);
        }
        results.insert(name.to_owned(), result);
    }
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_and_surplus_differences_are_reported() {
        let mut report = Report::default();
        let fails = || Err("exit status 101".to_owned());
        report.add(
            "a",
            BTreeMap::from([("passes".to_owned(), Ok(())), ("fails".to_owned(), fails())]),
        );
        let known = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(
            report.compare(&known(&["a::fails", "b::of_a_file_that_did_not_run"])),
            Ok(())
        );
        let unlisted = report.compare(&known(&[])).unwrap_err();
        assert!(
            unlisted.contains("a::fails fails (exit status 101) and is not listed"),
            "{unlisted}"
        );
        let better = report
            .compare(&known(&["a::fails", "a::passes"]))
            .unwrap_err();
        assert!(
            better.contains("a::passes passes and is listed"),
            "{better}"
        );
        assert_eq!(report.count(), "1 of 2");
    }

    #[test]
    fn each_listed_difference_has_a_reason_and_a_file_that_is_run() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let known = known(&root).unwrap();
        assert!(!known.is_empty());
        for name in known {
            let (file, _) = name.split_once("::").unwrap();
            assert!(
                FILES.iter().chain(&OTHER_FILES).any(|known| *known == file),
                "{name}"
            );
        }
    }
}
