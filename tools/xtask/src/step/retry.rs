//! Runs a failed test a second time.
//!
//! A test that waits for threads, processes and timers can fail on a shared machine without a
//! defect. A test that fails and then passes alone is *unstable*: it is named and counted, and its
//! output is shown. It fails the full suite unless [`KNOWN_UNSTABLE`] names it. Nothing is run
//! again if more than [`MAX_RETRIES`] tests fail at once, or if a test program ends without naming
//! the failed test. A soak test runs nothing twice.

use std::process::Command;

use super::log::{self, UNSTABLE, count_passed};

/// Largest number of tests of one command that may be run a second time.
const MAX_RETRIES: usize = 3;

/// Tests that may need a second run in the full suite, each with the observed failure, while its
/// cause is unknown.
const KNOWN_UNSTABLE: [(&str, &str); 0] = [];

pub(super) fn is_known(test: &str) -> bool {
    KNOWN_UNSTABLE.iter().any(|(name, _)| *name == test)
}

/// Returns the names of the failed tests if `cargo test` failed for them alone and they may be run
/// again.
pub(super) fn candidates(log: &str) -> Option<Vec<&str>> {
    let failed = log::failed_tests(log);
    // A killed program prints no list.
    let programs = log.lines().rev().find_map(|line| {
        let (count, rest) = line.strip_prefix("error: ")?.split_once(' ')?;
        let is_count = matches!(rest, "target failed:" | "targets failed:");
        count.parse::<usize>().ok().filter(|_| is_count)
    });
    let lists = log
        .lines()
        .filter(|line| line.starts_with("test result: FAILED."));
    let names_all_programs = programs == Some(lists.count());
    ((1..=MAX_RETRIES).contains(&failed.len()) && names_all_programs).then_some(failed)
}

/// Returns the command that runs these tests alone, one after another. `first` is the command of
/// the first run, which already has arguments for the test programs.
pub(super) fn command_for(first: &Command, tests: &[&str]) -> Command {
    let mut command = Command::new(first.get_program());
    command.args(first.get_args());
    command.args(["--test-threads=1", "--exact"]).args(tests);
    for (name, value) in first.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    if let Some(folder) = first.get_current_dir() {
        command.current_dir(folder);
    }
    command
}

pub(super) fn log_line(test: &str) -> String {
    format!("{UNSTABLE}{test}: passed when it was run again\n")
}

pub(super) fn all_passed(log: &str, count: usize) -> bool {
    count_passed(log).passed >= count as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILED: &str = "running 2 tests\ntest a ... ok\ntest m::b ... FAILED\n\nfailures:\n\n---- m::b stdout ----\nlate\n\n\
                          failures:\n    m::b\n\ntest result: FAILED. 1 passed; 1 failed; 0 ignored\n\n\
                          error: test failed, to rerun pass `-p p --test it`\n";

    #[test]
    fn failed_tests_are_run_again_if_the_log_names_all_of_them() {
        let log = format!("{FAILED}error: 1 target failed:\n    `-p p --test it`\n");
        assert_eq!(candidates(&log), Some(vec!["m::b"]));
        // A second program was killed by a signal.
        let log = format!("{FAILED}error: 2 targets failed:\n    `-p p --test it`\n");
        assert_eq!(candidates(&log), None);
        let log = format!("{log}error: 4 targets failed:\n").replace("FAILED.", "ok.");
        assert_eq!(candidates(&log), None);
        assert_eq!(candidates("error: could not compile `p`\n"), None);
        let names: String = (0..9).map(|n| format!("    t{n}\n")).collect();
        let log = FAILED.replace("    m::b\n", &names);
        assert_eq!(candidates(&format!("{log}error: 1 target failed:\n")), None);
    }

    #[test]
    fn the_retry_is_the_first_command_with_the_names_of_tests() {
        let mut first = Command::new("cargo");
        first.args(["test", "-p", "p", "--", "--show-output"]);
        first.env("A", "1").env_remove("B").current_dir("/tmp");
        let retry = command_for(&first, &["m::b"]);
        let args: Vec<_> = retry.get_args().skip(3).collect();
        let expected = ["--", "--show-output", "--test-threads=1", "--exact", "m::b"];
        assert_eq!(args, expected);
        assert!(retry.get_envs().eq(first.get_envs()));
        assert_eq!(retry.get_current_dir(), first.get_current_dir());
    }
}
