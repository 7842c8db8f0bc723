//! `cargo xtask test`: runs the steps and counts the results. The steps that measure no time
//! come first, two at once. Then the other steps run one after another, with the machine to
//! themselves.
//!
//! Invariants: steps after a failed step still run. A step that did not run in full counts as
//! *skipped* and is listed. The last line of standard output is `N passed, N failed, N skipped`.
//! The whole run ends within its time limit, since every process gets at most the remaining time.

mod lanes;

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::fs::{self, File};
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use clap::Args;

use crate::host;
use crate::packages;
use crate::run::Stop;
use crate::setup::{self, Tools, install_h2spec};
use crate::step::log::{excerpt, final_messages, outline, skipped_tests, unstable_tests};
use crate::step::{Concurrency, Context, Done, Step, Verdict};
use crate::steps::{SOAKS, STEPS};
use lanes::{Job, Lanes};

#[derive(Args)]
pub(crate) struct Options {
    /// Run only these steps (names or numbers of --list)
    #[arg(value_name = "STEP", value_parser = find_step)]
    steps: Vec<&'static Step>,

    /// The same steps, as a list
    #[arg(long, value_name = "STEP,STEP", value_delimiter = ',', value_parser = find_step)]
    only: Vec<&'static Step>,

    /// List the steps and exit
    #[arg(long)]
    list: bool,

    /// Run everything: all steps, and all parts of each step
    #[arg(long)]
    full: bool,

    /// Print the output of the steps as it arrives
    #[arg(long, short)]
    verbose: bool,

    /// End after this many minutes; a step that has not run by then has failed
    #[arg(long, value_name = "N", default_value_t = 85)]
    minutes: u64,
}

impl Options {
    fn chooses(&self, step: &Step) -> bool {
        let mut named_steps = self.steps.iter().chain(&self.only).peekable();
        if named_steps.peek().is_none() {
            return self.full || !step.full_only;
        }
        named_steps.any(|named_step| named_step.name == step.name)
    }
}

fn find_step(word: &str) -> Result<&'static Step, String> {
    find(word, &STEPS)
}

pub(crate) fn find_soak(word: &str) -> Result<&'static Step, String> {
    find(word, &SOAKS)
}

fn find(word: &str, steps: &'static [Step]) -> Result<&'static Step, String> {
    let number = word
        .parse::<usize>()
        .ok()
        .and_then(|number| number.checked_sub(1));
    let entry = steps
        .iter()
        .enumerate()
        .find(|(index, step)| step.name == word || number == Some(*index));
    entry.map(|(_, step)| step).ok_or_else(|| {
        let names: Vec<_> = steps.iter().map(|step| step.name).collect();
        format!("no such step; the steps are {}", names.join(", "))
    })
}

#[derive(Default)]
struct Verdicts {
    passed: usize,
    failed: Vec<String>,
    /// Last lines of each failed step, for the end of the report.
    final_messages: Vec<String>,
    skipped: Vec<String>,
    skipped_tests: Vec<String>,
    /// Unstable tests: failed, then passed when they were run again.
    unstable_tests: Vec<String>,
}

impl Verdicts {
    fn add(&mut self, name: &str, verdict: &Verdict) {
        match verdict {
            Ok(Done::Passed(_)) => self.passed += 1,
            Ok(Done::Skipped(reason)) => self.skipped.push(format!("{name}: {reason}")),
            Err(reason) => self.failed.push(format!("{name}: {reason}")),
        }
    }

    /// Returns the end of the report. Its last line is the count, with the failures just above it,
    /// so that a reader of the end of a long log sees them.
    fn summary(&self) -> String {
        let mut text = String::new();
        for (title, lines) in [
            ("skipped (not run in full, so no pass)", &self.skipped),
            ("tests that skipped themselves", &self.skipped_tests),
            (
                "tests that failed once and passed alone",
                &self.unstable_tests,
            ),
            ("last lines of the failed steps", &self.final_messages),
            ("failed", &self.failed),
        ] {
            if !lines.is_empty() {
                text += &format!("{title}, {}:\n  {}\n", lines.len(), lines.join("\n  "));
            }
        }
        text + &format!(
            "{} passed, {} failed, {} skipped",
            self.passed,
            self.failed.len(),
            self.skipped.len()
        )
    }
}

pub(crate) fn command(root: &Path, options: &Options) -> ExitCode {
    run_steps(root, options, &STEPS)
}

pub(crate) fn soak(
    root: &Path,
    steps: Vec<&'static Step>,
    verbose: bool,
    minutes: u64,
) -> ExitCode {
    let options = Options {
        steps,
        only: Vec::new(),
        list: false,
        full: true,
        verbose,
        minutes,
    };
    run_steps(root, &options, &SOAKS)
}

fn run_steps(root: &Path, options: &Options, steps: &[Step]) -> ExitCode {
    if options.list {
        for (index, step) in steps.iter().enumerate() {
            let full = if step.full_only { " (--full)" } else { "" };
            let line = format!("{:2} {:9} {}{full}\n", index + 1, step.name, step.summary);
            if io::stdout().write_all(line.as_bytes()).is_err() {
                break;
            }
        }
        return ExitCode::SUCCESS;
    }
    match test(root, options, steps) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the chosen steps; returns whether none failed.
fn test(root: &Path, options: &Options, steps: &[Step]) -> io::Result<bool> {
    let started = Instant::now();
    let deadline = started + Duration::from_secs(60 * options.minutes.min(24 * 60));
    let stop = Stop::on_signals()?;
    let target = setup::target(root);
    let logs = target.join("xtask");
    fs::create_dir_all(&logs)?;

    let mut tools = Tools::find();
    tools.install_for_tests(&stop);
    packages::install_for_tests(&stop);
    install_h2spec(root, &stop);
    for tool in tools.missing() {
        println!("note: {}: steps that need it are skipped", tool.absence());
    }
    let io_uring = host::io_uring();

    let mut chosen = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        if !options.chooses(step) {
            continue;
        }
        let log = logs.join(format!("{}.log", step.name));
        File::create(&log)?;
        chosen.push(ChosenStep {
            step,
            title: format!(
                "[{:2}/{}] {:8} {:<44} ",
                index + 1,
                steps.len(),
                step.name,
                step.summary
            ),
            context: Context {
                root,
                target: &target,
                tools: &tools,
                io_uring: &io_uring,
                log,
                verbose: options.verbose,
                full: options.full,
                deadline,
                stop: &stop,
            },
        });
    }
    let mut early_results = run_concurrently(&chosen, options.verbose);
    let mut verdicts = Verdicts::default();
    for (index, chosen) in chosen.iter().enumerate() {
        let verdict = match (chosen.step.concurrency, early_results.remove(&index)) {
            (Some(Concurrency::Whole(_)), Some((verdict, _))) => verdict,
            (_, built) => chosen.run_alone(built)?,
        };
        let name = chosen.step.name;
        verdicts.add(name, &verdict);
        let log = chosen.context.log_text();
        let with_name = |line: &str| format!("{name}: {line}");
        let skipped = skipped_tests(&log);
        verdicts
            .skipped_tests
            .extend(skipped.iter().map(|line| with_name(line)));
        if verdict.is_err() {
            verdicts
                .final_messages
                .extend(final_messages(&log).into_iter().map(with_name));
        }
        verdicts
            .unstable_tests
            .extend(unstable_tests(&log).map(with_name));
    }
    println!(
        "{:.0} s in all, logs in {}",
        started.elapsed().as_secs_f64(),
        logs.display()
    );
    println!("{}", verdicts.summary());
    Ok(verdicts.failed.is_empty())
}

struct ChosenStep<'a> {
    step: &'a Step,
    /// First half of the step's report line.
    title: String,
    context: Context<'a>,
}

impl ChosenStep<'_> {
    /// Returns the verdict of a step that is not started because the run was interrupted.
    fn skip_verdict(&self) -> Option<Verdict> {
        let interrupted = self.context.stop.is_set();
        interrupted.then(|| Err("not run: interrupted".to_owned()))
    }

    /// Runs the rest of the step with the machine to itself. `built` is the verdict and duration of
    /// the step's build, if the build ran ahead.
    fn run_alone(&self, built: Option<(Verdict, Duration)>) -> io::Result<Verdict> {
        print!("{}", self.title);
        if self.context.verbose || io::stdout().is_terminal() {
            println!();
        }
        io::stdout().flush()?;
        let started = Instant::now();
        let (build_verdict, build_duration) = built.unzip();
        let verdict = match build_verdict {
            Some(Err(reason)) => Err(reason),
            _ => self
                .skip_verdict()
                .unwrap_or_else(|| (self.step.run)(&self.context)),
        };
        let durations = Durations {
            run: started.elapsed(),
            build: build_duration,
        };
        report(&verdict, durations, &self.context);
        Ok(verdict)
    }
}

/// Runs the steps, or their builds, that may run concurrently; returns the verdict and duration of
/// each. A step that runs completely here is reported at once.
fn run_concurrently(
    chosen: &[ChosenStep<'_>],
    verbose: bool,
) -> BTreeMap<usize, (Verdict, Duration)> {
    let jobs = chosen.iter().enumerate().filter_map(|(index, chosen)| {
        let concurrency = chosen.step.concurrency?;
        Some(Job { index, concurrency })
    });
    let lanes = if verbose { Lanes::One } else { Lanes::All };
    let printing = Mutex::new(());
    let ended = lanes::run(jobs.collect(), lanes, |job| {
        let chosen = &chosen[job.index];
        let context = &chosen.context;
        if verbose {
            println!("{}", chosen.title);
        }
        let started = Instant::now();
        let verdict = chosen
            .skip_verdict()
            .unwrap_or_else(|| match job.concurrency {
                Concurrency::Whole(_) => (chosen.step.run)(context),
                Concurrency::Build(_, build) => {
                    build(context).map(|()| Done::Passed(String::new()))
                }
            });
        if let Concurrency::Whole(_) = job.concurrency {
            let durations = Durations {
                run: started.elapsed(),
                build: None,
            };
            // The whole line is printed at the end, because lines of two concurrent steps would
            // mix.
            let _line = printing.lock();
            if !verbose {
                print!("{}", chosen.title);
            }
            report(&verdict, durations, context);
        }
        verdict
    });
    let by_index = ended
        .into_iter()
        .map(|(index, verdict, duration)| (index, (verdict, duration)));
    by_index.collect()
}

struct Durations {
    run: Duration,
    /// Duration of the build that ran beside other steps.
    build: Option<Duration>,
}

impl Display for Durations {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} s", self.run.as_secs_f64())?;
        match self.build {
            Some(build) => write!(f, " and {:.1} s to build", build.as_secs_f64()),
            None => Ok(()),
        }
    }
}

fn report(verdict: &Verdict, durations: Durations, context: &Context<'_>) {
    match verdict {
        Ok(Done::Passed(detail)) if detail.is_empty() => println!("ok {durations}"),
        Ok(Done::Passed(detail)) => println!("ok {durations} ({detail})"),
        Ok(Done::Skipped(reason)) => println!("SKIPPED {durations}: {reason}"),
        Err(reason) => println!("FAILED {durations}: {reason}"),
    }
    if context.verbose {
        return;
    }
    let log = context.log_text();
    let lines = match verdict {
        Err(_) => excerpt(&log),
        Ok(_) if unstable_tests(&log).next().is_some() => outline(&log),
        Ok(_) => return,
    };
    // The reason for a failure, or the output of an unstable test.
    for line in lines {
        println!("    | {line}");
    }
    let (all, log) = (log.lines().count(), context.log.display());
    println!("    | (all {all} lines: {log})");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_ends_with_the_count() {
        let mut verdicts = Verdicts::default();
        verdicts.add("fmt", &Ok(Done::Passed(String::new())));
        verdicts.add("unit", &Ok(Done::Passed("3 tests".to_owned())));
        assert_eq!(verdicts.summary(), "2 passed, 0 failed, 0 skipped");
        verdicts.add("loom", &Err("exit status 101".to_owned()));
        verdicts.add("miri", &Ok(Done::Skipped("no nightly".to_owned())));
        let summary = verdicts.summary();
        assert!(
            summary.contains("failed, 1:\n  loom: exit status 101\n2 passed"),
            "{summary}"
        );
        assert!(summary.contains("\n  miri: no nightly\n"), "{summary}");
        assert_eq!(
            summary.lines().last(),
            Some("2 passed, 1 failed, 1 skipped")
        );
    }

    #[test]
    fn steps_are_found_by_name_and_number() {
        assert_eq!(find_step("1").map(|step| step.name), Ok(STEPS[0].name));
        assert_eq!(find_soak("daemon").map(|step| step.name), Ok("daemon"));
        assert_eq!(find_step("no_std").map(|step| step.name), Ok("no_std"));
        for wrong in ["", "0", "99", "nonsense"] {
            assert!(find_step(wrong).is_err(), "{wrong}");
        }
    }
}
