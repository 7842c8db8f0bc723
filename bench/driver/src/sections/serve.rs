//! The section `serve`: one axum application on two runtimes, urgent requests at overload, and
//! files.
//!
//! Server on CPU 0, client on CPU 1. The mixed load has two clients in this process, one for the
//! tenth of the requests that are urgent (`Priority: u=0`), one for the rest; both are open loops.
//! "Capacity" is the throughput of a closed loop of 64 connections with the same request on the
//! same server.
//!
//! The mixed load also runs on the alternatives of tokio's users: a second runtime,
//! `spawn_blocking`, HAProxy in front of processes ([`haproxy`]). The alternatives and axum on
//! Upshift with levels receive 120 % of the capacity of plain axum on tokio, so that all of them
//! see the same requests.

mod alternatives;
mod haproxy;

use std::time::Duration;

use upshift_load::{Group, Pace, Plan, Work, run as drive};
use upshift_report::plot::COLOURS;
use upshift_report::{Kind, Look, Plot};

use crate::measure::{Drive, Load, Measured, observe};
use crate::options::Options;
use crate::peers::{
    ALTERNATIVES, AXUM_TOKIO as TOKIO, AXUM_TOKIO_MT as TOKIO_MT, AXUM_UPSHIFT as OURS, Built,
    HAPROXY_WEIGHT, Program, Programs, WEB,
};
use crate::results::{Run, SectionResults};
use crate::rounds;
use crate::sections::assign::Cgroup;
use crate::sections::closed::{closed, page};
use crate::server::Server;
use crate::verdict::{Row, at_most, row};

pub(crate) use alternatives::table as alternatives;
use haproxy::{Behind, Deployed};

/// A closed loop of JSON requests.
const JSON_CASE: &str = "axum, JSON, 64 connections";
/// Closed loop with answers that take the server several times as long as the client, which also
/// has one CPU.
const ORDERS_CASE: &str = "axum, JSON of 30 orders, 64 connections";
/// The same requests at eight tenths of the capacity of the slowest server.
const ORDERS_80_CASE: &str = "axum, JSON of 30 orders, 80 % of capacity";
/// Capacity of each server.
const CAPACITY_CASE: &str = "computing, closed loop, 64 connections";
/// The urgent tenth alone.
const IDLE_CASE: &str = "computing, the urgent tenth alone";
/// The mixed load.
const OVERLOAD_CASE: &str = "computing, 120 % of capacity, a tenth urgent";
/// Files, by size in bytes.
const FILES: [(&str, usize); 2] = [
    ("file of 64 KiB, 16 connections", 64 << 10),
    ("file of 100 MiB, 2 connections", 100 << 20),
];

const SERVE: &str = "upshift serve";

/// Share of urgent requests.
const URGENT: f64 = 0.1;
const OVERLOAD: f64 = 1.2;
/// SCHED_FIFO priority of the client of urgent requests.
const CLIENT: u8 = 45;

/// Returns the row name of a server's urgent requests in the mixed load.
fn urgent_row(server: &str) -> String {
    format!("{server}: u=0")
}

/// Returns the row name of a server's other requests in the mixed load.
fn rest_row(server: &str) -> String {
    format!("{server}: the rest")
}

fn computing(urgent: bool) -> Work {
    let priority = if urgent {
        "Priority: u=0"
    } else {
        "Priority: u=3"
    };
    page("/matrix?n=64", &[priority], 1)
}

/// Urgent requests at one rate, and others at another.
#[derive(Clone)]
struct Mixed {
    urgent: f64,
    rest: f64,
    /// Processes behind the server, if it is a proxy.
    behind: Option<Behind>,
    time: Duration,
    keep_disturbed: bool,
}

impl Mixed {
    fn plan(&self, server: &Server, urgent: bool, per_second: f64) -> Plan {
        let group = Group::new(server.addresses[0], if urgent { 32 } else { 256 }, "mixed");
        let mut plan = Plan::new(vec![group], computing(urgent), self.time);
        plan.pace = Pace::OpenRate { per_second };
        plan.warmup = Duration::from_millis(500).min(self.time / 2);
        plan.patience = plan.warmup + plan.duration + Duration::from_secs(10);
        plan.pin = Some(1);
        // The two clients share a CPU; delays of the urgent requests there are not the server's.
        plan.fifo = urgent.then_some(CLIENT);
        plan.server_pids = server.pids();
        plan
    }
}

impl Drive for Mixed {
    fn measure(&self, program: &Program, _round: usize) -> Result<Measured, String> {
        let deployed = match &self.behind {
            Some(behind) => behind.start(program)?,
            None => Deployed::from(Server::start(program, &["127.0.0.1:0".into()], Some(0))?),
        };
        let server = &deployed.server;
        let urgent = self.plan(server, true, self.urgent);
        if self.rest == 0.0 {
            return observe(server, true, None, || drive(&urgent));
        }
        let rest = self.plan(server, false, self.rest);
        std::thread::scope(|scope| {
            let others = scope.spawn(|| observe(server, true, None, || drive(&rest)));
            let mut measured = observe(server, true, None, || drive(&urgent))?;
            let others = others.join().map_err(|_| "the client panicked")??;
            // Each client sees the other's CPU time as its own, since they share a process.
            measured.groups = vec![measured.all.clone(), others.all];
            Ok(measured)
        })
    }

    fn keep_disturbed(&self) -> bool {
        self.keep_disturbed
    }

    fn rows(&self, name: &str, measured: Measured) -> Vec<(String, Run)> {
        if self.rest == 0.0 {
            return vec![(urgent_row(name), measured.all)];
        }
        let names = [urgent_row(name), rest_row(name)];
        names.into_iter().zip(measured.groups).collect()
    }
}

/// Measures the section.
pub(crate) fn run(results: &mut SectionResults, options: &Options, built: &Built) {
    let folder = std::env::temp_dir().join(format!("upshift-bench-{}", std::process::id()));
    let made = std::fs::create_dir_all(&folder).and_then(|()| {
        FILES
            .iter()
            .try_for_each(|(_, size)| std::fs::write(folder.join(size.to_string()), vec![7; *size]))
    });
    if let Err(error) = made {
        results.note(format!("no files to serve: {error}"));
        return;
    }
    let root = folder.to_string_lossy().into_owned();
    // SAFETY: no other thread runs yet.
    unsafe { std::env::set_var("UPSHIFT_BENCH_ROOT", &root) };
    let args = ["serve", &root, "--vcpus", "1", "--cpu", "0"];
    let ours = built.upshift(&[&args[..], &["--connections-per-peer", "10000"]].concat());
    let ours = ours.map(|program| (SERVE.to_owned(), program));
    let all: Programs = ours.into_iter().chain(built.of(WEB)).collect();
    for (name, program) in &all {
        results.command(name, program);
    }
    let only = |wanted: &[&str]| -> Programs {
        let servers = all
            .iter()
            .filter(|(name, _)| wanted.contains(&name.as_str()));
        servers.cloned().collect()
    };
    json(results, options, &only(&[OURS, TOKIO, TOKIO_MT]));
    // Without a priority, the same application on Upshift adds nothing; nginx does not compute.
    let whole = only(&[SERVE, TOKIO, TOKIO_MT, "go-http"]);
    mixed(results, options, &whole, only(&ALTERNATIVES));
    let files = only(&[SERVE, "nginx"]);
    for (case, size) in FILES {
        let connections = if size > 1 << 20 { 2 } else { 16 };
        let work = page(&format!("/{size}"), &[], 1);
        closed(results, options, &files, case, &work, connections);
    }
    let _ = std::fs::remove_dir_all(folder);
}

fn json(results: &mut SectionResults, options: &Options, servers: &Programs) {
    let accept = ["Accept: application/json"];
    let little = page("/json?name=world", &accept, 1);
    closed(results, options, servers, JSON_CASE, &little, 64);
    let work = page("/orders?count=30", &accept, 1);
    closed(results, options, servers, ORDERS_CASE, &work, 64);
    let Some((_, slowest)) = results.least(ORDERS_CASE, |_| true, |run| run.per_second) else {
        return;
    };
    let mut load = Load::closed(work, 64, options);
    load.rate = Some(0.8 * slowest);
    let entries = rounds::entries(servers, |_| Some(load.clone()));
    rounds::run(results, ORDERS_80_CASE, &entries, options.rounds);
}

/// Returns the capacity that the load of a server refers to: its own, or that of axum on tokio if
/// the server has only the mixed load.
fn capacity(section: &SectionResults, server: &str) -> Option<f64> {
    let server = if ALTERNATIVES.contains(&server) {
        TOKIO
    } else {
        server
    };
    section.median(CAPACITY_CASE, server, |run| run.per_second)
}

fn mixed(
    results: &mut SectionResults,
    options: &Options,
    servers: &Programs,
    mut alternatives: Programs,
) {
    let work = computing(false);
    closed(results, options, servers, CAPACITY_CASE, &work, 64);
    if let Err(why) = Cgroup::new("probe", false) {
        results.note(format!("{HAPROXY_WEIGHT} is left out: {why}"));
        alternatives.retain(|(name, _)| name != HAPROXY_WEIGHT);
    }
    let axum = servers.iter().find(|(name, _)| name == TOKIO);
    let all = servers.iter().cloned().chain(alternatives).collect();
    let entries = |results: &SectionResults, rest: f64| {
        rounds::entries(&all, |name| {
            let capacity = capacity(results, name)?;
            Some(Mixed {
                urgent: URGENT * OVERLOAD * capacity,
                rest: rest * OVERLOAD * capacity,
                behind: axum.and_then(|(_, program)| Behind::of(name, program)),
                time: options.time,
                keep_disturbed: options.quick,
            })
        })
    };
    let alone = entries(results, 0.0);
    let overload = entries(results, 1.0 - URGENT);
    for _ in 0..options.rounds {
        rounds::run(results, IDLE_CASE, &alone, 1);
        rounds::run(results, OVERLOAD_CASE, &overload, 1);
    }
}

/// Draws the p99 of the urgent requests of each server, alone and at overload.
pub(super) fn plot(section: &SectionResults) -> Plot {
    let servers = [SERVE, TOKIO, "go-http"];
    let mut plot = Plot::bars(
        "urgent requests, p99",
        "server",
        ("ms", Kind::Log10),
        servers,
    );
    let loads = [("alone", IDLE_CASE), ("120 % load", OVERLOAD_CASE)];
    for ((name, case), colour) in loads.into_iter().zip(COLOURS) {
        let p99 = |(group, server): (usize, &str)| {
            let us = section.median(case, &urgent_row(server), Run::p99)?;
            Some((group as f64, us / 1e3))
        };
        let points = servers.into_iter().enumerate().filter_map(p99);
        plot.add(name, Look::Bar, colour, points);
    }
    plot
}

/// Returns the goals of the web server.
pub(crate) fn rows(section: &SectionResults) -> Vec<Row> {
    let against = |case: &str, of: fn(&Run) -> f64| {
        let (ours, theirs) = (
            section.median(case, OURS, of)?,
            section.median(case, TOKIO, of)?,
        );
        let text = format!("{ours:.2} against {theirs:.2} µs");
        Some((text, at_most(ours, theirs)))
    };
    let p99 = |case: &str, name: &str| section.median(case, &urgent_row(name), Run::p99);
    let grown = |name: &str| Some((p99(IDLE_CASE, name)?, p99(OVERLOAD_CASE, name)?));
    let others: Vec<_> = [TOKIO, "go-http"]
        .into_iter()
        .filter_map(|name| Some((name, grown(name)?)))
        .map(|(name, (idle, loaded))| format!("{name} {:.0} ×", loaded / idle))
        .collect();
    let rate = |case: &str, name: &str| section.median(case, name, |r| r.per_second);
    let kept = |name: &str| {
        let [urgent, rest] =
            [urgent_row(name), rest_row(name)].map(|row| rate(OVERLOAD_CASE, &row));
        Some((urgent? + rest?) / rate(CAPACITY_CASE, name)?)
    };
    let mut rows = vec![
        row(
            "axum JSON: CPU per request ≤ the same application on tokio",
            against(JSON_CASE, Run::cpu),
        ),
        row(
            "axum JSON of 30 orders: CPU per request ≤ the same application on tokio",
            against(ORDERS_CASE, Run::cpu),
        ),
        row(
            "axum JSON of 30 orders at 80 % load: p99 ≤ the same application on tokio",
            against(ORDERS_80_CASE, |r| r.p99),
        ),
        row(
            "a tenth u=0 at 120 % of capacity: their p99 ≤ 2 × that alone",
            grown(SERVE).map(|(idle, loaded)| {
                let text = format!(
                    "{loaded:.0} against {idle:.0} µs, {:.1} ×; {}",
                    loaded / idle,
                    others.join(", ")
                );
                (text, at_most(loaded, 2.0 * idle))
            }),
        ),
        row(
            "at 120 % of capacity: replies ≥ what the axum application on tokio keeps of its capacity",
            kept(SERVE).zip(kept(TOKIO)).map(|(ours, theirs)| {
                let [us, them] = [ours, theirs].map(|share| 100.0 * share);
                let text = format!("{us:.0} % of it against {them:.0} %");
                (text, at_most(theirs, ours))
            }),
        ),
    ];
    for (case, size) in FILES {
        let found = rate(case, SERVE).zip(rate(case, "nginx"));
        let found = found.map(|(ours, nginx)| {
            let mib = size as f64 / f64::from(1 << 20);
            let text = format!("{:.0} and {:.0} MiB/s", ours * mib, nginx * mib);
            (text, at_most(nginx, ours))
        });
        rows.push(row(
            format!("{case}: upshift serve not slower than nginx"),
            found,
        ));
    }
    rows
}
