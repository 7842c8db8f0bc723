//! What a run measured.

use crate::cpu::CpuUse;
use hdrhistogram::Histogram;
use std::time::Duration;

/// The longest latency that a histogram tells apart, in ns (1000 s); longer ones are recorded as this.
const LONGEST: u64 = 1_000_000_000_000;

/// What a run measured.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// One per group of the plan, in its order.
    pub groups: Vec<GroupOutcome>,
    /// Connections that had answered a request before the load began; classes of spin requests share them.
    pub connections: usize,
    /// The time measured: the duration of the plan, or less if the run ended early.
    pub elapsed: Duration,
    /// CPU time of the server over the time measured, if the plan named its process and it still runs.
    pub server_cpu: Option<CpuUse>,
    /// CPU time of the client's thread over the time measured.
    pub client_cpu: CpuUse,
    /// The run was ended by [`Plan::stop`](crate::Plan::stop).
    pub stopped: bool,
}

impl Outcome {
    /// Replies of all groups.
    pub fn requests(&self) -> u64 {
        self.groups.iter().map(|g| g.requests).sum()
    }

    /// Errors of all groups.
    pub fn errors(&self) -> u64 {
        self.groups.iter().map(|g| g.errors).sum()
    }

    /// Replies per second of all groups.
    pub fn per_second(&self) -> f64 {
        rate(self.requests(), self.elapsed)
    }

    /// The latencies of all groups in one histogram, in ns.
    pub fn latency(&self) -> Histogram<u64> {
        let mut all = histogram();
        for group in &self.groups {
            all.add(&group.latency)
                .expect("all histograms have the same bounds");
        }
        all
    }

    /// The same with one group for each label, in the order of the first of each: such as requests of one length and several
    /// levels.
    #[must_use]
    pub fn by_label(mut self) -> Outcome {
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

    /// CPU time of the server per reply, if known and there were any.
    pub fn server_cpu_per_request(&self) -> Option<CpuUse> {
        per_request(self.server_cpu?, self.requests())
    }

    /// CPU time of the client per reply, if there were any.
    pub fn client_cpu_per_request(&self) -> Option<CpuUse> {
        per_request(self.client_cpu, self.requests())
    }
}

/// What a group measured.
#[derive(Clone, Debug)]
pub struct GroupOutcome {
    /// The label of the group.
    pub label: String,
    /// Connections that were established and had answered a request before the load began.
    pub connections: usize,
    /// Correct replies completed in the time measured.
    pub requests: u64,
    /// Connections that failed or were given up and replies that were wrong, over the whole run.
    pub errors: u64,
    /// The first error, in words.
    pub first_error: Option<String>,
    /// Bytes received in the time measured.
    pub bytes: u64,
    /// Latencies of `requests` in ns, 3 significant digits, up to 1000 s.
    pub latency: Histogram<u64>,
    /// Open loop: how late requests left that found their connection free, in ns. A high value means that the client,
    /// not the server, is at its limit.
    pub send_lag: Histogram<u64>,
    /// Open loop: requests that could not leave in time because their connection had the most requests in flight.
    pub delayed: u64,
    /// Requests without a reply at the end of the time measured. In a closed loop those in flight; in an open loop also
    /// those that were due and had not left.
    pub unanswered: u64,
    /// The age of the oldest of `unanswered`; no percentile of the latency can be trusted beyond it.
    pub oldest_unanswered: Duration,
    /// The time measured.
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

    /// Replies per second.
    pub fn per_second(&self) -> f64 {
        rate(self.requests, self.elapsed)
    }

    /// The latency at a quantile, such as 0.99; zero without replies.
    pub fn quantile(&self, quantile: f64) -> Duration {
        Duration::from_nanos(self.latency.value_at_quantile(quantile))
    }

    /// Counts what another group of the same run has measured as its own.
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

    pub(crate) fn error(&mut self, why: impl FnOnce() -> String) {
        self.errors += 1;
        if self.first_error.is_none() {
            self.first_error = Some(why());
        }
    }
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST, 3).expect("the bounds are in range")
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
    fn groups_of_one_label_are_counted_together() {
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
        let merged = outcome.by_label();
        let labels: Vec<_> = merged.groups.iter().map(|g| g.label.as_str()).collect();
        assert_eq!(labels, ["short", "long"]);
        let short = &merged.groups[0];
        assert_eq!((short.requests, short.unanswered), (100, 2));
        assert_eq!(short.quantile(0.05).as_nanos(), 10);
        assert_eq!(short.quantile(0.5).as_nanos(), 1000);
        assert_eq!(merged.requests(), 101);
    }
}
