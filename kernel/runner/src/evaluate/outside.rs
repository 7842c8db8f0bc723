//! Points whose clients are on the host: the load generator of `upshift load matrix`, through
//! ports that QEMU forwards to the machine's network card.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use upshift_load::{Group, Pace, Plan, Work, matrix, run};

use super::point::{Figures, Load, MODELS, Point};
use super::{LIMIT, THREADS};
use crate::build::Image;
use crate::peer;
use crate::qemu::{self, Machine, Network};

/// Connections of a server with threads, as the program has it.
const OF_THREADS: u32 = 16;
/// Longest time until a server listens, or answers.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time between two tries.
const SOON: Duration = Duration::from_millis(50);

/// Boots a machine with servers, and asks them. Empty if the machine fails.
pub(super) fn measure(image: &Image, load: Load) -> Result<Point, String> {
    let of_server = if load.has_threads() {
        OF_THREADS
    } else {
        load.connections
    };
    // Each connection comes through a port of its own.
    let count = load.connections as u16;
    let first = peer::free_ports(count)?;
    let network = Network::Served {
        first,
        count,
        of_server: of_server as u16,
    };
    let server = if load.has_threads() {
        "threads"
    } else {
        "coroutines"
    };
    let (connections, harts) = (load.connections, load.harts);
    let arguments = format!(
        "init=matrix with=outside,{server},{connections},{harts} threads={THREADS} address=10.0.2.15/24,10.0.2.2"
    );
    let machine = Machine {
        network,
        ..Machine::new(harts, &arguments)
    };
    let ports: Vec<u16> = (first..first + count).collect();
    let has_failed = Arc::new(AtomicBool::new(false));
    let fails = has_failed.clone();
    let asking = std::thread::spawn(move || {
        let asked = ask(load, &ports, of_server as usize);
        // A server waits for all of its connections.
        fails.store(asked.is_err(), Relaxed);
        asked
    });
    let outcome = qemu::run_until(image, &machine, LIMIT, &has_failed)?;
    let asked = asking.join().map_err(|_| "a client panicked".to_owned())?;
    let figures = match asked {
        Ok(figures) if outcome.status == Some(0) => vec![figures],
        asked => {
            let (end, output) = (&outcome.end, &outcome.output);
            let why = asked.err().unwrap_or_default();
            eprintln!("{}: {end}, {why}: {load}\n{output}", MODELS[load.model]);
            Vec::new()
        }
    };
    Ok(Point { load, figures })
}

/// Sends the load to the ports, of which the given number leads to each server.
fn ask(load: Load, ports: &[u16], of_server: usize) -> Result<Figures, String> {
    for &port in ports.iter().step_by(of_server) {
        is_there(port)?;
    }
    let target = |&port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let groups = ports.iter().map(target);
    let groups = groups.map(|target| Group::new(target, 1, "all")).collect();
    let work = Work::Matrix { n: load.n as usize };
    let mut plan = Plan::new(groups, work, Duration::from_millis(load.millis.into()));
    plan.patience = PATIENCE;
    if load.period != 0 {
        let period = Duration::from_millis(load.period.into());
        plan.pace = Pace::Open { period };
    }
    let outcome = run(&plan).map_err(|error| error.to_string())?;
    if outcome.errors() != 0 {
        let mut first = outcome.groups.iter();
        let first = first.find_map(|group| group.first_error.as_deref());
        let errors = outcome.errors();
        return Err(format!("{errors} errors, of them {}", first.unwrap_or("–")));
    }
    let (latency, nanos) = (outcome.latency(), 1_000);
    let at = |quantile: f64| latency.value_at_quantile(quantile) / nanos;
    Ok(Figures {
        who: "all".to_owned(),
        count: outcome.requests(),
        mean: latency.mean() as u64 / nanos,
        median: at(0.5),
        p99: at(0.99),
        deviation: latency.stdev() as u64 / nanos,
        pages: 0,
        spread: [0.25, 0.75, 0.9, 0.999].map(at),
        nanos: 0,
    })
}

/// Asks a server for the square of a number, until it answers: QEMU takes connections before
/// there is one.
fn is_there(port: u16) -> Result<(), String> {
    let limit = Instant::now() + PATIENCE;
    let question = matrix::frame(1, 1);
    let answer = || -> std::io::Result<()> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(&question)?;
        stream.read_exact(&mut vec![0; question.len()])
    };
    while let Err(error) = answer() {
        if Instant::now() > limit {
            return Err(format!("port {port}: {error}"));
        }
        std::thread::sleep(SOON);
    }
    Ok(())
}
