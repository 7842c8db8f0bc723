//! The tour: the experiments in their order, the terminal, the report.
//!
//! The report appears under its name only when it is complete: Ctrl-C leaves an older one alone.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::args::DemoArgs;
use super::bench::{Bench, Placement};
use super::children::{Children, Interrupted, Stop};
use super::progress::Progress;
use super::report::Section;
use super::report::html::{Content, page};
use super::{coroutines_vs_threads, endless, levels, long_requests, million, processes};
use upshift_load::machine::{self, Machine};

/// An experiment: its name for the progress bar, how long it is planned to take, how it is run.
struct Experiment {
    name: &'static str,
    plan: fn(&Placement, bool) -> Duration,
    run: fn(&mut Bench) -> Result<Section>,
}

/// In the order of their numbers, which begin with 1.
const EXPERIMENTS: [Experiment; 6] = [
    Experiment {
        name: "coroutines vs threads",
        plan: |_, quick| coroutines_vs_threads::plan(quick),
        run: coroutines_vs_threads::run,
    },
    Experiment {
        name: "8 levels at overload",
        plan: |placement, quick| levels::plan(quick, placement.all.len()),
        run: levels::run,
    },
    Experiment {
        name: "a million coroutines",
        plan: |_, quick| million::plan(quick),
        run: million::run,
    },
    Experiment {
        name: "long requests among short ones",
        plan: |_, quick| long_requests::plan(quick),
        run: long_requests::run,
    },
    Experiment {
        name: "pings against an endless coroutine",
        plan: |_, quick| endless::plan(quick),
        run: endless::run,
    },
    Experiment {
        name: "an urgent server beside a batch process",
        plan: |_, quick| processes::plan(quick),
        run: processes::run,
    },
];

/// How long the machine is watched before the start.
const IDLE_CHECK: Duration = Duration::from_millis(250);
/// Share of the CPUs from which on others disturb the measurements.
const BUSY_SHARE: f64 = 0.1;

/// Runs the demo. Ctrl-C is a result, not an error: 128 + the signal.
pub(crate) fn demo(args: &DemoArgs) -> Result<ExitCode> {
    require_runtime()?;
    let stop = Stop::install()?;
    let draft = Draft::create(&args.report)?;
    let began = Instant::now();
    let result = tour(args, stop, began);
    match result {
        Ok(html) => {
            draft.publish(&html, &args.report)?;
            writeln!(
                io::stdout(),
                "\nreport: {} ({:.0} s)",
                args.report.display(),
                began.elapsed().as_secs_f64()
            )?;
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => match error.downcast_ref::<Interrupted>() {
            Some(&Interrupted(signal)) => {
                eprintln!("interrupted: all children are stopped, the report was not written");
                Ok(ExitCode::from(128 + u8::try_from(signal).unwrap_or(0)))
            }
            None => Err(error.context("no report was written")),
        },
    }
}

fn tour(args: &DemoArgs, stop: Stop, began: Instant) -> Result<String> {
    let machine = Machine::read();
    let placement = Placement::choose();
    let wanted: Vec<(u8, &Experiment)> = (1..)
        .zip(&EXPERIMENTS)
        .filter(|(n, _)| args.only.is_empty() || args.only.contains(n))
        .collect();
    let planned: Duration = wanted
        .iter()
        .map(|(_, experiment)| (experiment.plan)(&placement, args.quick))
        .sum();
    let mut out = io::stdout();
    writeln!(
        out,
        "upshift demo, about {:.0} s\n{}\n{}",
        planned.as_secs_f64(),
        machine.line(),
        placement.line()
    )?;
    let mut placement_line = placement.line();
    let busy = machine::busy_share(IDLE_CHECK);
    if busy > BUSY_SHARE {
        let warning = format!(
            "other programs used {:.0} % of the CPUs before the start",
            busy * 100.0
        );
        writeln!(out, "note: {warning}: expect noise")?;
        placement_line = format!("{placement_line}; {warning}");
    }
    let mut bench = Bench {
        quick: args.quick,
        placement,
        children: Children::new(stop.clone())?,
        stop,
        progress: Progress::new(planned),
    };
    let mut sections: Vec<Section> = Vec::new();
    for (n, experiment) in wanted {
        let number = usize::from(n);
        bench
            .progress
            .stage(number, EXPERIMENTS.len(), experiment.name);
        let result = (experiment.run)(&mut bench);
        bench.progress.clear();
        let section = result?;
        section.print(&mut out)?;
        sections.push(section);
    }
    if let Some(headline) = sections.iter_mut().find_map(|s| s.headline.as_mut()) {
        if busy > BUSY_SHARE {
            headline
                .verdict
                .push_str(" Other programs kept the CPUs busy: run it again on a quiet machine.");
        }
        headline.print(&mut out)?;
    }
    Ok(page(&Content {
        machine: &machine,
        command: &command_line(args),
        placement: &placement_line,
        seconds: began.elapsed().as_secs_f64(),
        sections: &sections,
    }))
}

/// Where no runtime can be made, what to do about it is said before anything is measured.
fn require_runtime() -> Result<()> {
    upshift::Runtime::builder()
        .vcpus(1)
        .build()
        .map(drop)
        .context("no runtime can be made (`upshift doctor` says what works here)")
}

fn command_line(args: &DemoArgs) -> String {
    let mut command = "upshift demo".to_owned();
    if args.quick {
        command.push_str(" --quick");
    }
    if !args.only.is_empty() {
        command.push_str(" --only ");
        command.push_str(
            &args
                .only
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(","),
        );
    }
    command
}

/// A file beside the report that becomes it; removed when the demo ends without one.
struct Draft(PathBuf);

impl Draft {
    /// Creates the file now, so that a wrong path is known before the minute is spent.
    fn create(report: &Path) -> Result<Draft> {
        let name = report
            .file_name()
            .with_context(|| format!("--report {}: name a file", report.display()))?;
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}", std::process::id()));
        let path = report.with_file_name(hidden);
        fs::File::create(&path).with_context(|| {
            format!("cannot write the report to {}: name a file in a directory you may write to (--report FILE)", report.display())
        })?;
        Ok(Draft(path))
    }

    fn publish(self, html: &str, report: &Path) -> Result<()> {
        fs::write(&self.0, html)
            .and_then(|()| fs::rename(&self.0, report))
            .with_context(|| format!("cannot write the report to {}", report.display()))
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // Gone already if it was published.
        let _ = fs::remove_file(&self.0);
    }
}
