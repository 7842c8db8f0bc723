//! Experiment 6: an urgent server and a batch process that burns every CPU, without and with the daemon.
//!
//! The server answers 1,000 requests per second at level 2 on one CPU; the batch has two coroutines per CPU that compute at
//! level 40 without end. The kernel sees two processes of equal rights; `nice` makes the batch's share small, but does not
//! let the server in at once. With the daemon, both publish their levels, and the server goes first when it has something
//! to do.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use upshift_load::scenario::{self, BATCH_LEVEL, Burnt, CLIENT_PRIORITY, URGENT_LEVEL};
use upshift_load::{GroupReport, Report, SpinPlan};

use super::bench::{Bench, keep_going, planned, server_flags};
use super::preempted;
use upshift_report::number::{factor, grouped, micros};
use upshift_report::{Plot, Table};

use crate::demo::report::{Finding, Section};
use crate::load;
use crate::load::latencies;

/// Start and end of daemon and batch.
const MARGIN: Duration = Duration::from_millis(300);

fn time(quick: bool) -> Duration {
    Duration::from_millis(if quick { 700 } else { 2500 })
}

/// How long the experiment is planned to take.
pub(crate) fn plan(quick: bool) -> Duration {
    (takes(quick) + MARGIN) * 4
}

/// What runs beside the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nothing,
    Batch,
    NiceBatch,
    BatchOnTheBoard,
}

/// What was measured.
struct Run {
    name: &'static str,
    load: Report,
    batch: Option<Burnt>,
    colour: usize,
}

impl Run {
    fn server(&self) -> Option<&GroupReport> {
        self.load.groups.first()
    }

    /// The batch's part of the CPU time that server and client left, 0 to 1.
    fn batch_share(&self) -> Option<f64> {
        let batch = self.batch.as_ref()?;
        let (user, system) = self.load.server_cpu_us?;
        let each = user + system + self.load.client_cpu_us?;
        let taken = each * self.load.total.per_second / 1e6;
        Some(batch.work / batch.seconds / (batch.cpus as f64 - taken))
    }
}

/// Runs the experiment.
pub(crate) fn run(bench: &mut Bench) -> Result<Section> {
    let mut runs = Vec::new();
    let mut findings = Vec::new();
    for (name, beside, colour) in [
        ("nothing else", Beside::Nothing, 2),
        ("batch", Beside::Batch, 1),
        ("batch, nice 19", Beside::NiceBatch, 3),
        ("batch, daemon", Beside::BatchOnTheBoard, 0),
    ] {
        match keep_going(measure(bench, name, beside))? {
            Ok((load, batch)) => runs.push(Run {
                name,
                load,
                batch,
                colour,
            }),
            Err(why) => findings.push(Finding::failed(format!(
                "The run \"{name}\" failed: {why}."
            ))),
        }
    }
    findings.splice(0..0, compare(&runs));
    let mut plot = Plot::latencies("Latency of the server by percentile");
    for run in &runs {
        if let Some(server) = run.server() {
            preempted::add(&mut plot, run.name, server, run.colour);
        }
    }
    Ok(Section {
        title: "6. An urgent server beside a batch process".into(),
        intro: "Two processes. A server on one CPU gets 1,000 requests per second of 100 µs, at level 2. A batch process \
                computes on every CPU at level 40 and never waits. In the last run both have joined `upshift daemon`, \
                which gives the CPU to the process with the most urgent coroutine; the kernel is a stock one. The client \
                runs above all of them."
            .into(),
        findings,
        plots: vec![plot],
        tables: vec![table(&runs)],
        commands: commands(bench),
        ..Section::default()
    })
}

fn measure(bench: &mut Bench, name: &str, beside: Beside) -> Result<(Report, Option<Burnt>)> {
    let awake = (beside == Beside::Nothing).then(|| bench.awake());
    let board = beside == Beside::BatchOnTheBoard;
    let daemon = board.then(|| bench.daemon()).transpose()?;
    let board = if board { "required" } else { "off" };
    let server = bench.board_server(URGENT_LEVEL, board)?;
    let batch = match beside {
        Beside::Nothing => None,
        _ => Some(bench.batch(beside == Beside::NiceBatch, board)?),
    };
    let time = takes(bench.quick);
    let report = bench.spin_load(name, &server, &load(bench.quick), time)?;
    let burnt = batch
        .map(|batch| {
            let text = batch.stop(&bench.stop)?;
            serde_json::from_str(&text).with_context(|| format!("the batch printed `{text}`"))
        })
        .transpose()?;
    server.stop(&bench.stop)?;
    let socket = bench.children.daemon.take();
    if let Some(daemon) = daemon {
        daemon.stop(&bench.stop)?;
    }
    if let Some(folder) = socket.as_deref().and_then(Path::parent) {
        let _ = std::fs::remove_dir(folder);
    }
    drop(awake);
    Ok((report, burnt))
}

fn load(quick: bool) -> SpinPlan {
    let mut plan = scenario::urgent(time(quick));
    plan.fifo = preempted::may_elevate().then_some(CLIENT_PRIORITY);
    plan
}

fn takes(quick: bool) -> Duration {
    let plan = scenario::urgent(time(quick));
    planned(plan.warmup, plan.duration)
}

fn compare(runs: &[Run]) -> Vec<Finding> {
    let named = |name| {
        let run: Option<&Run> = runs.iter().find(|run| run.name == name);
        run.and_then(|run| Some((run, run.server()?)))
            .filter(|(_, server)| server.requests > 0)
    };
    let mut findings = Vec::new();
    let (Some((_, alone)), Some((run, with))) = (named("nothing else"), named("batch, daemon"))
    else {
        return findings;
    };
    let without = |name| {
        named(name).map_or_else(String::new, |(_, server)| {
            format!(", {} with \"{name}\"", micros(server.p99))
        })
    };
    findings.push(Finding::new(format!(
        "With the daemon the server's p99 beside the batch is {}; alone it is {} ({}){}{}.",
        micros(with.p99),
        micros(alone.p99),
        factor(with.p99, alone.p99),
        without("batch"),
        without("batch, nice 19"),
    )));
    if let Some(share) = run.batch_share() {
        findings.push(Finding::new(format!(
            "With the daemon the batch got {:.0} % of the CPU time that server and client left.",
            100.0 * share
        )));
    }
    findings
}

fn table(runs: &[Run]) -> Table {
    let mut table = Table::new(
        "The server, and what the batch got done",
        &[
            "<beside the server",
            "served/s",
            "p50",
            "?p90",
            "p99",
            "?p99.9",
            "max",
            "batch, CPUs",
        ],
    );
    for run in runs {
        let Some(server) = run.server() else { continue };
        let batch = run.batch.as_ref().map_or_else(String::new, |batch| {
            format!("{:.2}", batch.work / batch.seconds)
        });
        let cells = [run.name.to_owned(), grouped(server.per_second)].into_iter();
        table.row(cells.chain(latencies(server)).chain([batch]));
    }
    table
}

fn commands(bench: &Bench) -> Vec<String> {
    vec![
        "export UPSHIFT_DAEMON_SOCKET=$(mktemp -d)/daemon.sock".into(),
        "upshift daemon --socket $UPSHIFT_DAEMON_SOCKET & DAEMON=$!; sleep 1".into(),
        format!(
            "upshift spin-server --listen 127.0.0.1:7000@{URGENT_LEVEL} --board required {} & SERVER=$!; sleep 1",
            server_flags(&bench.placement.server).join(" ")
        ),
        format!("upshift burn --level {BATCH_LEVEL} --board required & BATCH=$!; sleep 1"),
        format!(
            "upshift load spin --connect 127.0.0.1:7000 {}{} --server-pid $SERVER",
            load::flags(&load(bench.quick)),
            bench.placement.client_flag()
        ),
        "kill $BATCH; wait $BATCH; kill $SERVER; wait $SERVER; kill $DAEMON; wait $DAEMON".into(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::sample;

    fn run(name: &'static str, p99: f64, work: f64) -> Run {
        let mut load = sample(&[[30.0, p99, 2.0 * p99]]);
        load.server_cpu_us = Some((100.0, 10.0));
        load.client_cpu_us = Some(90.0);
        Run {
            name,
            load,
            batch: Some(Burnt {
                seconds: 2.0,
                work,
                cpus: 2,
            }),
            colour: 0,
        }
    }

    #[test]
    fn the_batch_is_held_against_what_is_left() {
        // 1,000 requests per second of 200 µs leave 1.8 CPUs.
        let share = run("batch", 50.0, 3.6).batch_share().unwrap();
        assert!((share - 1.0).abs() < 1e-9);
    }

    #[test]
    fn server_and_batch_are_compared_with_what_they_get_alone() {
        let alone = run("nothing else", 50.0, 0.0);
        let found = compare(&[alone, run("batch, daemon", 900.0, 1.8)]);
        assert!(found[0].text.contains("900 µs") && found[0].text.contains("18×"));
        assert!(found[1].text.contains(" 50 %"), "{}", found[1].text);
        assert!(compare(&[run("nothing else", 50.0, 0.0)]).is_empty());
    }
}
