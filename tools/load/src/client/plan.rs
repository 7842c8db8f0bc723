//! Defines the plan of a run. It is plain data, which [`Plan::check`] checks before the run starts.

use crate::matrix;
use crate::spin::MAX_SERVICE;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// A whole run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Groups of connections, each with its own counts and histograms.
    pub groups: Vec<Group>,
    /// Protocol and kind of the requests.
    pub work: Work,
    /// The kinds of spin requests; their shares add up to 1. Other work has none.
    pub classes: Vec<Class>,
    /// A request on one more connection of the first group, sent before the warm-up; nothing waits
    /// for the reply. For spin servers.
    pub hog: Option<Hog>,
    /// Send times of the requests; a group may have its own pace.
    pub pace: Pace,
    /// Seed of the random numbers; equal seeds give the same send times, classes and service times.
    pub seed: u64,
    /// Time under load before measuring.
    pub warmup: Duration,
    /// Time for which the client measures, after the warm-up.
    pub duration: Duration,
    /// Time after measuring in which replies still count, so that a delay at the end is in the
    /// latencies; zero where the throughput of an overloaded server matters.
    pub drain: Duration,
    /// Time after which a silent connection with an unanswered request fails. Under load,
    /// connections of spin requests do not fail, since such a request takes the time that it names.
    ///
    /// Make it longer than the run if the server may starve connections on purpose (levels at
    /// overload).
    pub patience: Duration,
    /// CPU on which the client runs.
    pub pin: Option<usize>,
    /// SCHED_FIFO priority of the client, so that programs on its CPU do not delay it. For an open
    /// loop; the client sleeps until each send time.
    pub fifo: Option<u8>,
    /// Processes whose CPU time is measured together.
    pub server_pids: Vec<u32>,
    /// Flag that ends the run within 50 ms when true.
    pub stop: Option<Arc<AtomicBool>>,
}

/// Connections that share a target and are counted together, or by class if there are classes.
#[derive(Clone, Debug)]
pub struct Group {
    /// The server.
    pub target: SocketAddr,
    /// Number of connections; no more are ever opened.
    pub connections: usize,
    /// Name in the outcome, if no class gives one.
    pub label: String,
    /// Pace of the group, in place of the plan's.
    pub pace: Option<Pace>,
    /// Source address of the connections; the kernel's choice if `None`.
    ///
    /// A target takes as many connections from one address as there are local ports, 28,232 by
    /// default; each address of 127.0.0.0/8 has local ports of its own.
    pub source: Option<IpAddr>,
}

impl Group {
    /// Creates a group that follows the pace of its plan.
    pub fn new(target: SocketAddr, connections: usize, label: impl Into<String>) -> Group {
        Group {
            target,
            connections,
            label: label.into(),
            pace: None,
            source: None,
        }
    }
}

/// The protocol, and the kind of requests.
#[derive(Clone, Debug)]
pub enum Work {
    /// The square of matrices of order `n`; one request at a time in a closed loop, up to
    /// [`OPEN_DEPTH`](crate::OPEN_DEPTH) in an open loop.
    Matrix {
        /// The order.
        n: usize,
    },
    /// GET over kept-open HTTP/1.1 connections.
    Http {
        /// The path to get, such as `/`.
        path: String,
        /// More lines of the head, such as `Priority: u=0`.
        headers: Vec<String>,
        /// Largest number of requests that await their replies on a connection; 1 means no
        /// pipelining.
        pipeline: usize,
    },
    /// CPU time, by the classes of the plan. In an open loop no request waits for an earlier one.
    Spin,
}

/// The send times of requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// The next request leaves when a reply is complete.
    Closed,
    /// Each connection sends once per period, regardless of the replies; the connections start one
    /// after the other, evenly spread over the first period.
    Open {
        /// The period of each connection.
        period: Duration,
    },
    /// The group as a whole sends at this rate, its connections in turn, at even distances.
    OpenRate {
        /// Requests per second of the whole group.
        per_second: f64,
    },
    /// The group as a whole sends at this mean rate, as a Poisson process of independent clients.
    Poisson {
        /// Requests per second of the whole group, in the mean.
        per_second: f64,
    },
}

/// A kind of spin requests, counted separately.
#[derive(Clone, Debug)]
pub struct Class {
    /// Name in the outcome.
    pub label: String,
    /// CPU time of a request, or its mean.
    pub service: Duration,
    /// Distribution of the service time.
    pub distribution: Distribution,
    /// The level, 0 (most urgent) to 63.
    pub level: u8,
    /// The share of all requests, 0 to 1.
    pub share: f64,
}

/// The distribution of service times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// Equal times.
    Fixed,
    /// Exponentially distributed times with the given mean.
    Exponential,
}

/// A request that occupies a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hog {
    /// CPU time.
    pub service: Duration,
    /// The level, 0 (most urgent) to 63.
    pub level: u8,
}

impl Plan {
    /// Creates a closed-loop plan with a warm-up of a tenth of `duration`, a patience of 5 s and no
    /// other setting.
    pub fn new(groups: Vec<Group>, work: Work, duration: Duration) -> Plan {
        Plan {
            groups,
            work,
            classes: Vec::new(),
            hog: None,
            pace: Pace::Closed,
            seed: 1,
            warmup: duration / 10,
            duration,
            drain: Duration::ZERO,
            patience: Duration::from_secs(5),
            pin: None,
            fifo: None,
            server_pids: Vec::new(),
            stop: None,
        }
    }

    /// Creates a plan with one class of spin requests, which take `service` at level 32, with
    /// Poisson arrivals on 32 connections, a warm-up of a tenth of `duration`, 500 ms for the last
    /// replies, and no other setting.
    pub fn spin(
        target: SocketAddr,
        per_second: f64,
        service: Duration,
        duration: Duration,
    ) -> Plan {
        let groups = vec![Group::new(target, 32, "spin")];
        let short = Class {
            label: "short".into(),
            service,
            distribution: Distribution::Fixed,
            level: 32,
            share: 1.0,
        };
        Plan {
            classes: vec![short],
            pace: Pace::Poisson { per_second },
            drain: Duration::from_millis(500),
            ..Plan::new(groups, Work::Spin, duration)
        }
    }

    /// Adds a class `long` that takes `share` of the first class's requests.
    #[must_use]
    pub fn with_long_requests(mut self, service: Duration, level: u8, share: f64) -> Plan {
        if let Some(short) = self.classes.first_mut() {
            short.share -= share;
        }
        self.classes.push(Class {
            label: "long".into(),
            service,
            distribution: Distribution::Fixed,
            level,
            share,
        });
        self
    }

    /// Returns the plan with all its groups at `target`.
    #[must_use]
    pub fn with_target(mut self, target: SocketAddr) -> Plan {
        for group in &mut self.groups {
            group.target = target;
        }
        self
    }

    /// Returns the pace of `group`.
    pub(crate) fn pace_of(&self, group: &Group) -> Pace {
        group.pace.unwrap_or(self.pace)
    }

    pub(crate) fn check(&self) -> io::Result<()> {
        self.problem().map_or(Ok(()), |why| {
            Err(io::Error::new(io::ErrorKind::InvalidInput, why))
        })
    }

    /// Returns the first reason why the plan makes no sense.
    fn problem(&self) -> Option<String> {
        if self.groups.is_empty() {
            return Some("nothing to drive: give at least one target".into());
        }
        if self.duration.is_zero() || self.patience.is_zero() {
            return Some("duration and patience must be above 0".into());
        }
        let is_line = |line: &String| {
            line.contains(':') && line.bytes().all(|b| b == b' ' || b.is_ascii_graphic())
        };
        match &self.work {
            Work::Matrix { n } if !(1..=matrix::MAX_N).contains(n) => {
                return Some(format!("matrix order {n} must be 1 to {}", matrix::MAX_N));
            }
            Work::Http { path, .. }
                if !path.starts_with('/') || !path.bytes().all(|b| b.is_ascii_graphic()) =>
            {
                return Some(format!(
                    "path {path:?} must start with / and be printable ASCII without spaces"
                ));
            }
            Work::Http { headers, .. } if !headers.iter().all(is_line) => {
                return Some(format!("headers {headers:?} must be lines `NAME: VALUE`"));
            }
            Work::Http { pipeline, .. } if !(1..=1024).contains(pipeline) => {
                return Some(format!("pipeline depth {pipeline} must be 1 to 1024"));
            }
            _ => {}
        }
        self.problem_of_classes()
            .or_else(|| self.groups.iter().find_map(|g| self.problem_of_group(g)))
    }

    fn problem_of_classes(&self) -> Option<String> {
        if !matches!(self.work, Work::Spin) {
            let has_none = self.classes.is_empty() && self.hog.is_none();
            return (!has_none).then(|| "only spin requests have classes and a hog".into());
        }
        let hog = self.hog.map(|hog| ("hog", hog.service, hog.level));
        let classes = self.classes.iter();
        let kinds = classes.map(|c| (c.label.as_str(), c.service, c.level));
        for (label, service, level) in kinds.chain(hog) {
            if service.as_nanos() > MAX_SERVICE.into() || level > 63 {
                return Some(format!(
                    "{label}: a request may take at most {} s, at level 0 to 63",
                    MAX_SERVICE / 1_000_000_000
                ));
            }
        }
        let shares = || self.classes.iter().map(|c| c.share);
        let sum: f64 = shares().sum();
        (!shares().all(|share| share >= 0.0) || (sum - 1.0).abs() > 1e-6)
            .then(|| format!("the shares of the classes must be 0 to 1 and add up to 1, not {sum}"))
    }

    fn problem_of_group(&self, group: &Group) -> Option<String> {
        let label = &group.label;
        if group.connections == 0 {
            return Some(format!("group {label}: give at least one connection"));
        }
        if let Some(source) = group.source
            && source.is_ipv4() != group.target.is_ipv4()
        {
            return Some(format!(
                "group {label}: {source} and {} must be of one family",
                group.target
            ));
        }
        match self.pace_of(group) {
            Pace::Open { period } if period.is_zero() => {
                Some(format!("group {label}: the period must be above 0"))
            }
            Pace::OpenRate { per_second } | Pace::Poisson { per_second }
                if !(1e-3..=1e8).contains(&per_second) =>
            {
                Some(format!(
                    "group {label}: rate {per_second} must be 0.001 to 100000000 per second"
                ))
            }
            _ => None,
        }
    }
}
