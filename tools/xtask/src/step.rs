//! Defines a step of the test suite, what it may use while it runs, and its result.

pub(crate) mod log;
mod retry;

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::run::{Ending, Limits, Stop, command_line, run};
use crate::setup::Tools;
use log::count_tests;

#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) summary: &'static str,
    /// Set if the step runs only with `--full`, or by name.
    pub(crate) full_only: bool,
    /// The part of the step that may run beside other steps.
    pub(crate) concurrency: Option<Concurrency>,
    pub(crate) run: fn(&Context<'_>) -> Verdict,
}

/// The part of a step that neither measures time nor depends on time, so that it may run beside
/// other steps. The string of each variant names the build folder that this part uses.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Concurrency {
    Whole(&'static str),
    /// The step's build may be started before the step's turn. Its tests have the machine to
    /// themselves.
    Build(&'static str, fn(&Context<'_>) -> Result<(), String>),
}

impl Concurrency {
    pub(crate) fn folder(&self) -> &'static str {
        match self {
            Self::Whole(folder) | Self::Build(folder, _) => folder,
        }
    }
}

impl Step {
    pub(crate) const fn concurrent(self, folder: &'static str) -> Step {
        Step {
            concurrency: Some(Concurrency::Whole(folder)),
            ..self
        }
    }

    pub(crate) const fn build_ahead(
        self,
        folder: &'static str,
        build: fn(&Context<'_>) -> Result<(), String>,
    ) -> Step {
        Step {
            concurrency: Some(Concurrency::Build(folder, build)),
            ..self
        }
    }
}

/// Creates a step that is part of every run.
pub(crate) const fn step(
    name: &'static str,
    summary: &'static str,
    run: fn(&Context<'_>) -> Verdict,
) -> Step {
    Step {
        name,
        summary,
        full_only: false,
        concurrency: None,
        run,
    }
}

/// Creates a step that runs only in the full suite, or by name.
pub(crate) const fn full(
    name: &'static str,
    summary: &'static str,
    run: fn(&Context<'_>) -> Verdict,
) -> Step {
    Step {
        name,
        summary,
        full_only: true,
        concurrency: None,
        run,
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Done {
    /// Everything ran and passed; the text is a detail such as a count, or empty.
    Passed(String),
    /// Skipped for this reason, in whole or in part.
    Skipped(String),
}

pub(crate) type Verdict = Result<Done, String>;

pub(crate) struct Context<'a> {
    pub(crate) root: &'a Path,
    /// Target directory of the build; some steps use their own below it.
    pub(crate) target: &'a Path,
    pub(crate) tools: &'a Tools,
    /// `Ok` if io_uring is available; otherwise the reason why not.
    pub(crate) io_uring: &'a Result<(), String>,
    pub(crate) log: PathBuf,
    pub(crate) verbose: bool,
    /// Set for the full suite: a step runs all of its parts, and a test that fails once has failed.
    pub(crate) full: bool,
    pub(crate) deadline: Instant,
    pub(crate) stop: &'a Stop,
}

impl Context<'_> {
    /// Runs one command of the step. The command is ended when it makes no progress, and when the
    /// suite's time is used up.
    ///
    /// # Errors
    /// The outcome of the command, and the command as a user would type it.
    pub(crate) fn run(&self, mut command: Command) -> Result<(), String> {
        self.run_once(&mut command)
    }

    fn run_once(&self, command: &mut Command) -> Result<(), String> {
        let failed = |reason: String| Err(format!("{reason}: `{}`", command_line(command)));
        if self.stop.is_set() {
            return failed("not started, interrupted".to_owned());
        }
        let time_left = self.deadline.saturating_duration_since(Instant::now());
        if time_left.is_zero() {
            return failed("not started, the suite's time is used up (--minutes)".to_owned());
        }
        let log = File::options().create(true).append(true).open(&self.log);
        let mut log =
            log.map_err(|error| format!("cannot write {}: {error}", self.log.display()))?;
        let headline = format!("$ {}\n", command_line(command));
        let written = if self.verbose {
            io::stdout().write_all(headline.as_bytes())
        } else {
            log.write_all(headline.as_bytes())
        };
        written.map_err(|error| format!("cannot write {}: {error}", self.log.display()))?;
        let output = (!self.verbose).then_some(&log);
        let started = Instant::now();
        let limits = Limits::within(time_left);
        let ending = run(command, limits, output, self.stop).map_err(|error| error.to_string())?;
        // Logs the duration of the command. A failure to log the duration does not fail the step.
        let _ = writeln!(log, "$ took {:.1} s", started.elapsed().as_secs_f64());
        ending.success().map_err(|reason| {
            let explanation = match ending {
                Ending::TimedOut(_) => ", the suite's time is used up (--minutes)",
                _ => "",
            };
            format!("{reason}{explanation}: `{}`", command_line(command))
        })
    }

    /// Runs `cargo test` with arguments for its test programs, and failed tests once more, as
    /// [`retry`] says.
    ///
    /// # Errors
    /// The error of [`Context::run`]; the first run's error if a test failed twice.
    pub(crate) fn run_tests(&self, mut command: Command) -> Result<(), String> {
        let log_start = self.log_text().len();
        let Err(reason) = self.run_once(&mut command) else {
            return Ok(());
        };
        let first_log = self.log_text();
        let Some(tests) = retry::candidates(first_log.get(log_start..).unwrap_or("")) else {
            return Err(reason);
        };
        let second = self.run(retry::command_for(&command, &tests));
        let full_log = self.log_text();
        let second_log = full_log.get(first_log.len()..).unwrap_or("");
        if second.is_err() || !retry::all_passed(second_log, tests.len()) {
            return Err(reason);
        }
        let lines = tests.iter().map(|test| retry::log_line(test));
        let log = File::options().append(true).open(&self.log);
        log.and_then(|mut log| log.write_all(lines.collect::<String>().as_bytes()))
            .map_err(|error| format!("cannot write {}: {error}", self.log.display()))?;
        match tests.iter().find(|test| !retry::is_known(test)) {
            Some(test) if self.full => Err(format!(
                "{test} failed, then passed alone: a test that needs luck counts as failed"
            )),
            _ => Ok(()),
        }
    }

    /// Opens the file for the step's output; `None` means standard output.
    pub(crate) fn log_file(&self) -> Result<Option<File>, String> {
        if self.verbose {
            return Ok(None);
        }
        let log = File::options().create(true).append(true).open(&self.log);
        log.map(Some)
            .map_err(|error| format!("cannot write {}: {error}", self.log.display()))
    }

    pub(crate) fn log_text(&self) -> String {
        let bytes = fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns the verdict of a step whose commands succeeded: the number of tests, or a skip if no
    /// test ran.
    pub(crate) fn tests_passed(&self) -> Verdict {
        if self.verbose {
            // The output was not recorded.
            return Ok(Done::Passed(String::new()));
        }
        Ok(count_tests(&self.log_text()).map_or_else(
            || Done::Skipped("no test has run and passed".to_owned()),
            Done::Passed,
        ))
    }
}
