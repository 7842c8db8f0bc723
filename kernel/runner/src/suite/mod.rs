//! Runs the test matrix: the tests of the kernel and of the programs, on each number of harts, in
//! deterministic time (QEMU's `-icount`), and under fault injection (*chaos*). The matrix also has
//! images that the kernel must refuse, and faults on which the machine must fail.
//!
//! Two more parts type commands to the shell (`shell`) and cut the power (`power_cut`).
//!
//! A run passes if the machine exits with the expected status, prints a line with the expected
//! prefix, prints no line that mentions a panic, and the check of the run holds. Failed machines
//! are repeated at the end.

mod failure;
mod matrix;
mod must_fail;
mod power_cut;
mod shell;

use std::io::Write;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Duration;

use crate::build::{self, Image};
use crate::qemu::{self, Machine, Network, Outcome};
use crate::state;
use failure::Failure;
use matrix::{ISOLATED, RV64GC, chaos, fuzz, isolated, matrix, rv64gc, tests_under_icount};

/// Time limit of a machine. It is generous, because the host may be slow and a hang is rare.
const LIMIT: Duration = Duration::from_secs(240);
/// Time limit of a run of all program tests in which the machine's clock advances with the
/// instruction count (`-icount`), under chaos or on several harts. It is long because QEMU then
/// uses one thread, and the host may be busy.
const LIMIT_OF_INSTRUCTIONS: Duration = Duration::from_secs(600);

/// Longest time that five vCPUs may take on 4 harts, in thousandths of the time of four vCPUs.
const MAX_RATIO_OF_FIVE: u32 = 1_200;

/// Default number of seeds of chaos; a soak begins with the next seed.
pub(crate) const SEEDS: u64 = 6;
/// Last seed of chaos in a soak.
const SOAK_SEEDS: u64 = 40;
/// Number of seeds in a soak for the programs that make arbitrary calls.
const FUZZ_SEEDS: u64 = 200;
/// Number of these seeds that one machine runs.
const FUZZ_SEEDS_PER_MACHINE: u64 = 50;

/// Number of power cuts in the suite.
const POWER_CUTS: u64 = 5;
/// Number of power cuts in a soak.
const SOAK_POWER_CUTS: u64 = 200;

/// Number of machines that run concurrently.
const PARALLEL_MACHINES: usize = 2;

/// The seeds of chaos that run.
#[derive(Clone, Copy)]
pub(crate) enum Seeds {
    /// This many seeds, beginning with the first, after all other machines.
    First(u64),
    /// Only this seed, and no other machine.
    Only(u64),
}

/// A machine, and the conditions under which its run passes.
struct Run {
    name: String,
    /// The image, if it is not the default.
    image: Option<Image>,
    machine: Machine,
    status: i32,
    /// Prefix of the line that the machine must print, normally as its last.
    last: &'static str,
    limit: Duration,
    check: fn(&Outcome) -> Result<(), String>,
    /// The peer on the machine's network, if any.
    peer: Option<fn(Network) -> Result<(), String>>,
    /// The command that repeats the run.
    repeat: Option<String>,
}

/// Returns a run of the default image, whose programs or tests must pass.
fn run_of(name: String, smp: u32, arguments: &str) -> Run {
    let last = if arguments.starts_with("selftest") {
        "selftest: "
    } else {
        "upshift: tests ended with 0"
    };
    Run {
        name,
        image: None,
        machine: Machine::new(smp, arguments),
        status: 0,
        last,
        limit: LIMIT,
        check: |_| Ok(()),
        peer: None,
        repeat: None,
    }
}

impl Run {
    /// Runs the machine with QEMU's `-icount`: its clock advances with the instruction count.
    fn icount(mut self) -> Run {
        self.machine.icount = true;
        self
    }
}

/// Runs the whole suite, or a seed of chaos, or the runs whose name contains `only`. Prints a line
/// per test.
pub(crate) fn run(smp: &[u32], seeds: Seeds, only: Option<&str>) -> Result<ExitCode, String> {
    let image = build::image()?;
    let mut runs = match seeds {
        Seeds::Only(seed) => vec![chaos(seed)],
        Seeds::First(count) => matrix(smp, count)?,
    };
    if let Some(part) = only {
        runs.retain(|run| run.name.contains(part));
    }
    let is_wanted = |name: &str| {
        matches!(seeds, Seeds::First(_)) && only.is_none_or(|only| name.contains(only))
    };
    let wants_power_cut = is_wanted(power_cut::NAME);
    let wants_shell = is_wanted(shell::NAME);
    if is_wanted(RV64GC) {
        runs.push(rv64gc()?);
    }
    if only.is_none_or(|only| only.contains(ISOLATED)) && matches!(seeds, Seeds::First(_)) {
        let all = isolated()?.into_iter();
        runs.extend(all.filter(|run| is_wanted(&run.name)));
    }
    if let (Some(part), true) = (only, runs.is_empty() && !wants_power_cut && !wants_shell) {
        return Err(format!(
            "no test has {part:?} in its name: `cargo xtask os -- test` prints the names"
        ));
    }
    let failures = run_all(&image, runs.into_iter())?;
    let has_survived = !wants_power_cut || power_cut::run(&image, POWER_CUTS)?;
    let shell_passed = !wants_shell || shell::run(&image);
    if let (Seeds::First(count), None) = (seeds, only) {
        println!(
            "chaos: {count} seeds; `cargo xtask os -- soak` runs seeds up to {SOAK_SEEDS}, and \
             {FUZZ_SEEDS} seeds of the fuzz programs (arbitrary system calls)"
        );
    }
    let failures = failure::rerun(&image, failures)?;
    Ok(code(
        failure::report(&failures) && has_survived && shell_passed,
    ))
}

fn code(has_passed: bool) -> ExitCode {
    ExitCode::from(u8::from(!has_passed))
}

/// Runs all tests `runs` times, then the seeds that the matrix omits. `only` restricts both to runs
/// whose name contains it.
pub(crate) fn soak(smp: u32, runs: u64, only: Option<&str>) -> Result<ExitCode, String> {
    let image = build::image()?;
    let is_wanted = |name: &str| only.is_none_or(|only| name.contains(only));
    let repeated = (1..=runs).flat_map(|number| {
        let name = format!("soak {number}, smp {smp}");
        let kernel = run_of(format!("{name} kernel"), smp, "selftest");
        [kernel, run_of(name, smp, "init=tests")]
    });
    let icounted = [2, 4, 8].map(tests_under_icount);
    let seeds = (SEEDS + 1..=SOAK_SEEDS).map(chaos);
    let fuzz = (1..=FUZZ_SEEDS)
        .step_by(FUZZ_SEEDS_PER_MACHINE as usize)
        .flat_map(|first| [(1, true), (2, false), (4, false)].map(|with| fuzz(first, with)));
    let others = icounted.into_iter().chain(fuzz).chain(seeds);
    let has_survived = !is_wanted(power_cut::NAME) || power_cut::run(&image, SOAK_POWER_CUTS)?;
    // The repeated runs go one at a time, so that no other machine delays them.
    let mut failures = run_some(&image, repeated.filter(|run| is_wanted(&run.name)), 1)?;
    failures.extend(run_all(&image, others.filter(|run| is_wanted(&run.name)))?);
    Ok(code(failure::report(&failures) && has_survived))
}

/// Runs only power cuts, as many as a soak if `seeds` is `None`.
pub(crate) fn power_cuts(seeds: Option<u64>) -> Result<ExitCode, String> {
    let image = build::image()?;
    let has_survived = power_cut::run(&image, seeds.unwrap_or(SOAK_POWER_CUTS))?;
    Ok(code(has_survived))
}

fn run_all(image: &Image, runs: impl Iterator<Item = Run> + Send) -> Result<Vec<Failure>, String> {
    run_some(image, runs, PARALLEL_MACHINES)
}

/// Runs machines, `parallel` of them concurrently, and prints the tests of each when it ends.
/// Returns the failures.
fn run_some(
    image: &Image,
    runs: impl Iterator<Item = Run> + Send,
    parallel: usize,
) -> Result<Vec<Failure>, String> {
    let runs = Mutex::new(runs);
    let ended = Mutex::new((Counts::default(), Vec::new()));
    let next = || runs.lock().map_or(None, |mut runs| runs.next());
    let work = || -> Result<(), String> {
        while let Some(run) = next() {
            let (counts, failure) = run_one(image, run)?;
            if let Ok(mut ended) = ended.lock() {
                ended.0.passed += counts.passed;
                ended.0.failed += counts.failed;
                ended.1.extend(failure);
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..parallel).map(|_| scope.spawn(work)).collect();
        let mut ended = workers.into_iter().map(|worker| worker.join());
        ended.try_for_each(|end| end.unwrap_or(Err("a worker panicked".to_owned())))
    })?;
    let ended = ended.into_inner();
    let (Counts { passed, failed }, failures) = ended.map_err(|_| "a worker panicked")?;
    println!("{passed} passed, {failed} failed");
    Ok(failures)
}

/// Numbers of tests; the end of a machine counts as a test.
#[derive(Default)]
struct Counts {
    passed: u32,
    failed: u32,
}

/// Runs a machine and prints its tests.
fn run_one(image: &Image, run: Run) -> Result<(Counts, Option<Failure>), String> {
    let image = run.image.as_ref().unwrap_or(image);
    let network = run.machine.network;
    let peer = run
        .peer
        .map(|peer| std::thread::spawn(move || peer(network)));
    let outcome = qemu::run(image, &run.machine, run.limit)?;
    let peer = peer.map_or(Ok(()), |peer| {
        peer.join().unwrap_or(Err("the peer panicked".into()))
    });
    let name = &run.name;
    let mut counts = Counts::default();
    // The lock keeps the lines of a report together.
    let mut report = std::io::stdout().lock();
    let tests = outcome.output.lines();
    for line in tests.filter(|line| line.starts_with("test ")) {
        let _ = writeln!(report, "{name}: {line}");
        if line.ends_with(" ok") {
            counts.passed += 1
        } else {
            counts.failed += 1
        }
    }
    let duration = outcome.duration;
    let verdict = verdict(&run, &outcome);
    let reason = match verdict.and(peer.map_err(|error| format!("the peer: {error}"))) {
        Ok(()) => {
            counts.passed += 1;
            let _ = writeln!(
                report,
                "{name}: test ends_as_it_should ... ok ({duration:.1?})"
            );
            None
        }
        Err(reason) => {
            counts.failed += 1;
            let output = &outcome.output;
            let _ = writeln!(
                report,
                "{name}: FAILED after {duration:.1?}: {reason}\n{output}"
            );
            let _ = write!(report, "{}", state_of(name, image, &outcome));
            if let Some(repeat) = &run.repeat {
                let _ = writeln!(report, "{name}: to repeat it: {repeat}");
            }
            Some(reason)
        }
    };
    let output = outcome.output;
    let failure = (counts.failed != 0).then_some(Failure {
        run,
        reason,
        output,
    });
    Ok((counts, failure))
}

/// Saves the state of a failed run, and returns the position of each hart.
fn state_of(name: &str, image: &Image, outcome: &Outcome) -> String {
    let state = outcome
        .state
        .as_deref()
        .unwrap_or("the machine ended by itself\n");
    let log = format!("{}\n{}", outcome.end, outcome.output);
    let (path, harts) = state::save(name, image, state, &log);
    let path = path.display();
    format!("{harts}{name}: its last state is saved in {path}\n")
}

fn verdict(run: &Run, outcome: &Outcome) -> Result<(), String> {
    if run.status == 0 && outcome.output.contains("panicked") {
        return Err("a component panicked".to_owned());
    }
    match outcome.status {
        Some(status) if status == run.status => {}
        _ => {
            let (end, expected) = (&outcome.end, run.status);
            return Err(format!("{end} instead of exit status {expected}"));
        }
    }
    let mut lines = outcome.output.lines().rev();
    if !lines.any(|line| line.starts_with(run.last)) {
        return Err(format!("the line `{}` is missing", run.last));
    }
    (run.check)(outcome)
}
