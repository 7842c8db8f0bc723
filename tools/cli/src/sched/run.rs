//! Runs the scheduler until all processes have ended, the duration has passed, or a signal arrives.
//!
//! The engine, which switches the tasks, runs on its own thread with a higher priority than they
//! have. The main thread waits for signals and prints. It is elevated to SCHED_FIFO, too, because
//! otherwise tasks that compute on every CPU would delay its response to a signal until they let
//! ordinary threads run. Dropping the engine demotes the threads that it has elevated. If this
//! process dies, the *guardian*, a forked process, demotes them.

use std::fs::File;
use std::io::{self, IsTerminal, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGTSTP};
use signal_hook::iterator::Signals;
use upshift_elevate::{Calibration, Elevator, Priority, Rights};
use upshift_sched::{
    Config, Engine, OpenPieces, ProcessMonitor, Processes, Report, SchedError, Scheduler, Trace,
};

use super::args::SchedArgs;
use super::tasks::{self, Origin, Tasks};
use super::{choice, show, timeline};

/// Maximum number of events in a trace: 24 MB, enough for two switches a millisecond during eight
/// minutes.
const MAX_TRACE_EVENTS: usize = 1_000_000;
/// Interval at which the main thread checks for signals and for the end. Each check takes a few µs
/// away from a task.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);

/// Time without progress of the scheduler, for example after SIGSTOP, after which the guardian
/// demotes the tasks. The time is many times the scheduler's longest sleep.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_millis(200);

/// The SCHED_FIFO priorities that the privileges permit.
struct FifoPriorities {
    /// Lowest priority of the tasks.
    base: Priority,
    /// Highest priority of the tasks.
    top: Priority,
    scheduler: Priority,
}

impl FifoPriorities {
    fn permitted_by(rights: &Rights) -> Result<FifoPriorities> {
        let default = Priority::of::<45>();
        let minimum = Priority::of::<3>();
        if let Err(missing) = rights.require(minimum) {
            bail!("{missing}");
        }
        let scheduler = rights.highest.unwrap_or(minimum).min(default);
        let below_scheduler = Priority::new(scheduler.get() - 1).unwrap_or(Priority::MIN);
        Ok(FifoPriorities {
            base: Priority::MIN,
            top: below_scheduler.min(Priority::of::<40>()),
            scheduler,
        })
    }
}

/// Output files for the trace and the drawing, created before anything runs, so that a wrong path
/// fails early.
struct Files {
    trace: Option<File>,
    timeline: Option<File>,
}

impl Files {
    fn create(args: &SchedArgs) -> Result<Files> {
        let create = |path: &Option<PathBuf>| match path {
            Some(path) => File::create(path)
                .map(Some)
                .with_context(|| format!("cannot write {}", path.display())),
            None => Ok(None),
        };
        Ok(Files {
            trace: create(&args.trace)?,
            timeline: create(&args.timeline)?,
        })
    }

    /// Writes both files, even if the first write fails.
    fn write(self, args: &SchedArgs, report: &Report, trace: &Trace) -> Result<()> {
        let write = |file: Option<File>, path: &Option<PathBuf>, text: &dyn Fn() -> String| {
            let (Some(mut file), Some(path)) = (file, path) else {
                return Ok(());
            };
            let written = file.write_all(text().as_bytes());
            written.with_context(|| format!("cannot write {}", path.display()))
        };
        let timeline = write(self.timeline, &args.timeline, &|| {
            timeline::svg(report, trace)
        });
        let lines = write(self.trace, &args.trace, &|| show::trace(report, trace));
        timeline.and(lines)
    }
}

pub(crate) fn sched(args: &SchedArgs) -> Result<ExitCode> {
    if args.has_unread_config() {
        bail!(
            "--config must be given once, in full (not abbreviated), followed by the name of one file"
        );
    }
    let mut specs = tasks::specs(args)?;
    let timetable = choice::read_timetable(args)?;
    let files = Files::create(args)?;
    let priorities = FifoPriorities::permitted_by(&Rights::probe())?;
    let mut signals =
        Signals::new([SIGHUP, SIGINT, SIGTERM, SIGTSTP]).context("cannot handle signals")?;
    // The guardian is forked before the tasks and the scheduler's thread are started, because it
    // keeps the memory that this process has at the fork. It closes the inherited descriptors and
    // blocks signals, so the output files and the signal handlers may exist already.
    let elevator = Elevator::builder()
        .guardian(true)
        .capacity(upshift_elevate::MAX_CAPACITY)
        .heartbeat(HEARTBEAT_TIMEOUT)
        .build()
        .context("cannot start the guardian, which restores processes if this one dies")?;
    let cpus = args.cpus();
    let scheduler_cpu = args.sched_cpu.unwrap_or(cpus[0]);
    let min_slice = match args.min_slice {
        Some(min_slice) => min_slice,
        None => Calibration::measure(Some(scheduler_cpu))?.min_quantum(),
    };
    let policy = choice::policy(args, &specs, timetable.as_deref(), min_slice)?;
    let config = Config {
        base: priorities.base,
        top: priorities.top,
        min_slice,
        // Times in which ordinary threads may compete with the tasks, as a part of all time.
        open_pieces: OpenPieces {
            part: args.open,
            ..OpenPieces::default()
        },
        trace: if args.wants_trace() {
            MAX_TRACE_EVENTS
        } else {
            0
        },
        ..Config::for_cpus(cpus)
    };
    let mut started = Tasks::start(&mut specs, !args.command.is_empty())?;
    let task = |spec: &tasks::Spec| (started.pid(spec), spec.label.clone(), spec.origin());
    let tasks: Vec<(i32, String, Origin)> = specs.iter().map(task).collect();
    let (elevator_handle, children) = (elevator.clone(), args.children);
    let (left_out_tx, left_out_rx) = std::sync::mpsc::channel();
    let build = move || -> Result<Engine<Processes>> {
        let mut engine = Engine::new(config, policy);
        let watch =
            ProcessMonitor::start(&engine.control(), &elevator_handle, priorities.scheduler)?;
        for (pid, label, origin) in &tasks {
            match Processes::attach(&elevator_handle, &watch, *pid, priorities.base, children) {
                Ok(task) => engine.add(task.with_label(label))?,
                Err(error) if origin.tolerates(&error) => {
                    let ended = matches!(error, SchedError::NoSuchProcess(_));
                    if *origin == Origin::Matched {
                        // Cannot fail: the receiving thread waits until the engine is built.
                        let _ = left_out_tx.send(error);
                    }
                    if ended {
                        engine.add_ended(label)
                    } else {
                        engine.add_left_out(label)
                    }
                }
                Err(error) => {
                    return Err(error).with_context(|| format!("cannot schedule {label}"));
                }
            };
        }
        Ok(engine)
    };
    // This thread is elevated before the tasks; otherwise they could keep it from running. If the
    // elevation fails for lack of a privilege, the start of the scheduler reports the error.
    let elevated = elevator.elevate_current(priorities.scheduler);
    let scheduler = Scheduler::start(&elevator, scheduler_cpu, priorities.scheduler, build)?;
    let matched = specs.iter().filter(|spec| spec.origin() == Origin::Matched);
    report_left_out(left_out_rx.try_iter().collect(), matched.count())?;
    let signal = wait_for_end(args, &scheduler, &mut signals);
    let (report, trace) = scheduler.stop()?;
    drop(elevated);
    let main = started.main_status();
    started.end();
    let printed = show::finish(args, &report, min_slice);
    files.write(args, &report, &trace)?;
    match printed {
        // A closed pipe (`| head`) ends the output and is no error.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        printed => printed.context("cannot print the result")?,
    }
    Ok(match (signal, main) {
        (Some(signal), _) => signal_exit_code(signal),
        (None, Some(status)) => exit_code(status),
        (None, None) => ExitCode::SUCCESS,
    })
}

/// Returns a shell's exit code for a program ended by a signal.
fn signal_exit_code(signal: i32) -> ExitCode {
    ExitCode::from(128 + u8::try_from(signal).unwrap_or(1))
}

fn exit_code(status: ExitStatus) -> ExitCode {
    match (status.code(), status.signal()) {
        (Some(code), _) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        (None, signal) => signal_exit_code(signal.unwrap_or(1)),
    }
}

/// Reports why matching processes cannot be scheduled; processes that have ended are not mentioned.
/// Fails with the first reason if all `matched` processes are left out and not all have ended.
fn report_left_out(reasons: Vec<SchedError>, matched: usize) -> Result<()> {
    let left_out = reasons.len();
    let mut reported: Vec<SchedError> = reasons;
    reported.retain(|error| !matches!(error, SchedError::NoSuchProcess(_)));
    if left_out == matched && !reported.is_empty() {
        return Err(reported.swap_remove(0)).context("cannot schedule any matching process");
    }
    for error in &reported {
        // Ignore errors: standard error may be closed.
        let _ = writeln!(io::stderr(), "note: left out: {error}");
    }
    Ok(())
}

/// Waits for the end and shows progress. Returns the signal that ended the run.
fn wait_for_end(args: &SchedArgs, scheduler: &Scheduler, signals: &mut Signals) -> Option<i32> {
    let deadline = args.duration.map(|time| Instant::now() + time);
    let is_interactive = !args.json && io::stderr().is_terminal();
    let mut last_shown = Instant::now();
    let signal = loop {
        let (suspending, ending): (Vec<i32>, Vec<i32>) =
            signals.pending().partition(|&signal| signal == SIGTSTP);
        if let Some(&signal) = ending.first() {
            break Some(signal);
        }
        if !suspending.is_empty() {
            // Ignore errors: standard error may be closed.
            let _ = writeln!(
                io::stderr(),
                "note: Ctrl-Z is ignored while tasks depend on this scheduler; Ctrl-C ends it"
            );
        }
        if scheduler.is_finished() || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            break None;
        }
        if is_interactive && last_shown.elapsed() >= Duration::from_secs(1) {
            last_shown = Instant::now();
            if let Some(report) = scheduler.control().report() {
                // Ignore errors: the terminal may be closed.
                let _ = write!(io::stderr(), "\r\x1b[K{}", show::line(&report));
            }
        }
        std::thread::sleep(SIGNAL_INTERVAL);
    };
    if is_interactive {
        let _ = write!(io::stderr(), "\r\x1b[K");
    }
    signal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_fails_if_all_matching_processes_are_left_out() {
        let refused = || SchedError::Leased(7);
        assert!(report_left_out(vec![refused(), refused()], 2).is_err());
        let ended = SchedError::NoSuchProcess(8);
        assert!(report_left_out(vec![refused(), ended], 2).is_err());
        assert!(report_left_out(vec![refused()], 2).is_ok());
        assert!(report_left_out(vec![SchedError::NoSuchProcess(8)], 1).is_ok());
        assert!(report_left_out(Vec::new(), 0).is_ok());
    }
}
