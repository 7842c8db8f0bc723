//! The section `serve`: one axum application on two runtimes, urgent requests at overload, and files.
//!
//! Server on CPU 0, client on CPU 1. The mixed load has two clients in this process, one for the tenth of the requests
//! that are urgent (`Priority: u=0`), one for the rest; both are open loops. "Capacity" is what a closed loop of 64
//! connections gets out of the same server with the same request.

pub(super) mod targets;

use std::time::Duration;

use upshift_load::{Group, Pace, Plan, Work, run as drive};

use crate::measure::{Drive, Load, Measured, observe};
use crate::options::Options;
use crate::peers::{Built, Program};
use crate::results::{Run, SectionResults};
use crate::rounds::{self, Entry};
use crate::server::Server;

/// A closed loop of JSON requests.
pub(crate) const JSON_CASE: &str = "axum, JSON, 64 connections";
/// The same with an answer that takes the server several times as long as the client, which has one CPU too.
pub(crate) const ORDERS_CASE: &str = "axum, JSON of 30 orders, 64 connections";
/// The same requests at eight tenths of what the slowest of them can serve.
pub(crate) const ORDERS_80_CASE: &str = "axum, JSON of 30 orders, 80 % of capacity";
/// What each server can do.
pub(crate) const CAPACITY_CASE: &str = "computing, closed loop, 64 connections";
/// The urgent tenth by itself.
pub(crate) const IDLE_CASE: &str = "computing, the urgent tenth alone";
/// Everything.
pub(crate) const OVERLOAD_CASE: &str = "computing, 120 % of capacity, a tenth urgent";
/// Files, by size in bytes.
pub(crate) const FILES: [(&str, usize); 2] = [
    ("file of 64 KiB, 16 connections", 64 << 10),
    ("file of 100 MiB, 2 connections", 100 << 20),
];

/// Of all requests, so many are urgent.
const URGENT: f64 = 0.1;
const OVERLOAD: f64 = 1.2;
/// The priority of the client of urgent requests.
const CLIENT: u8 = 45;

/// The rows of a server in the mixed load.
pub(crate) fn urgent_row(server: &str) -> String {
    format!("{server}: u=0")
}

/// See [`urgent_row`].
pub(crate) fn rest_row(server: &str) -> String {
    format!("{server}: the rest")
}

fn get(path: &str, headers: &[&str]) -> Work {
    Work::Http {
        path: path.to_owned(),
        headers: headers.iter().map(|&line| line.to_owned()).collect(),
        pipeline: 1,
    }
}

fn computing(urgent: bool) -> Work {
    let priority = if urgent {
        "Priority: u=0"
    } else {
        "Priority: u=3"
    };
    get("/matrix?n=64", &[priority])
}

/// Urgent requests at a rate, and others at another.
#[derive(Clone)]
struct Mixed {
    urgent: f64,
    rest: f64,
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
        // The two clients share a CPU; what the urgent requests wait there is not the server's.
        plan.fifo = urgent.then_some(CLIENT);
        plan.server_pid = Some(server.pid());
        plan
    }
}

impl Drive for Mixed {
    fn measure(&self, program: &Program, _round: usize) -> Result<Measured, String> {
        let server = Server::start(program, &["127.0.0.1:0".into()], Some(0))?;
        let urgent = self.plan(&server, true, self.urgent);
        if self.rest == 0.0 {
            return observe(&server, true, None, || drive(&urgent));
        }
        let rest = self.plan(&server, false, self.rest);
        std::thread::scope(|scope| {
            let others = scope.spawn(|| observe(&server, true, None, || drive(&rest)));
            let mut measured = observe(&server, true, None, || drive(&urgent))?;
            let others = others.join().map_err(|_| "the client panicked")??;
            // Each sees the CPU time of the other client as its own: they are one process.
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

type Servers = Vec<(String, Program)>;

/// Measures the section.
pub(crate) fn run(results: &mut SectionResults, options: &Options, built: &Built) {
    let folder = std::env::temp_dir().join(format!("upshift-bench-{}", std::process::id()));
    let made = std::fs::create_dir_all(&folder).and_then(|()| {
        FILES
            .iter()
            .try_for_each(|(_, size)| std::fs::write(folder.join(size.to_string()), vec![7; *size]))
    });
    if let Err(error) = made {
        results.notes.push(format!("no files to serve: {error}"));
        return;
    }
    let root = folder.to_string_lossy().into_owned();
    // SAFETY: no other thread runs yet.
    unsafe { std::env::set_var("UPSHIFT_BENCH_ROOT", &root) };
    let args = [
        "serve",
        &root,
        "--vcpus",
        "1",
        "--pin",
        "0",
        "--max-per-peer",
        "10000",
    ];
    let ours = built
        .upshift(&args)
        .map(|program| ("upshift serve".to_owned(), program));
    let web = built.web();
    for (name, program) in ours.iter().chain(&web) {
        let file = program.file.file_name().unwrap_or_default();
        let words = format!("{} {}", file.display(), program.args.join(" "));
        results.commands.push(format!("{name}: `{words}`"));
    }
    let axum: Servers = web
        .iter()
        .filter(|(name, _)| name.starts_with("axum"))
        .cloned()
        .collect();
    json(results, options, &axum);
    let is_file_server = |name: &str| name == "nginx";
    // Without a priority, the same application on our runtime says nothing new; nginx does not compute.
    let computing = web
        .iter()
        .filter(|(name, _)| name != "axum on upshift" && !is_file_server(name));
    let computing: Servers = ours.iter().chain(computing).cloned().collect();
    mixed(results, options, &computing);
    let files = web.iter().filter(|(name, _)| is_file_server(name));
    let files: Servers = ours.iter().chain(files).cloned().collect();
    for (case, size) in FILES {
        let connections = if size > 1 << 20 { 2 } else { 16 };
        closed(
            results,
            options,
            &files,
            case,
            &get(&format!("/{size}"), &[]),
            connections,
        );
    }
    let _ = std::fs::remove_dir_all(folder);
}

fn closed(
    results: &mut SectionResults,
    options: &Options,
    servers: &Servers,
    case: &str,
    work: &Work,
    connections: usize,
) {
    let entries: Vec<_> = servers
        .iter()
        .map(|(name, program)| Entry {
            name: name.clone(),
            program,
            load: Load::closed(work.clone(), connections, options),
        })
        .collect();
    rounds::run(results, case, &entries, options.rounds);
}

fn json(results: &mut SectionResults, options: &Options, servers: &Servers) {
    let accept = ["Accept: application/json"];
    let little = get("/json?name=world", &accept);
    closed(results, options, servers, JSON_CASE, &little, 64);
    let work = get("/orders?count=30", &accept);
    closed(results, options, servers, ORDERS_CASE, &work, 64);
    let capacity = |name: &String| results.cell(ORDERS_CASE, name)?.median(|r| r.per_second);
    let slowest = servers
        .iter()
        .filter_map(|(name, _)| capacity(name))
        .fold(f64::INFINITY, f64::min);
    if !slowest.is_finite() {
        return;
    }
    let entries: Vec<_> = servers
        .iter()
        .map(|(name, program)| {
            let mut load = Load::closed(work.clone(), 64, options);
            load.rate = Some(0.8 * slowest);
            Entry {
                name: name.clone(),
                program,
                load,
            }
        })
        .collect();
    rounds::run(results, ORDERS_80_CASE, &entries, options.rounds);
}

fn mixed(results: &mut SectionResults, options: &Options, servers: &Servers) {
    closed(
        results,
        options,
        servers,
        CAPACITY_CASE,
        &computing(false),
        64,
    );
    let entries = |results: &SectionResults, rest: bool| -> Vec<Entry<'_, Mixed>> {
        servers
            .iter()
            .filter_map(|(name, program)| {
                let capacity = results
                    .cell(CAPACITY_CASE, name)?
                    .median(|r| r.per_second)?;
                let total = OVERLOAD * capacity;
                let load = Mixed {
                    urgent: URGENT * total,
                    rest: if rest { (1.0 - URGENT) * total } else { 0.0 },
                    time: options.time,
                    keep_disturbed: options.quick,
                };
                Some(Entry {
                    name: name.clone(),
                    program,
                    load,
                })
            })
            .collect()
    };
    let alone = entries(results, false);
    let overload = entries(results, true);
    for _ in 0..options.rounds {
        rounds::run(results, IDLE_CASE, &alone, 1);
        rounds::run(results, OVERLOAD_CASE, &overload, 1);
    }
}
