//! Runs `upshift load`: turns flags into a plan, executes it, and prints the result.
//!
//! Ctrl-C ends the run early, prints the measurements so far and exits with 130. A run with errors
//! prints its result too, and then fails with the first error.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result};
use upshift_load::scenario::CLIENT_PRIORITY;
use upshift_load::{Group, Outcome, Pace, Plan, Report, Work, run};

use super::args::{LoadArgs, LoadCommonArgs, LoadWork};
use super::show::{cpu_line, lag_line, table};

pub(crate) fn load(args: &LoadArgs) -> Result<ExitCode> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot handle Ctrl-C")?;
    }
    let (mut plan, elevate, json) = match &args.work {
        LoadWork::Matrix(args) => {
            let work = Work::Matrix { n: args.size };
            grouped_plan(work, &args.common)
        }
        LoadWork::Http(args) => {
            let work = Work::Http {
                path: args.path.clone(),
                headers: args.header.clone(),
                pipeline: args.pipeline,
            };
            grouped_plan(work, &args.common)
        }
        LoadWork::Spin(args) => (args.plan(), args.elevate, args.measuring.json),
    };
    plan.stop = Some(stop);
    plan.fifo = elevate.then_some(CLIENT_PRIORITY);
    print(&run(&plan)?, json)
}

/// Prints the result; the exit code tells whether the run was complete.
fn print(outcome: &Outcome, json: bool) -> Result<ExitCode> {
    let report = Report::new(outcome);
    let mut out = std::io::stdout();
    if json {
        writeln!(out, "{}", serde_json::to_string(&report)?)?;
    } else {
        write!(out, "{}\n{}\n", table(&report), cpu_line(&report))?;
        let lag = lag_line(&report);
        if !lag.is_empty() {
            writeln!(out, "{lag}")?;
        }
    }
    if report.total.errors > 0 {
        let first = report.total.first_error.as_deref().unwrap_or("no details");
        eprintln!(
            "error: {} requests or connections failed; the first: {first}",
            report.total.errors
        );
        return Ok(ExitCode::FAILURE);
    }
    if outcome.stopped {
        eprintln!("interrupted: the figures cover {:.1} s", report.seconds);
        return Ok(ExitCode::from(130));
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the plan of the flags, and whether to elevate the client and to print JSON.
fn grouped_plan(work: Work, args: &LoadCommonArgs) -> (Plan, bool, bool) {
    let pace = match (args.period, args.rate) {
        (Some(period), _) => Pace::Open { period },
        (None, Some(per_second)) => Pace::OpenRate { per_second },
        (None, None) => Pace::Closed,
    };
    let groups = args
        .connect
        .iter()
        .map(|endpoint| Group::new(endpoint.address, args.connections, endpoint.label.clone()))
        .collect();
    let measuring = &args.measuring;
    let mut plan = Plan::new(groups, work, measuring.duration);
    plan.pace = pace;
    plan.warmup = measuring.warmup;
    // A server that prefers urgent connections may rightly keep others waiting until the end of the
    // run.
    plan.patience = measuring.warmup + measuring.duration + Duration::from_secs(5);
    plan.pin = measuring.pin;
    plan.server_pids = measuring.server_pid.into_iter().collect();
    (plan, args.elevate, measuring.json)
}
