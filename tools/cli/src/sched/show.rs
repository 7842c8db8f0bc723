//! Formats the output of `upshift sched`: a live line, tables, JSON.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::time::Duration;

use serde_json::{Value, json};
use upshift_sched::{EventKind, Quantiles, Report, Trace};

use super::args::SchedArgs;
use upshift_report::Table;
use upshift_report::number::{integer, micros};

/// Maximum width of the live line, in columns.
const WIDTH: usize = 100;

pub(super) fn line(report: &Report) -> String {
    let mut line = format!(
        "{} {:.0} s  {} switches, late {} p99",
        report.policy,
        report.elapsed as f64 / 1e9,
        integer(report.switches as f64),
        us(report.late.p99),
    );
    for task in report.tasks.iter().filter(|task| task.threads > 0) {
        let _ = write!(line, "  {} {:.1} %", task.label, 100.0 * task.share);
    }
    if line.chars().count() > WIDTH {
        line = line.chars().take(WIDTH - 1).chain(['…']).collect();
    }
    line
}

fn us(ns: u64) -> String {
    micros(ns as f64 / 1e3)
}

/// Prints the result. `min_slice` is the minimum length of a slice.
pub(super) fn finish(args: &SchedArgs, report: &Report, min_slice: Duration) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if args.json {
        writeln!(out, "{:#}", value(report, min_slice))?;
    } else {
        write!(out, "{}\n{}", tasks(report), engine(report, min_slice))?;
        for cpu in &report.lost {
            writeln!(
                out,
                "CPU {cpu} could not be used any more (offline, or not allowed): its tasks went to the others"
            )?;
        }
        for task in report.tasks.iter().filter(|task| task.refused > 0) {
            writeln!(
                out,
                "{} threads or children of {} were not scheduled: another user's, or there are more than {} together",
                task.refused,
                task.label,
                upshift_elevate::MAX_CAPACITY
            )?;
        }
        if report.untraced > 0 {
            writeln!(out, "the trace had no room for {} events", report.untraced)?;
        }
    }
    out.flush()
}

fn tasks(report: &Report) -> Table {
    let title = format!("{}, {:.2} s", report.policy, report.elapsed as f64 / 1e9);
    let mut table = Table::new(title, &["<task", "share", "CPU time", "turns", "threads"]);
    for task in &report.tasks {
        table.row([
            task.label.clone(),
            format!("{:.2} %", 100.0 * task.share),
            us(task.cpu_time),
            integer(task.turns as f64),
            match task.threads {
                0 if task.left_out => "left out".into(),
                0 => "ended".into(),
                n => n.to_string(),
            },
        ]);
    }
    table
}

fn engine(report: &Report, min_slice: Duration) -> Table {
    let mut table = Table::new("", &["<scheduler", "", "median", "p99", "longest"]);
    let figures = |figures: &Quantiles| [figures.p50, figures.p99, figures.max].map(us);
    for (event, times) in [
        ("a switch", &report.cost),
        ("a turn ends late by", &report.late),
    ] {
        let [p50, p99, max] = figures(times);
        table.row([event.into(), String::new(), p50, p99, max]);
    }
    let percent = |ns: u64| format!("{:.2} %", 100.0 * ns as f64 / report.elapsed.max(1) as f64);
    for (name, figure) in [
        ("switches", integer(report.switches as f64)),
        ("wake-ups", integer(report.waits as f64)),
        (
            "calls that changed a priority",
            integer(report.calls as f64),
        ),
        ("its own CPU time", percent(report.own_cpu_time)),
        ("time open to ordinary threads", percent(report.opened)),
        ("shortest slice", us(min_slice.as_nanos() as u64)),
    ] {
        table.row([name.into(), figure]);
    }
    table
}

fn quantiles(times: &Quantiles) -> Value {
    json!({ "p50_ns": times.p50, "p99_ns": times.p99, "max_ns": times.max })
}

fn value(report: &Report, min_slice: Duration) -> Value {
    let task = |task: &upshift_sched::TaskReport| {
        json!({
            "label": task.label,
            "share": task.share,
            "cpu_ns": task.cpu_time,
            "turns": task.turns,
            "threads": task.threads,
            "refused": task.refused,
            "left_out": task.left_out,
        })
    };
    json!({
        "policy": report.policy,
        "elapsed_ns": report.elapsed,
        "tasks": report.tasks.iter().map(task).collect::<Vec<_>>(),
        "turns": report.turns,
        "switches": report.switches,
        "wakeups": report.waits,
        "calls": report.calls,
        "switch_cost": quantiles(&report.cost),
        "lateness": quantiles(&report.late),
        "scheduler_cpu_ns": report.own_cpu_time,
        "opened_ns": report.opened,
        "min_slice_ns": min_slice.as_nanos() as u64,
        "untraced": report.untraced,
    })
}

/// Formats every event, one JSON object per line. `open` tells whether ordinary threads may run.
pub(super) fn trace(report: &Report, trace: &Trace) -> String {
    let label = |task: upshift_sched::TaskId| {
        let task = report.tasks.get(task.0);
        task.map_or_else(String::new, |task| task.label.clone())
    };
    let mut lines = String::new();
    for event in trace.events() {
        let value = match event.kind {
            EventKind::Front { cpu, task } => {
                json!({ "at_ns": event.at, "cpu": cpu, "front": task.map(label) })
            }
            EventKind::Opened => json!({ "at_ns": event.at, "open": true }),
            EventKind::Closed => json!({ "at_ns": event.at, "open": false }),
            EventKind::Ended(task) => json!({ "at_ns": event.at, "ended": label(task) }),
        };
        let _ = writeln!(lines, "{value}");
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use upshift_sched::TaskReport;

    fn report() -> Report {
        let task = |n: usize| TaskReport {
            label: format!("a-rather-long-name-{n}"),
            share: 0.125,
            cpu_time: 1_000_000,
            turns: 123_456,
            threads: n,
            refused: 0,
            left_out: false,
        };
        Report {
            policy: "rr",
            elapsed: 8_000_000,
            tasks: (0..8).map(task).collect(),
            ..Report::default()
        }
    }

    #[test]
    fn the_live_line_fits_the_terminal() {
        assert!(line(&report()).chars().count() <= WIDTH);
    }

    #[test]
    fn tables_and_json_show_every_task() {
        let (report, min_slice) = (report(), Duration::from_micros(50));
        let text = format!("{}{}", tasks(&report), engine(&report, min_slice));
        assert!(text.contains("a-rather-long-name-7") && text.contains("ended"));
        assert!(!text.contains("left out"));
        let value = value(&report, min_slice);
        assert_eq!(value["tasks"].as_array().map(Vec::len), Some(8));
        assert_eq!(value["min_slice_ns"], 50_000);
    }

    #[test]
    fn a_process_that_was_left_out_is_not_reported_as_ended() {
        let mut report = report();
        report.tasks[0].left_out = true;
        let text = format!("{}", tasks(&report));
        assert!(
            text.contains("left out") && !text.contains("ended"),
            "{text}"
        );
    }
}
