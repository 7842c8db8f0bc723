//! What a run does. Plain data; [`Plan::check`] is called before anything starts.

use crate::matrix;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// A whole run.
#[derive(Clone)]
pub struct Plan {
    /// What is driven; each group has its own counts and histogram.
    pub groups: Vec<Group>,
    /// What is asked of them.
    pub work: Work,
    /// When it is asked; a group may have its own.
    pub pace: Pace,
    /// Time under load before measuring.
    pub warmup: Duration,
    /// Time of measuring.
    pub duration: Duration,
    /// A connection that owes a reply and has been silent for this long is given up as an error.
    ///
    /// Make it longer than the run where the server may starve connections on purpose (levels at overload).
    pub patience: Duration,
    /// The CPU that the client runs on.
    pub pin: Option<usize>,
    /// The priority in SCHED_FIFO that the client runs at, so that programs on its CPU do not delay it: for an open loop at a
    /// rate that leaves it asleep most of the time.
    pub fifo: Option<u8>,
    /// The process whose CPU time is measured.
    pub server_pid: Option<u32>,
    /// Called on the client's thread every 100 ms; it should return within microseconds.
    pub progress: Option<ProgressFn>,
    /// Ends the run within 50 ms when true.
    pub stop: Option<Arc<AtomicBool>>,
}

/// Receives [`Progress`] reports.
pub type ProgressFn = Arc<dyn Fn(&Progress) + Send + Sync>;

/// Where a run is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// The current phase.
    pub phase: Phase,
    /// Time since the phase began.
    pub elapsed: Duration,
    /// How long the phase takes; zero while connecting, which takes as long as it takes.
    pub length: Duration,
    /// Connections that are established.
    pub connections: usize,
    /// Replies since the phase began.
    pub requests: u64,
}

/// The phases of a run, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Establishing connections, and one request on each.
    Connect,
    /// Under load, not counted.
    Warmup,
    /// Under load, counted.
    Measure,
}

/// Connections that share a target and are counted together.
#[derive(Clone, Debug)]
pub struct Group {
    /// The server.
    pub target: SocketAddr,
    /// How many connections; no more are ever opened.
    pub connections: usize,
    /// The name in the outcome.
    pub label: String,
    /// Replaces the pace of the plan.
    pub pace: Option<Pace>,
}

impl Group {
    /// A group that follows the pace of its plan.
    pub fn new(target: SocketAddr, connections: usize, label: impl Into<String>) -> Group {
        Group {
            target,
            connections,
            label: label.into(),
            pace: None,
        }
    }
}

/// What is asked.
#[derive(Clone, Debug)]
pub enum Work {
    /// The square of matrices of order `n`; one request at a time in a closed loop, up to
    /// [`OPEN_DEPTH`](crate::OPEN_DEPTH) in an open one.
    Matrix {
        /// The order.
        n: usize,
    },
    /// GET over kept-open HTTP/1.1 connections.
    Http {
        /// What is got, such as `/`.
        path: String,
        /// More lines of the head, such as `Priority: u=0`.
        headers: Vec<String>,
        /// The most requests of a connection that await their replies; 1 is no pipelining.
        pipeline: usize,
    },
}

/// When it is asked.
#[derive(Clone, Copy, Debug)]
pub enum Pace {
    /// The next request leaves when a reply is complete.
    Closed,
    /// Each connection sends once per period, whatever comes back; the connections start one after the other, evenly
    /// spread over the first period.
    Open {
        /// The period of each connection.
        period: Duration,
    },
    /// The group as a whole sends at this rate, its connections in turn, at even distances.
    OpenRate {
        /// Requests per second of the whole group.
        per_second: f64,
    },
}

impl Plan {
    /// A closed-loop plan with a warm-up of a tenth of `duration`, a patience of 5 s and nothing else set.
    pub fn new(groups: Vec<Group>, work: Work, duration: Duration) -> Plan {
        Plan {
            groups,
            work,
            pace: Pace::Closed,
            warmup: duration / 10,
            duration,
            patience: Duration::from_secs(5),
            pin: None,
            fifo: None,
            server_pid: None,
            progress: None,
            stop: None,
        }
    }

    /// The pace that holds for `group`.
    pub(crate) fn pace_of(&self, group: &Group) -> Pace {
        group.pace.unwrap_or(self.pace)
    }

    pub(crate) fn check(&self) -> io::Result<()> {
        let refuse = |why: String| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        if self.groups.is_empty() {
            return refuse("nothing to drive: give at least one target".into());
        }
        if self.duration.is_zero() || self.patience.is_zero() {
            return refuse("duration and patience must be above 0".into());
        }
        match &self.work {
            Work::Matrix { n } if !(1..=matrix::MAX_N).contains(n) => {
                return refuse(format!("matrix order {n} must be 1 to {}", matrix::MAX_N));
            }
            Work::Http { path, .. }
                if !path.starts_with('/') || !path.bytes().all(|b| b.is_ascii_graphic()) =>
            {
                return refuse(format!(
                    "path {path:?} must start with / and be printable ASCII without spaces"
                ));
            }
            Work::Http { headers, .. }
                if headers.iter().any(|line| {
                    !line.contains(':') || !line.bytes().all(|b| b == b' ' || b.is_ascii_graphic())
                }) =>
            {
                return refuse(format!("headers {headers:?} must be lines `NAME: VALUE`"));
            }
            Work::Http { pipeline, .. } if !(1..=1024).contains(pipeline) => {
                return refuse(format!("pipeline depth {pipeline} must be 1 to 1024"));
            }
            _ => {}
        }
        for group in &self.groups {
            let label = &group.label;
            if group.connections == 0 {
                return refuse(format!("group {label}: give at least one connection"));
            }
            match self.pace_of(group) {
                Pace::Open { period } if period.is_zero() => {
                    return refuse(format!("group {label}: the period must be above 0"));
                }
                Pace::OpenRate { per_second } if !(1e-3..=1e8).contains(&per_second) => {
                    return refuse(format!(
                        "group {label}: rate {per_second} must be 0.001 to 100000000 per second"
                    ));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plan")
            .field("groups", &self.groups)
            .field("work", &self.work)
            .field("pace", &self.pace)
            .field("warmup", &self.warmup)
            .field("duration", &self.duration)
            .field("patience", &self.patience)
            .field("pin", &self.pin)
            .field("server_pid", &self.server_pid)
            .finish_non_exhaustive()
    }
}
