//! The section `serve`: measures one axum application on two runtimes, urgent requests at overload,
//! and the serving of files.
//!
//! The server is on CPU 0, the client on CPU 1. The mixed load has two clients in this process. One
//! sends the urgent tenth of the requests (`Priority: u=0`), the other sends the rest; both send at
//! fixed times. "Capacity" is the throughput of a server with 64 connections, each of which sends
//! the same request again after the reply.
//!
//! The mixed load is also sent to the alternatives that users of tokio have: a second runtime,
//! `spawn_blocking`, or HAProxy in front of processes ([`haproxy`]). These and axum on Upshift with
//! levels receive 120 % of the capacity of plain axum on tokio, so that all of them get the same
//! requests.

mod alternatives;
mod haproxy;

use std::time::Duration;

use upshift_load::{Group, Pace, Plan, Work, run as drive};
use upshift_report::plot::COLOURS;
use upshift_report::{Kind, Plot, SeriesStyle};

use crate::check::same_body;
use crate::goal::{Goal, at_least, at_most};
use crate::measure::{Drive, Load, Measured, observe};
use crate::options::Options;
use crate::peers::{
    ALTERNATIVES, AXUM_TOKIO as TOKIO, AXUM_TOKIO_MT as TOKIO_MT, AXUM_UPSHIFT as OURS,
    BuiltPrograms, HAPROXY_WEIGHT, Program, Programs, WEB,
};
use crate::results::{Run, SectionResults};
use crate::rounds;
use crate::sections::assign::Cgroup;
use crate::sections::closed::{admit, page, run_load};
use crate::server::Server;

pub(crate) use alternatives::table as alternatives;
use haproxy::{Backends, Deployed};

const JSON_CASE: &str = "axum, JSON, 64 connections";
/// Closed loop with answers that cost the server several times as much CPU time as the client, so
/// that the client, which also has one CPU, is not the limit.
const ORDERS_CASE: &str = "axum, JSON of 30 orders, 64 connections";
/// The same requests at eight tenths of the capacity of the slowest server.
const ORDERS_80_CASE: &str = "axum, JSON of 30 orders, 80 % of capacity";
/// Closed loop that measures the capacity of each server.
const CAPACITY_CASE: &str = "computing, closed loop, 64 connections";
/// The urgent tenth alone.
const IDLE_CASE: &str = "computing, the urgent tenth alone";
const OVERLOAD_CASE: &str = "computing, 120 % of capacity, a tenth urgent";
/// Files, by size in bytes.
const FILES: [(&str, usize); 2] = [
    ("file of 64 KiB, 16 connections", 64 << 10),
    ("file of 100 MiB, 2 connections", 100 << 20),
];

const SERVE: &str = "upshift serve";

/// Share of urgent requests in the mixed load.
const URGENT_SHARE: f64 = 0.1;
/// Rate of the mixed load, as a multiple of the capacity.
const OVERLOAD: f64 = 1.2;
/// SCHED_FIFO priority of the client that sends urgent requests.
const URGENT_CLIENT_PRIORITY: u8 = 45;

fn urgent_row(server: &str) -> String {
    format!("{server}: u=0")
}

fn rest_row(server: &str) -> String {
    format!("{server}: the rest")
}

fn computing(is_urgent: bool) -> Work {
    let priority = if is_urgent {
        "Priority: u=0"
    } else {
        "Priority: u=3"
    };
    page("/matrix?n=64", &[priority], 1)
}

/// Urgent requests at one rate, and other requests at another.
#[derive(Clone)]
struct Mixed {
    /// Urgent requests per second.
    urgent: f64,
    /// Other requests per second.
    rest: f64,
    /// Processes behind the server, if it is a proxy.
    backends: Option<Backends>,
    time: Duration,
}

impl Mixed {
    fn plan(&self, server: &Server, is_urgent: bool, per_second: f64) -> Plan {
        let group = Group::new(
            server.addresses[0],
            if is_urgent { 32 } else { 256 },
            "mixed",
        );
        let mut plan = Plan::new(vec![group], computing(is_urgent), self.time);
        plan.pace = Pace::OpenRate { per_second };
        plan.warmup = Duration::from_millis(500).min(self.time / 2);
        plan.patience = plan.warmup + plan.duration + Duration::from_secs(10);
        plan.pin = Some(1);
        // The two clients share a CPU. The urgent client is elevated, so that the other client,
        // which is no part of the server, does not delay it.
        plan.fifo = is_urgent.then_some(URGENT_CLIENT_PRIORITY);
        plan.server_pids = server.pids();
        plan
    }
}

impl Drive for Mixed {
    fn measure(&self, program: &Program, _round: usize) -> Result<Measured, String> {
        let deployed = start(program, self.backends.as_ref())?;
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

    fn rows(&self, name: &str, measured: Measured) -> Vec<(String, Run)> {
        if self.rest == 0.0 {
            return vec![(urgent_row(name), measured.all)];
        }
        let names = [urgent_row(name), rest_row(name)];
        names.into_iter().zip(measured.groups).collect()
    }
}

pub(crate) fn run(results: &mut SectionResults, options: &Options, built: &BuiltPrograms) {
    let folder = std::env::temp_dir().join(format!("upshift-bench-{}", std::process::id()));
    let created = std::fs::create_dir_all(&folder).and_then(|()| {
        FILES
            .iter()
            .try_for_each(|(_, size)| std::fs::write(folder.join(size.to_string()), vec![7; *size]))
    });
    if let Err(error) = created {
        results.note(format!("cannot create the files to serve: {error}"));
        return;
    }
    let root = folder.to_string_lossy().into_owned();
    let args = ["serve", &root, "--vcpus", "1", "--cpu", "0"];
    let ours = built.upshift(&[&args[..], &["--connections-per-peer", "10000"]].concat());
    let ours = ours.map(|program| (SERVE.to_owned(), program));
    let mut all: Programs = ours.into_iter().chain(built.programs(WEB)).collect();
    for (_, program) in &mut all {
        program
            .env
            .push(("UPSHIFT_BENCH_ROOT".into(), root.clone()));
    }
    let all = checked_servers(results, all);
    let select = |wanted: &[&str]| -> Programs {
        let servers = all
            .iter()
            .filter(|(name, _)| wanted.contains(&name.as_str()));
        servers.cloned().collect()
    };
    json(results, options, &select(&[OURS, TOKIO, TOKIO_MT]));
    // axum on Upshift without levels would add nothing here, and nginx does not compute.
    let computing_servers = select(&[SERVE, TOKIO, TOKIO_MT, "go-http"]);
    mixed(results, options, &computing_servers, select(&ALTERNATIVES));
    let files = select(&[SERVE, "nginx"]);
    for (case, size) in FILES {
        let connections = if size > 1 << 20 { 2 } else { 16 };
        let work = page(&format!("/{size}"), &[], 1);
        run_load(results, options, &files, case, &work, connections);
    }
    let _ = std::fs::remove_dir_all(folder);
}

/// A request that several servers must answer with the same body.
struct CommonRequest<'a> {
    servers: &'a [&'a str],
    path: String,
    headers: &'static str,
    /// The expected body; the first server sets it.
    body: Option<Vec<u8>>,
}

/// Returns the servers that answer each request sent to them with the same body as the other
/// servers.
fn checked_servers(results: &mut SectionResults, mut all: Programs) -> Programs {
    let computing = [&[SERVE, TOKIO, TOKIO_MT, "go-http"][..], &ALTERNATIVES].concat();
    let common_request = |servers, path: &str, headers, body| CommonRequest {
        servers,
        path: path.to_owned(),
        headers,
        body,
    };
    let (axum, json) = (&[TOKIO, OURS, TOKIO_MT], "Accept: application/json\r\n");
    let mut requests = vec![
        common_request(axum, "/json?name=world", json, None),
        common_request(axum, "/orders?count=30", json, None),
        common_request(&computing, "/matrix?n=64", "Priority: u=0\r\n", None),
        common_request(&computing, "/matrix?n=64", "Priority: u=3\r\n", None),
    ];
    for (_, size) in FILES {
        let body = Some(vec![7; size]);
        requests.push(common_request(
            &[SERVE, "nginx"],
            &format!("/{size}"),
            "",
            body,
        ));
    }
    let axum = all.iter().find(|(name, _)| name == TOKIO).cloned();
    all.retain(|(name, program)| {
        let backends = axum.as_ref().and_then(|(_, axum)| Backends::of(name, axum));
        let checked = start(program, backends.as_ref()).and_then(|deployed| {
            let mut all_requests = requests.iter_mut();
            all_requests.try_for_each(|it| {
                if !it.servers.contains(&name.as_str()) {
                    return Ok(());
                }
                same_body(
                    deployed.server.addresses[0],
                    &it.path,
                    it.headers,
                    &mut it.body,
                )
            })
        });
        admit(results, name, program, checked)
    });
    all
}

/// Starts a server on CPU 0. If the server is a proxy, starts the processes behind it, too.
fn start(program: &Program, backends: Option<&Backends>) -> Result<Deployed, String> {
    match backends {
        Some(backends) => backends.start(program),
        None => Ok(Deployed::from(Server::start(
            program,
            &["127.0.0.1:0".into()],
            Some(0),
        )?)),
    }
}

fn json(results: &mut SectionResults, options: &Options, servers: &Programs) {
    let accept = ["Accept: application/json"];
    let greeting = page("/json?name=world", &accept, 1);
    run_load(results, options, servers, JSON_CASE, &greeting, 64);
    let work = page("/orders?count=30", &accept, 1);
    run_load(results, options, servers, ORDERS_CASE, &work, 64);
    let Some((_, slowest)) = results.lowest_median(ORDERS_CASE, |_| true, |run| run.per_second)
    else {
        return;
    };
    let mut load = Load::closed(work, 64, options);
    load.rate = Some(0.8 * slowest);
    let entries = rounds::entries(servers, |_| Some(load.clone()));
    rounds::run(results, ORDERS_80_CASE, &entries, options);
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
    run_load(results, options, servers, CAPACITY_CASE, &work, 64);
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
                urgent: URGENT_SHARE * OVERLOAD * capacity,
                rest: rest * OVERLOAD * capacity,
                backends: axum.and_then(|(_, program)| Backends::of(name, program)),
                time: options.time,
            })
        })
    };
    let alone = entries(results, 0.0);
    let overload = entries(results, 1.0 - URGENT_SHARE);
    rounds::run(results, IDLE_CASE, &alone, options);
    rounds::run(results, OVERLOAD_CASE, &overload, options);
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
        plot.add(name, SeriesStyle::Bar, colour, points);
    }
    plot
}

pub(crate) fn goals(section: &SectionResults) -> Vec<Goal> {
    let goal_against_tokio = |title: &str, case: &str, quantity: fn(&Run) -> f64| {
        let [own, tokio] = [OURS, TOKIO].map(|server| section.values(case, server, quantity));
        let title = format!("{title} ≤ the same application on tokio");
        at_most(title, 1.0, "µs").cell("", own, tokio)
    };
    let p99 = |case: &str| section.values(case, &urgent_row(SERVE), Run::p99);
    let rate = |case: &str, row: &str| section.values(case, row, |run| run.per_second / 1e3);
    let share_of_capacity = |server: &str| {
        let [urgent, rest] =
            [urgent_row(server), rest_row(server)].map(|row| rate(OVERLOAD_CASE, &row));
        let replies = urgent?.combine(&rest?, |urgent, rest| urgent + rest)?;
        let capacity = rate(CAPACITY_CASE, server)?;
        replies.combine(&capacity, |replies, capacity| 100.0 * replies / capacity)
    };
    let mut goals = vec![
        goal_against_tokio("axum, JSON: CPU per request", JSON_CASE, Run::cpu),
        goal_against_tokio(
            "axum, JSON of 30 orders: CPU per request",
            ORDERS_CASE,
            Run::cpu,
        ),
        goal_against_tokio(
            "axum, JSON of 30 orders, 80 % load: p99",
            ORDERS_80_CASE,
            |run| run.p99,
        ),
        at_most(
            "a tenth urgent, 120 % load: their p99 ≤ 2 × alone",
            2.0,
            "µs",
        )
        .cell("", p99(OVERLOAD_CASE), p99(IDLE_CASE)),
        at_least("120 % load: share of capacity ≥ axum on tokio", 1.0, "%").cell(
            "",
            share_of_capacity(SERVE),
            share_of_capacity(TOKIO),
        ),
    ];
    for (case, size) in FILES {
        let rate = |server: &str| {
            let mib = size as f64 / f64::from(1 << 20);
            section.values(case, server, |run| run.per_second * mib)
        };
        let title = format!("{case}: rate ≥ nginx");
        goals.push(at_least(title, 1.0, "MiB/s").cell("", rate(SERVE), rate("nginx")));
    }
    goals
}
