//! Defines the load of the papers' server: matrices from connections that send at fixed times.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use upshift_load::scenario::CLIENT_PRIORITY;
use upshift_load::{Group, Pace, Plan, Work, run};

use super::limits::MemoryWatch;
use crate::measure::{Drive, Measured, observe};
use crate::options::Options;
use crate::peers::Program;
use crate::results::Run;
use crate::server::Server;

/// Time between the requests of a mostly idle connection.
const IDLE_PERIOD: Duration = Duration::from_secs(60);
/// Number of connections from one address of 127.0.0.0/8, which is below the number of local ports.
const PER_ADDRESS: usize = 25_000;
/// Time under load before measuring.
const WARM_UP: Duration = Duration::from_millis(250);

/// Row of all addresses together, in cases with a row for each address.
pub(super) const TOTAL: &str = "total";

pub(super) fn level_row(level: u8) -> String {
    format!("level {level}")
}

/// A load of matrices of one order, with the addresses and the CPUs of the server.
#[derive(Clone)]
pub(super) struct Load {
    pub(super) n: usize,
    /// Level of each address; if empty, one address at the server's default level.
    pub(super) levels: &'static [u8],
    pub(super) connections: usize,
    /// Time between the requests of a connection; if `None`, the next request follows the reply.
    pub(super) period: Option<Duration>,
    /// Number of additional connections, which send a request every [`IDLE_PERIOD`].
    pub(super) idle: usize,
    /// Number of CPUs of the server: 1 (CPU 0), or 2 with precedence for the client on CPU 1.
    pub(super) cpus: usize,
    pub(super) time: Duration,
}

impl Load {
    /// Creates a load of busy connections to one address on one CPU.
    pub(super) fn new(n: usize, connections: usize, period: Duration, options: &Options) -> Load {
        Load {
            n,
            levels: &[],
            connections,
            period: Some(period),
            idle: 0,
            cpus: 1,
            time: options.time,
        }
    }

    fn plan(&self, addresses: &[SocketAddr]) -> Plan {
        let busy_groups = addresses.iter();
        let busy_groups =
            busy_groups.map(|&address| Group::new(address, self.connections, address.to_string()));
        let mut groups: Vec<Group> = busy_groups.collect();
        let mut remaining = self.idle;
        for host in 2.. {
            if remaining == 0 {
                break;
            }
            let connections = remaining.min(PER_ADDRESS);
            remaining -= connections;
            groups.push(Group {
                pace: Some(Pace::Open {
                    period: IDLE_PERIOD,
                }),
                source: Some(IpAddr::V4(Ipv4Addr::new(127, 0, 0, host))),
                ..Group::new(addresses[0], connections, "idle")
            });
        }
        let mut plan = Plan::new(groups, Work::Matrix { n: self.n }, self.time);
        if let Some(period) = self.period {
            plan.pace = Pace::Open { period };
        }
        plan.warmup = WARM_UP.min(self.time / 2);
        plan.patience = plan.warmup + plan.duration + Duration::from_secs(10);
        plan.pin = Some(1);
        plan.fifo = (self.cpus > 1).then_some(CLIENT_PRIORITY);
        plan
    }
}

impl Drive for Load {
    fn measure(&self, program: &Program, _round: usize) -> Result<Measured, String> {
        let listen: Vec<String> = match self.levels {
            [] => vec!["127.0.0.1:0".into()],
            levels => levels.iter().map(|l| format!("127.0.0.1:0@{l}")).collect(),
        };
        let is_pinned = self.cpus == 1;
        let server = Server::start(program, &listen, is_pinned.then_some(0))?;
        let mut plan = self.plan(&server.addresses);
        plan.server_pids = vec![server.pid()];
        let memory = (self.idle > 0).then(|| MemoryWatch::start(server.pid()));
        let mut measured = observe(&server, is_pinned, None, || run(&plan))?;
        if let (Some(memory), Some(busy)) = (memory, measured.groups.first_mut()) {
            let [resident, kernel] = memory.growth();
            let connections = (self.connections + self.idle) as f64;
            busy.resident = resident / connections;
            busy.kernel = kernel / connections;
        }
        Ok(measured)
    }

    /// Returns the rows of the levels and their total, or the row of the busy connections.
    fn rows(&self, name: &str, measured: Measured) -> Vec<(String, Run)> {
        if self.levels.is_empty() {
            let busy = measured.groups.into_iter().take(1);
            return busy.map(|run| (name.to_owned(), run)).collect();
        }
        let levels = self.levels.iter().map(|&level| level_row(level));
        let rows = levels.zip(measured.groups);
        rows.chain([(TOTAL.to_owned(), measured.all)]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_connections_are_spread_over_addresses_and_have_their_own_pace() {
        let options = Options::for_tests(Duration::from_secs(1));
        let load = Load {
            idle: 60_000,
            ..Load::new(8, 100, Duration::from_millis(10), &options)
        };
        let plan = load.plan(&["127.0.0.1:1".parse().unwrap()]);
        let sizes: Vec<usize> = plan.groups.iter().map(|group| group.connections).collect();
        assert_eq!(sizes, [100, 25_000, 25_000, 10_000]);
        let sources: Vec<_> = plan.groups.iter().map(|group| group.source).collect();
        assert_eq!(sources[0], None);
        assert_ne!(sources[1], sources[2]);
        assert!(plan.groups[1..].iter().all(|group| group.pace.is_some()));
    }

    #[test]
    fn rows_are_those_of_the_busy_connections_or_of_the_levels() {
        let options = Options::for_tests(Duration::from_secs(1));
        let run = |per_second| Run {
            per_second,
            ..Run::default()
        };
        let measured = || Measured {
            all: run(3.0),
            groups: vec![run(1.0), run(2.0)],
        };
        let mut load = Load::new(8, 100, Duration::from_millis(10), &options);
        let rows = load.rows("a", measured());
        assert_eq!((rows.len(), rows[0].1.per_second), (1, 1.0));
        load.levels = &[0, 8];
        let names: Vec<String> = load
            .rows("a", measured())
            .into_iter()
            .map(|r| r.0)
            .collect();
        assert_eq!(names, ["level 0", "level 8", TOTAL]);
    }
}
