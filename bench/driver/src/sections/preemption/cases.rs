//! Lists the rows of the benchmark section on preemption: each is a load, and the servers that are
//! measured under it.

use std::net::SocketAddr;
use std::time::Duration;

use upshift_load::scenario::{BATCH_LEVEL, LONG_SHARE, MIXED_RATE, SHORT_SERVICE, pings};
use upshift_load::{Distribution, Group, Hog, Plan};

use super::{C_SERVER, GO, TRICK};
use crate::sections::closed::page;

/// Level at which requests are received.
pub(super) const CONNECTION_LEVEL: u8 = 32;
const MORE_URGENT_LEVEL: u8 = 10;
const LESS_URGENT_LEVEL: u8 = 50;

/// Time under load before measuring.
const WARM_UP: Duration = Duration::from_millis(250);

/// A load and the servers under it.
#[derive(Debug)]
pub(crate) struct Case {
    /// Name on the command line.
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// Upshift's server, measured without preemption, with preemption, and with preemption as root.
    pub(super) server: Server,
    /// Servers other than Upshift's that are measured, too.
    pub(super) others: &'static [&'static str],
    pub(super) load: Load,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Server {
    Spin,
    /// The spin server on both CPUs; the client takes the time that it needs from CPU 1.
    TwoVcpus,
    /// The spin server without io_uring.
    Readiness,
    /// The spin server that receives at level 0.
    Urgent,
    /// The server that answers each request with the same page.
    Plaintext,
    /// `upshift serve`.
    Files,
}

#[derive(Debug)]
pub(super) enum Load {
    /// Independent clients.
    Requests(Requests),
    /// Independent clients, beside another program that computes on the server's CPU.
    Beside(Requests),
    /// Pings of level 0, beside a request of [`BATCH_LEVEL`] that outlasts them.
    Pings,
    /// A closed loop: the path of the requested page, and the number of connections.
    Pages(&'static str, usize),
}

/// Short requests at a rate, with an optional share [`LONG_SHARE`] of long ones.
#[derive(Debug)]
pub(super) struct Requests {
    per_second: f64,
    short: Duration,
    distribution: Distribution,
    /// Set if the share [`LONG_SHARE`] of the requests is long. A long request takes 1000 times as
    /// long as a short one.
    has_long: bool,
    /// Levels of short and of long requests.
    levels: [u8; 2],
}

/// Returns short requests of 25 µs and long ones of 25 ms that together need the share `load` of a
/// CPU.
const fn with_long_millis(load: f64, levels: [u8; 2]) -> Requests {
    const SHORT: Duration = Duration::from_micros(25);
    let mean = SHORT.as_secs_f64() * (1.0 - LONG_SHARE + 1000.0 * LONG_SHARE);
    Requests {
        per_second: load / mean,
        short: SHORT,
        distribution: Distribution::Fixed,
        has_long: true,
        levels,
    }
}

const fn exponential(per_second: f64) -> Requests {
    Requests {
        per_second,
        short: Duration::from_micros(50),
        distribution: Distribution::Exponential,
        has_long: false,
        levels: SAME_LEVELS,
    }
}

/// Short and long requests at the level of the connections.
const SAME_LEVELS: [u8; 2] = [CONNECTION_LEVEL; 2];

/// Requests of which even the long ones take less than a millisecond.
const WITH_LONG_MICROS: Requests = Requests {
    per_second: MIXED_RATE,
    short: SHORT_SERVICE,
    distribution: Distribution::Fixed,
    has_long: true,
    levels: SAME_LEVELS,
};

const fn case(
    name: &'static str,
    title: &'static str,
    server: Server,
    others: &'static [&'static str],
    load: Load,
) -> Case {
    Case {
        name,
        title,
        server,
        others,
        load,
    }
}

/// All rows, in the order of measurement.
#[rustfmt::skip]
pub(crate) const CASES: [Case; 15] = {
    use Load::{Beside, Pages, Pings};
    use Load::Requests as Independent;
    use Server::{Files, Plaintext, Readiness, Spin, TwoVcpus, Urgent};
    [
        case("long-70", "25 µs and 0.5 % of 25 ms, load 0.7", Spin, &[C_SERVER, GO, TRICK], Independent(with_long_millis(0.7, SAME_LEVELS))),
        case("long-85", "25 µs and 0.5 % of 25 ms, load 0.85", Spin, &[C_SERVER], Independent(with_long_millis(0.85, SAME_LEVELS))),
        case("long-90", "25 µs and 0.5 % of 25 ms, load 0.9", Spin, &[C_SERVER], Independent(with_long_millis(0.9, SAME_LEVELS))),
        case("micros", "0.5 µs and 0.5 % of 500 µs, 20 k/s", Spin, &[C_SERVER, GO, TRICK], Independent(WITH_LONG_MICROS)),
        case("exp-9", "exponential 50 µs, 9 k/s", Spin, &[C_SERVER], Independent(exponential(9_000.0))),
        case("exp-14", "exponential 50 µs, 14 k/s", Spin, &[C_SERVER], Independent(exponential(14_000.0))),
        case("above", "load 0.7, all more urgent than the connections", Spin, &[], Independent(with_long_millis(0.7, [MORE_URGENT_LEVEL; 2]))),
        case("below", "load 0.7, all less urgent than the connections", Spin, &[], Independent(with_long_millis(0.7, [LESS_URGENT_LEVEL; 2]))),
        case("apart", "load 0.7, short urgent, long less urgent", Spin, &[], Independent(with_long_millis(0.7, [MORE_URGENT_LEVEL, LESS_URGENT_LEVEL]))),
        case("two", "two vCPUs, load 0.9 of one CPU", TwoVcpus, &[], Independent(with_long_millis(0.9, SAME_LEVELS))),
        case("readiness", "load 0.7, without io_uring", Readiness, &[], Independent(with_long_millis(0.7, SAME_LEVELS))),
        case("beside", "load 0.3, beside a program that computes on the CPU", Spin, &[C_SERVER], Beside(with_long_millis(0.3, SAME_LEVELS))),
        case("pings", "level 0 each ms beside a level 40 that never ends", Urgent, &[C_SERVER, GO], Pings),
        case("plaintext", "plaintext, 256 connections", Plaintext, &[], Pages("/", 256)),
        case("serve", "upshift serve, a file of 6 bytes, 64 connections", Files, &[], Pages(FILE, 64)),
    ]
};

/// File that `upshift serve` serves.
pub(super) const FILE: &str = "/six";

impl Case {
    /// Returns the length of a run: `time` if there are few long requests per second, otherwise
    /// four fifths of `time`.
    fn duration(&self, time: Duration) -> Duration {
        match &self.load {
            Load::Requests(requests) | Load::Beside(requests)
                if requests.per_second < MIXED_RATE && requests.has_long =>
            {
                time
            }
            _ => time.mul_f64(0.8),
        }
    }

    /// Returns the load of a run that lasts `time`, for a server at `target`.
    pub(super) fn plan(&self, target: SocketAddr, time: Duration) -> Plan {
        let duration = self.duration(time);
        let warmup = WARM_UP.min(duration / 2);
        let plan = match &self.load {
            Load::Requests(requests) | Load::Beside(requests) => requests.plan(target, duration),
            Load::Pings => {
                let mut plan = pings(duration).with_target(target);
                // The batch request ends some time after the run, so that even a hanging server
                // ends by itself.
                let service = warmup + duration + plan.drain + Duration::from_millis(500);
                let level = BATCH_LEVEL;
                plan.hog = Some(Hog { service, level });
                plan
            }
            Load::Pages(path, connections) => {
                let groups = vec![Group::new(target, *connections, "")];
                Plan::new(groups, page(path, &[], 1), duration)
            }
        };
        let patience = warmup + duration + Duration::from_secs(10);
        Plan {
            warmup,
            patience,
            ..plan
        }
    }
}

impl Requests {
    fn plan(&self, target: SocketAddr, duration: Duration) -> Plan {
        let [short, long] = self.levels;
        let mut plan = Plan::spin(target, self.per_second, self.short, duration);
        plan.classes[0].level = short;
        plan.classes[0].distribution = self.distribution;
        if self.has_long {
            plan = plan.with_long_requests(self.short * 1000, long, LONG_SHARE);
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use upshift_load::scenario::UNSET_TARGET;

    #[test]
    fn every_row_has_its_own_name_and_a_plan() {
        for case in &CASES {
            let plan = case.plan(UNSET_TARGET, Duration::from_secs(1));
            let shares: f64 = plan.classes.iter().map(|class| class.share).sum();
            let is_spin = !matches!(case.load, Load::Pages(..));
            assert_eq!(shares > 0.99, is_spin, "{}", case.name);
            let same = CASES.iter().filter(|other| other.name == case.name);
            assert_eq!(same.count(), 1, "{}", case.name);
        }
    }

    #[test]
    fn a_load_is_a_share_of_the_cpu() {
        let plan = with_long_millis(0.7, SAME_LEVELS).plan(UNSET_TARGET, Duration::from_secs(1));
        let work_share = |class: &upshift_load::Class| class.share * class.service.as_secs_f64();
        let mean: f64 = plan.classes.iter().map(work_share).sum();
        let upshift_load::Pace::Poisson { per_second } = plan.pace else {
            panic!("not independent clients");
        };
        assert!((per_second * mean - 0.7).abs() < 1e-9);
        // A request takes 25 µs × (0.995 + 0.005 × 1000), about 150 µs: 0.7 / 150 µs is 4,670.
        assert!((4_600.0..4_800.0).contains(&per_second));
    }
}
