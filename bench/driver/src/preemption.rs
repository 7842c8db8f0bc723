//! The section `preemption`: long requests among short ones on one vCPU, with and without preemption, next to others.
//!
//! Every load is an open loop of spin requests (see `upshift load spin --help`) from CPU 1 to a server on CPU 0. The rows
//! are classes of requests: `SERVER: short`, `SERVER: long`.

use std::time::Duration;

use upshift_load::{Arrivals, Awake, Distribution, Hog, SpinPlan, Work, run_spin};

use crate::check::same_spin;
use crate::measure::{Drive, Load, Measured, observe};
use crate::options::Options;
use crate::peers::{Built, Program};
use crate::results::{Run, SectionResults};
use crate::rounds::{self, Entry};
use crate::server::Server;

/// Upshift without preemption.
pub(crate) const OFF: &str = "upshift off";
/// Upshift with preemption.
pub(crate) const ON: &str = "upshift on";
/// The same load without its long requests, on Upshift without preemption.
pub(crate) const NO_LONG: &str = "no long requests, upshift off";
/// See [`NO_LONG`].
pub(crate) const NO_LONG_ON: &str = "no long requests, upshift on";

/// The load of microseconds, its CPU kept from halting.
pub(crate) const MICROS_CASE: &str = "99.5 % 0.5 µs / 0.5 % 500 µs, 20 k/s";
/// The same on a CPU that may halt.
pub(crate) const HALTING_CASE: &str = "99.5 % 0.5 µs / 0.5 % 500 µs, 20 k/s, the CPU may halt";
/// Throughput and median of the even mixture.
pub(crate) const EVEN_MEDIAN: &str = "50 % 50 µs / 50 % 5 ms, load 0.7";
/// See [`EVEN_MEDIAN`].
pub(crate) const EVEN_FULL: &str = "50 % 50 µs / 50 % 5 ms, offered 1.5 × capacity";
/// Throughput and median of exponential service times.
pub(crate) const EXPONENTIAL_MEDIAN: &str = "exponential 50 µs, load 0.7";
/// See [`EXPONENTIAL_MEDIAN`].
pub(crate) const EXPONENTIAL_FULL: &str = "exponential 50 µs, offered 1.5 × capacity";
/// Pings against an endless loop of a less urgent level.
pub(crate) const PING_CASE: &str = "level 0 each ms against a level 40 that never ends";
/// The row of pings that nothing disturbs.
pub(crate) const PING_ALONE: &str = "no level 40, upshift off";
/// What preemption costs those who never overrun.
pub(crate) const COST_CASE: &str = "plaintext, 256 connections";

/// Loads of the mixture of milliseconds, as shares of what the CPU can do.
pub(crate) const LOADS: [f64; 9] = [0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9];
/// Short service time of that mixture, in µs.
pub(crate) const MILLIS_SHORT: f64 = 25.0;

/// The name of the load of milliseconds at a share of the capacity.
pub(crate) fn millis_case(load: f64) -> String {
    format!("99.5 % 25 µs / 0.5 % 25 ms, load {load}")
}

/// The row of a class of a server.
pub(crate) fn class_row(server: &str, class: &str) -> String {
    format!("{server}: {class}")
}

/// A load of spin requests; `target` and what depends on the server is filled in for each run.
#[derive(Clone)]
struct Spin {
    plan: SpinPlan,
    /// Keep CPU 0 from halting.
    awake: bool,
    keep_disturbed: bool,
}

impl Drive for Spin {
    fn measure(&self, program: &Program) -> Result<Measured, String> {
        let server = Server::start(program, &["127.0.0.1:0".into()], Some(0))?;
        let awake = self.awake.then(|| Awake::on(0)).transpose();
        let awake = awake.map_err(|e| e.to_string())?;
        let mut plan = self.plan.clone();
        plan.target = server.addresses[0];
        plan.pin = Some(1);
        plan.server_pid = Some(server.pid());
        observe(&server, true, awake.as_ref(), || run_spin(&plan))
    }

    fn keep_disturbed(&self) -> bool {
        self.keep_disturbed
    }

    fn rows(&self, name: &str, measured: Measured) -> Vec<(String, Run)> {
        let classes = self.plan.classes.iter().zip(measured.groups);
        classes
            .map(|(class, run)| (class_row(name, &class.label), run))
            .collect()
    }
}

/// The loads of one section, for the time and the haste that the options ask for.
struct Loads<'a> {
    options: &'a Options,
}

const fn us(count: u64) -> Duration {
    Duration::from_micros(count)
}

impl Loads<'_> {
    fn spin(&self, per_second: f64, short: Duration) -> Spin {
        let nowhere = ([127, 0, 0, 1], 0).into();
        let mut plan = SpinPlan::new(nowhere, per_second, short, self.options.time);
        plan.warmup = Duration::from_millis(250).min(self.options.time / 2);
        Spin {
            plan,
            awake: true,
            keep_disturbed: self.options.quick,
        }
    }

    fn mixed(&self, per_second: f64, short: Duration, long: Duration, share: f64) -> Spin {
        let mut spin = self.spin(per_second, short);
        spin.plan = spin.plan.with_long(long, 32, share);
        spin
    }

    fn exponential(&self, per_second: f64) -> Spin {
        let mut spin = self.spin(per_second, us(50));
        spin.plan.classes[0].distribution = Distribution::Exponential;
        spin
    }

    fn pings(&self, hog: bool) -> Spin {
        let mut spin = self.spin(1000.0, Duration::ZERO);
        let plan = &mut spin.plan;
        plan.classes[0].label = "pings".into();
        plan.classes[0].level = 0;
        plan.connections = 1;
        plan.arrivals = Arrivals::Even;
        // It ends some time after the run, so that a server that it hangs can be ended without force.
        plan.hog = hog.then_some(Hog {
            service: plan.warmup + plan.duration + plan.drain + Duration::from_millis(500),
            level: 40,
        });
        spin
    }
}

/// Everything offered at once, from an empty server on: what was served in the time is its throughput.
fn flood(mut spin: Spin) -> Spin {
    spin.plan.warmup = Duration::ZERO;
    spin.plan.drain = Duration::ZERO;
    spin
}

/// Upshift's spin server.
fn upshift(built: &Built, preempt: &str, quantum: &str, level: &str) -> Option<Program> {
    built.upshift(&[
        "spin-server",
        "--vcpus",
        "1",
        "--pin",
        "0",
        "--level",
        level,
        "--preempt",
        preempt,
        "--quantum",
        quantum,
    ])
}

/// Measures the section.
pub(crate) fn run(results: &mut SectionResults, options: &Options, built: &Built) {
    let loads = Loads { options };
    let mut others = built.spin();
    others.retain(|(id, program)| checked(results, id, program));
    let mut ours = |quantum: &str, level: &str| -> Vec<(String, Program)> {
        [(OFF, "off"), (ON, "on")]
            .into_iter()
            .filter_map(|(name, preempt)| {
                let program = upshift(built, preempt, quantum, level)?;
                checked(results, name, &program).then(|| (name.to_owned(), program))
            })
            .collect()
    };
    let [ours_50us, ours_100us, ours_urgent] =
        [("50us", "32"), ("100us", "32"), ("50us", "0")].map(|(q, level)| ours(q, level));

    let all: Vec<_> = ours_50us.iter().chain(&others).cloned().collect();
    micros(results, &loads, &all, &ours_50us);
    let most = |id: &str| id != "threads" && id != "tokio-mt2";
    let some = others.iter().filter(|(id, _)| most(id)).cloned();
    millis(
        results,
        &loads,
        &ours_100us.into_iter().chain(some).collect(),
    );
    without_harm(results, &loads, &ours_50us);
    pings(results, &loads, &ours_urgent);
    cost(results, options, built);
}

/// Leaves out who answers with other bytes; notes the command of who does not.
fn checked(results: &mut SectionResults, id: &str, program: &Program) -> bool {
    match same_spin(program) {
        Ok(()) => {
            let file = program.file.file_name().unwrap_or_default();
            let words = format!("{} {}", file.display(), program.args.join(" "));
            results.commands.push(format!("{id}: `{words}`"));
            true
        }
        Err(why) => {
            eprintln!("  {id} is left out: {why}");
            results.notes.push(format!("{id} is left out: {why}"));
            false
        }
    }
}

type Servers = Vec<(String, Program)>;

fn entries<'a>(servers: &'a [(String, Program)], load: &Spin) -> Vec<Entry<'a, Spin>> {
    let entry = |(name, program): &'a (String, Program)| Entry {
        name: name.clone(),
        program,
        load: load.clone(),
    };
    servers.iter().map(entry).collect()
}

fn micros(results: &mut SectionResults, loads: &Loads<'_>, all: &Servers, ours: &Servers) {
    let mixed = loads.mixed(20_000.0, Duration::from_nanos(500), us(500), 0.005);
    let mut without = loads.spin(20_000.0 * 0.995, Duration::from_nanos(500));
    for (case, servers, awake) in [(MICROS_CASE, all, true), (HALTING_CASE, ours, false)] {
        let mut mixed = mixed.clone();
        (mixed.awake, without.awake) = (awake, awake);
        let mut rows = entries(servers, &mixed);
        let short_alone = ours.iter().map(|(name, program)| Entry {
            name: if name == OFF { NO_LONG } else { NO_LONG_ON }.to_owned(),
            program,
            load: without.clone(),
        });
        rows.extend(short_alone);
        rounds::run(results, case, &rows, loads.options.rounds);
    }
}

fn millis(results: &mut SectionResults, loads: &Loads<'_>, servers: &Servers) {
    let mean_seconds = (0.995 * MILLIS_SHORT + 0.005 * 25_000.0) / 1e6;
    let shares: &[f64] = if loads.options.quick { &[0.5] } else { &LOADS };
    for &load in shares {
        let mixed = loads.mixed(load / mean_seconds, us(25), us(25_000), 0.005);
        let case = millis_case(load);
        rounds::run(
            results,
            &case,
            &entries(servers, &mixed),
            loads.options.rounds,
        );
    }
}

fn without_harm(results: &mut SectionResults, loads: &Loads<'_>, ours: &Servers) {
    let even = |load: f64| loads.mixed(load / 2525e-6, us(50), us(5000), 0.5);
    let exponential = |load: f64| loads.exponential(load / 50e-6);
    for (case, load) in [
        (EVEN_MEDIAN, even(0.7)),
        (EVEN_FULL, flood(even(1.5))),
        (EXPONENTIAL_MEDIAN, exponential(0.7)),
        (EXPONENTIAL_FULL, flood(exponential(1.5))),
    ] {
        rounds::run(results, case, &entries(ours, &load), loads.options.rounds);
    }
}

fn pings(results: &mut SectionResults, loads: &Loads<'_>, ours: &Servers) {
    let mut rows = entries(ours, &loads.pings(true));
    if let Some((_, program)) = ours.iter().find(|(name, _)| name == OFF) {
        rows.push(Entry {
            name: PING_ALONE.to_owned(),
            program,
            load: loads.pings(false),
        });
    }
    rounds::run(results, PING_CASE, &rows, loads.options.rounds);
}

fn cost(results: &mut SectionResults, options: &Options, built: &Built) {
    let server = |preempt| {
        let args = ["plaintext-server", "--vcpus", "1", "--pin", "0"];
        built.upshift(&[&args[..], &["--preempt", preempt, "--quantum", "50us"]].concat())
    };
    let programs = [(OFF, server("off")), (ON, server("on"))];
    let work = Work::Http {
        path: "/".to_owned(),
        headers: Vec::new(),
        pipeline: 1,
    };
    let entry = |(name, program): &'_ (&str, Option<Program>)| {
        let name = (*name).to_owned();
        program.clone().map(|program| (name, program))
    };
    let programs: Servers = programs.iter().filter_map(entry).collect();
    let rows: Vec<_> = programs
        .iter()
        .map(|(name, program)| Entry {
            name: name.clone(),
            program,
            load: Load::closed(work.clone(), 256, options),
        })
        .collect();
    rounds::run(results, COST_CASE, &rows, options.rounds);
}
