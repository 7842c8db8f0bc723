//! The sections `vcpus` and `levels`: measures more vCPUs (workers with their own run queues) than
//! CPUs, and requests of eight levels of urgency at overload.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use serde::Deserialize;
use upshift_load::child::Child;
use upshift_load::scenario::{LEVELS, ONE_LEVEL, OVERLOAD, OVERLOAD_SIZE};
use upshift_load::{Group, Outcome, Pace, Plan, Work, run as drive};
use upshift_report::plot::{COLOURS, DARK};
use upshift_report::{Kind, Plot, SeriesStyle};

use crate::goal::{Goal, at_least, at_most};
use crate::measure::{Drive, Load, Measured, summarize, watch};
use crate::options::Options;
use crate::peers::{BuiltPrograms, Program};
use crate::results::{Run, SectionResults};
use crate::rounds::{self, Entry};
use crate::server::Server;

/// The load of the section `vcpus`.
const VCPUS_CASE: &str = "n = 20, 64 connections, unpinned";
/// Load of a closed loop, which the section `levels` measures first.
const CLOSED_CASE: &str = "closed loop at one level";
/// Load that measures the capacity with full queues. The capacity exceeds the rate of a closed
/// loop, since replies that wait are sent together.
const CAPACITY_CASE: &str = "capacity: twice the closed loop offered, one level";
/// Load of the most urgent level alone.
const ALONE_CASE: &str = "level 0 alone, its share of the load";
/// Load of eight levels above the [capacity](CAPACITY_CASE).
const OVERLOAD_CASE: &str = "8 levels, 130 % of capacity";
const ONE_LEVEL_CASE: &str = "the same load at one level";

const CONNECTIONS: usize = 16;
/// Time under load before measuring.
const WARM_UP: Duration = Duration::from_millis(250);

fn level_row(level: u8) -> String {
    format!("level {level}")
}

fn vcpus_row(vcpus: usize) -> String {
    format!("upshift --vcpus {vcpus}")
}

pub(super) fn run_vcpus(results: &mut SectionResults, options: &Options, built: &BuiltPrograms) {
    let programs = [2, 5].into_iter().filter_map(|n| {
        let vcpus = n.to_string();
        let program = built.upshift(&["matrix-server", "--vcpus", &vcpus])?;
        Some((vcpus_row(n), program))
    });
    let programs = programs.collect();
    let mut load = Load::closed(Work::Matrix { n: 20 }, 64, options);
    load.is_pinned = false;
    let entries = rounds::entries(&programs, |_| Some(load.clone()));
    rounds::run(results, VCPUS_CASE, &entries, options);
}

pub(super) fn run_levels(results: &mut SectionResults, options: &Options, built: &BuiltPrograms) {
    let args = ["matrix-server", "--vcpus", "1", "--pin", "0"];
    let Some(program) = built.upshift(&args) else {
        return;
    };
    let addresses = |levels: [u8; 8]| levels.map(|l| format!("127.0.0.1:0@{l}")).to_vec();
    let mut load = Load::closed(Work::Matrix { n: OVERLOAD_SIZE }, CONNECTIONS, options);
    load.listen = addresses(ONE_LEVEL);
    load.loaded = LEVELS.len();
    let entry = |load: &Load| Entry {
        name: "total".to_owned(),
        program: &program,
        load: load.clone(),
    };
    let mut total = |case: &str, load: &Load| {
        rounds::run(results, case, &[entry(load)], options);
        results.median(case, "total", |r| r.per_second)
    };
    let groups = LEVELS.len() as f64;
    let Some(closed) = total(CLOSED_CASE, &load) else {
        return;
    };
    load.rate = Some(2.0 * closed / groups);
    let Some(capacity) = total(CAPACITY_CASE, &load) else {
        return;
    };
    let Some(client) = built.upshift(&["load", "matrix"]) else {
        return;
    };
    let overload = TwoClients {
        client,
        listen: addresses(LEVELS),
        row: |i| level_row(LEVELS[i]),
        rate: OVERLOAD * capacity / groups,
        loads_others: true,
        time: options.time,
    };
    let alone = TwoClients {
        loads_others: false,
        ..overload.clone()
    };
    let one_level = TwoClients {
        listen: addresses(ONE_LEVEL),
        row: |i| format!("group {}", i + 1),
        ..overload.clone()
    };
    for (case, load) in [
        (ALONE_CASE, alone),
        (OVERLOAD_CASE, overload),
        (ONE_LEVEL_CASE, one_level),
    ] {
        let entry = Entry {
            name: "total".to_owned(),
            program: &program,
            load,
        };
        rounds::run(results, case, &[entry], options);
    }
}

/// An open loop on eight addresses with two clients. The client of the first address is a separate
/// process in SCHED_FIFO, so that the client of the other addresses, on the same CPU, does not
/// delay it.
#[derive(Clone)]
struct TwoClients {
    /// `upshift load matrix`.
    client: Program,
    listen: Vec<String>,
    /// Returns the row name for the address with this index.
    row: fn(usize) -> String,
    /// Requests per second to each address.
    rate: f64,
    /// Set if the other addresses have a load, too.
    loads_others: bool,
    time: Duration,
}

impl TwoClients {
    fn drive_first(&self, address: SocketAddr) -> Result<Run, String> {
        let mut command = Command::new(&self.client.file);
        command.args(&self.client.args);
        let millis = |time: Duration| format!("{}ms", time.as_millis());
        let options = [
            ("--size", OVERLOAD_SIZE.to_string()),
            ("--connect", address.to_string()),
            ("--connections", CONNECTIONS.to_string()),
            ("--rate", self.rate.to_string()),
            ("--pin", "1".into()),
            ("--warmup", millis(WARM_UP)),
            ("--duration", millis(self.time)),
        ];
        for (name, value) in options {
            command.args([name, &value]);
        }
        command.args(["--elevate", "--json"]);
        let mut client = Child::start(&mut command).map_err(|e| format!("cannot start: {e}"))?;
        let text = client.rest();
        let status = client.wait().map_err(|e| e.to_string())?;
        let report: ClientReport = serde_json::from_str(&text)
            .map_err(|e| format!("the urgent client ended with {status}, without a report: {e}"))?;
        Ok(report.total.run())
    }

    fn drive_others(&self, addresses: &[SocketAddr], server: &Server) -> Result<Outcome, String> {
        let groups = addresses.iter();
        let groups = groups.map(|&at| Group::new(at, CONNECTIONS, at.to_string()));
        let work = Work::Matrix { n: OVERLOAD_SIZE };
        let mut plan = Plan::new(groups.collect(), work, self.time);
        plan.pace = Pace::OpenRate {
            per_second: self.rate,
        };
        plan.warmup = WARM_UP;
        // The server may starve a level, so the client waits long enough that this is not an error.
        plan.patience = plan.warmup + plan.duration + Duration::from_secs(10);
        plan.pin = Some(1);
        plan.server_pids = server.pids();
        drive(&plan).map_err(|e| e.to_string())
    }
}

impl Drive for TwoClients {
    fn measure(&self, program: &Program, _round: usize) -> Result<Measured, String> {
        let server = Server::start(program, &self.listen, Some(0))?;
        let [first, others @ ..] = &server.addresses[..] else {
            return Err("no address".into());
        };
        let ((urgent, others), lost) = watch(&server, true, None, || {
            std::thread::scope(|scope| {
                let urgent = scope.spawn(|| self.drive_first(*first));
                let others = self
                    .loads_others
                    .then(|| self.drive_others(others, &server));
                let urgent = urgent.join().map_err(|_| "the client panicked")??;
                Ok((urgent, others.transpose()?))
            })
        })?;
        let mut all = Run {
            foreign: lost.foreign,
            steal: lost.steal,
            ..urgent.clone()
        };
        let mut groups = vec![urgent];
        if let Some(outcome) = others {
            let Measured {
                all: rest,
                groups: runs,
            } = summarize(&outcome, lost);
            groups.extend(runs);
            // The total has the latencies of the other addresses and the lateness of the urgent
            // client.
            let per_second = all.per_second + rest.per_second;
            let share = rest.per_second / per_second;
            all = Run {
                per_second,
                user: share * rest.user,
                sys: share * rest.sys,
                replies: all.replies + rest.replies,
                send_lag: all.send_lag,
                ..rest
            };
        }
        Ok(Measured { all, groups })
    }

    fn rows(&self, name: &str, measured: Measured) -> Vec<(String, Run)> {
        let groups = measured.groups.into_iter().enumerate();
        let groups = groups.map(|(index, run)| ((self.row)(index), run));
        std::iter::once((name.to_owned(), measured.all))
            .chain(groups)
            .collect()
    }
}

/// The parts of the output of `upshift load --json` that a run needs.
#[derive(Deserialize)]
struct ClientReport {
    total: ClientFigures,
}

#[derive(Deserialize)]
struct ClientFigures {
    requests: u64,
    per_second: f64,
    errors: u64,
    first_error: Option<String>,
    mean: f64,
    jitter: f64,
    p50: f64,
    p95: f64,
    p99: f64,
    p999: f64,
    unanswered: u64,
    oldest_unanswered: f64,
    send_lag_p99: f64,
}

impl ClientFigures {
    fn run(self) -> Run {
        Run {
            per_second: self.per_second,
            mean: self.mean,
            jitter: self.jitter,
            p50: self.p50,
            p95: self.p95,
            p99: self.p99,
            p999: self.p999,
            errors: self.errors,
            first_error: self.first_error,
            unanswered: (self.unanswered, self.oldest_unanswered),
            replies: self.requests,
            send_lag: self.send_lag_p99,
            ..Run::default()
        }
    }
}

pub(super) fn vcpus(section: &SectionResults) -> Vec<Goal> {
    let rate = |n| section.values(VCPUS_CASE, &vcpus_row(n), |run| run.per_second / 1e3);
    let title = "2.5 × more vCPUs than CPUs: rate ≥ that of as many / 1.2";
    vec![at_least(title, 1.0 / 1.2, "k/s").cell("", rate(5), rate(2))]
}

/// Draws the latency of each level at overload, beside that of all requests at one level.
pub(super) fn plot(section: &SectionResults) -> Plot {
    let x = ("level", Kind::Range);
    let mut plot = Plot::new("latency at 130 % load", x, ("ms", Kind::Log10));
    let point = |level: u8, quantity: fn(&Run) -> f64| {
        let median = section.median(OVERLOAD_CASE, &level_row(level), quantity)?;
        Some((f64::from(level), median / 1e3))
    };
    type Quantile = (&'static str, fn(&Run) -> f64);
    let quantiles: [Quantile; 2] = [("p50", Run::p50), ("p99", Run::p99)];
    for ((name, quantile), colour) in quantiles.into_iter().zip(COLOURS) {
        let levels = LEVELS.into_iter();
        let points = levels.filter_map(|level| point(level, quantile));
        plot.add(name, SeriesStyle::Line, colour, points);
    }
    if let Some(us) = section.median(ONE_LEVEL_CASE, "total", Run::p99) {
        let ends = [LEVELS[0], LEVELS[LEVELS.len() - 1]];
        let line = ends.map(|level| (f64::from(level), us / 1e3));
        plot.add("p99, one level", SeriesStyle::DashedCurve, DARK, line);
    }
    plot
}

pub(super) fn levels(section: &SectionResults) -> Vec<Goal> {
    let p99 = |case, level| section.values(case, &level_row(level), Run::p99);
    let total = |case| section.values(case, "total", |run| run.per_second / 1e3);
    let top = LEVELS[0];
    let monotone = at_most("p99 ≤ that of the next level", 1.0, "µs");
    let monotone = LEVELS.windows(2).fold(monotone, |goal, two| {
        let [own, next] = [two[0], two[1]].map(|level| p99(OVERLOAD_CASE, level));
        goal.cell(level_row(two[0]), own, next)
    });
    vec![
        at_most("p99 of the top level ≤ 1.5 × alone", 1.5, "µs").cell(
            "",
            p99(OVERLOAD_CASE, top),
            p99(ALONE_CASE, top),
        ),
        monotone,
        at_least("throughput ≥ 0.97 × that of one level", 0.97, "k/s")
            .cell("", total(OVERLOAD_CASE), total(ONE_LEVEL_CASE))
            .margin(),
    ]
}
