//! Holds the results of a run, for each group of connections.

use crate::cpu::CpuUse;
use hdrhistogram::Histogram;
use std::time::Duration;

/// Longest latency that a histogram distinguishes, in ns (1000 s); longer latencies are recorded as
/// this value.
const MAX_LATENCY: u64 = 1_000_000_000_000;

/// The results of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Results of the groups, in the order of the plan.
    pub groups: Vec<GroupOutcome>,
    /// Number of connections that had answered a request before the load began; classes of spin
    /// requests share them.
    pub connections: usize,
    /// Measured time: the duration of the plan, or less if the run ended early.
    pub elapsed: Duration,
    /// CPU time of the server over the measured time, if the plan named the server's process and
    /// that process still runs.
    pub server_cpu: Option<CpuUse>,
    /// CPU time of the client's thread over the measured time.
    pub client_cpu: CpuUse,
    /// Set if [`Plan::stop`](crate::Plan::stop) ended the run.
    pub stopped: bool,
}

impl Outcome {
    /// Returns the number of replies in all groups.
    pub fn requests(&self) -> u64 {
        self.groups.iter().map(|g| g.requests).sum()
    }

    /// Returns the number of errors in all groups.
    pub fn errors(&self) -> u64 {
        self.groups.iter().map(|g| g.errors).sum()
    }

    /// Returns the replies per second of all groups.
    pub fn per_second(&self) -> f64 {
        rate(self.requests(), self.elapsed)
    }

    /// Returns the latencies of all groups in one histogram, in ns.
    pub fn latency(&self) -> Histogram<u64> {
        let mut all = histogram();
        for group in &self.groups {
            all.add(&group.latency)
                .expect("all histograms have the same bounds");
        }
        all
    }

    /// Merges groups that have the same label, in the order of their first occurrence: for example
    /// requests of one length and several levels.
    #[must_use]
    pub fn merge_by_label(mut self) -> Outcome {
        let mut groups: Vec<GroupOutcome> = Vec::with_capacity(self.groups.len());
        for group in self.groups {
            match groups.iter_mut().find(|known| known.label == group.label) {
                Some(known) => known.add(group),
                None => groups.push(group),
            }
        }
        self.groups = groups;
        self
    }

    /// Returns the CPU time of the server per reply, if it is known and there were replies.
    pub fn server_cpu_per_request(&self) -> Option<CpuUse> {
        per_request(self.server_cpu?, self.requests())
    }

    /// Returns the CPU time of the client per reply, if there were replies.
    pub fn client_cpu_per_request(&self) -> Option<CpuUse> {
        per_request(self.client_cpu, self.requests())
    }
}

/// The results of a group.
#[derive(Clone, Debug)]
pub struct GroupOutcome {
    /// Label of the group.
    pub label: String,
    /// Number of connections that were established and had answered a request before the load
    /// began.
    pub connections: usize,
    /// Number of correct replies completed in the measured time or in the drain after it.
    pub requests: u64,
    /// Number of failed connections and of wrong replies, over the whole run.
    pub errors: u64,
    /// Message of the first error.
    pub first_error: Option<String>,
    /// Bytes received in the measured time and in the drain after it.
    pub bytes: u64,
    /// Latencies of `requests` in ns, 3 significant digits, up to 1000 s.
    pub latency: Histogram<u64>,
    /// Open loop: delay of requests that found their connection free, in ns. A high value means
    /// that the client, not the server, is at its limit.
    pub send_lag: Histogram<u64>,
    /// Open loop: number of requests that could not leave in time because their connection had the
    /// largest permitted number of requests in flight.
    pub delayed: u64,
    /// Number of requests without a reply when the drain is over: in a closed loop the requests in
    /// flight, in an open loop also due requests that have not left.
    pub unanswered: u64,
    /// Age of the oldest unanswered request; no percentile of the latency can be trusted beyond
    /// this age.
    pub oldest_unanswered: Duration,
    /// Measured time.
    pub elapsed: Duration,
}

impl GroupOutcome {
    pub(crate) fn new(label: String) -> GroupOutcome {
        GroupOutcome {
            label,
            connections: 0,
            requests: 0,
            errors: 0,
            first_error: None,
            bytes: 0,
            latency: histogram(),
            send_lag: histogram(),
            delayed: 0,
            unanswered: 0,
            oldest_unanswered: Duration::ZERO,
            elapsed: Duration::ZERO,
        }
    }

    /// Returns the replies per second.
    pub fn per_second(&self) -> f64 {
        rate(self.requests, self.elapsed)
    }

    /// Returns the latency at a quantile, such as 0.99; zero without replies.
    pub fn quantile(&self, quantile: f64) -> Duration {
        Duration::from_nanos(self.latency.value_at_quantile(quantile))
    }

    /// Adds the results of another group of the same run.
    fn add(&mut self, other: GroupOutcome) {
        self.requests += other.requests;
        self.errors += other.errors;
        self.first_error = self.first_error.take().or(other.first_error);
        self.bytes += other.bytes;
        self.latency.add(&other.latency).expect("the same bounds");
        self.send_lag.add(&other.send_lag).expect("the same bounds");
        self.delayed += other.delayed;
        self.unanswered += other.unanswered;
        self.oldest_unanswered = self.oldest_unanswered.max(other.oldest_unanswered);
    }

    /// Counts an error, and keeps the message of the first one.
    pub(crate) fn record_error(&mut self, why: impl FnOnce() -> String) {
        self.errors += 1;
        if self.first_error.is_none() {
            self.first_error = Some(why());
        }
    }
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, MAX_LATENCY, 3).expect("the bounds are in range")
}

fn rate(requests: u64, elapsed: Duration) -> f64 {
    if elapsed.is_zero() {
        return 0.0;
    }
    requests as f64 / elapsed.as_secs_f64()
}

fn per_request(used: CpuUse, requests: u64) -> Option<CpuUse> {
    (requests > 0).then(|| CpuUse {
        user: used.user.div_f64(requests as f64),
        sys: used.sys.div_f64(requests as f64),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_one_label_are_merged() {
        let group = |label: &str, requests, latency| {
            let mut group = GroupOutcome::new(label.into());
            group.requests = requests;
            group.unanswered = 1;
            group.latency.record_n(latency, requests).unwrap();
            group
        };
        let outcome = Outcome {
            groups: vec![
                group("short", 9, 10),
                group("long", 1, 500),
                group("short", 91, 1000),
            ],
            connections: 1,
            elapsed: Duration::from_secs(1),
            server_cpu: None,
            client_cpu: CpuUse::default(),
            stopped: false,
        };
        let merged = outcome.merge_by_label();
        let labels: Vec<_> = merged.groups.iter().map(|g| g.label.as_str()).collect();
        assert_eq!(labels, ["short", "long"]);
        let short = &merged.groups[0];
        assert_eq!((short.requests, short.unanswered), (100, 2));
        assert_eq!(short.quantile(0.05).as_nanos(), 10);
        assert_eq!(short.quantile(0.5).as_nanos(), 1000);
        assert_eq!(merged.requests(), 101);
    }
}
