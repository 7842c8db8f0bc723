//! Computes the figures of an [`Outcome`] for the JSON of `upshift load`, and for the tables of the
//! demo and the benchmarks.
//!
//! Times are microseconds, rates are per second.

use std::time::Duration;

use crate::{CpuUse, GroupOutcome, Histogram, Outcome};

/// Quantiles of [`GroupReport::curve`]: dense in the tail, which the plots show.
const CURVE_QUANTILES: [f64; 24] = [
    0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.925, 0.95, 0.97, 0.98, 0.99,
    0.993, 0.995, 0.997, 0.998, 0.999, 0.9995, 0.9999,
];

/// The figures of a run.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Report {
    /// Measured time, in seconds.
    pub seconds: f64,
    /// Figures of all groups together.
    pub total: GroupReport,
    /// Figures of each group or class, in the order of the plan.
    pub groups: Vec<GroupReport>,
    /// CPU time of the server per request, user and system, µs.
    pub server_cpu_us: Option<(f64, f64)>,
    /// CPU time of the client per request, µs.
    pub client_cpu_us: Option<f64>,
}

/// The figures of a group.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct GroupReport {
    /// Name of the group.
    pub label: String,
    /// Number of connections that answered.
    pub connections: usize,
    /// Number of correct replies.
    pub requests: u64,
    /// Correct replies per second.
    pub per_second: f64,
    /// Number of failed connections and wrong replies.
    pub errors: u64,
    /// Message of the first error.
    pub first_error: Option<String>,
    /// Latency, mean.
    pub mean: f64,
    /// Latency, standard deviation.
    pub jitter: f64,
    /// Latency, median.
    pub p50: f64,
    /// Latency, 90 %.
    pub p90: f64,
    /// Latency, 95 %.
    pub p95: f64,
    /// Latency, 99 %.
    pub p99: f64,
    /// Latency, 99.9 %.
    pub p999: f64,
    /// The longest latency.
    pub max: f64,
    /// Open loop: number of requests that were due but had no reply at the end.
    pub unanswered: u64,
    /// Age of the oldest unanswered request; percentiles are meaningless beyond this age.
    pub oldest_unanswered: f64,
    /// Open loop: delay of the client itself, p99.
    pub send_lag_p99: f64,
    /// Pairs (quantile, latency) for plots.
    pub curve: Vec<(f64, f64)>,
}

fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

impl Report {
    /// Creates the report of an outcome.
    pub fn new(outcome: &Outcome) -> Report {
        let groups: Vec<GroupReport> = outcome.groups.iter().map(GroupReport::new).collect();
        let mut total = GroupReport::with_latency("all", &outcome.latency());
        total.connections = outcome.connections;
        total.requests = outcome.requests();
        total.per_second = outcome.per_second();
        total.errors = outcome.errors();
        total.first_error = groups.iter().find_map(|g| g.first_error.clone());
        total.unanswered = groups.iter().map(|g| g.unanswered).sum();
        total.oldest_unanswered = groups
            .iter()
            .map(|g| g.oldest_unanswered)
            .fold(0.0, f64::max);
        total.send_lag_p99 = groups.iter().map(|g| g.send_lag_p99).fold(0.0, f64::max);
        Report {
            seconds: outcome.elapsed.as_secs_f64(),
            total,
            groups,
            server_cpu_us: outcome
                .server_cpu_per_request()
                .map(|cpu| (us(cpu.user), us(cpu.sys))),
            client_cpu_us: outcome
                .client_cpu_per_request()
                .map(|cpu: CpuUse| us(cpu.total())),
        }
    }

    /// Returns the server's CPU time per request, user and system together, in µs; NaN if unknown.
    pub fn server_cpu(&self) -> f64 {
        self.server_cpu_us
            .map_or(f64::NAN, |(user, sys)| user + sys)
    }
}

impl GroupReport {
    fn new(outcome: &GroupOutcome) -> GroupReport {
        GroupReport {
            connections: outcome.connections,
            requests: outcome.requests,
            per_second: outcome.per_second(),
            errors: outcome.errors,
            first_error: outcome.first_error.clone(),
            unanswered: outcome.unanswered,
            oldest_unanswered: us(outcome.oldest_unanswered),
            send_lag_p99: quantile(&outcome.send_lag, 0.99),
            ..GroupReport::with_latency(&outcome.label, &outcome.latency)
        }
    }

    /// Returns the p99, or the age of the oldest unanswered request if more than 1 % of the
    /// requests are unanswered and this age is larger.
    pub fn p99_with_unanswered(&self) -> f64 {
        if self.unanswered * 100 > self.requests + self.unanswered {
            self.p99.max(self.oldest_unanswered)
        } else {
            self.p99
        }
    }

    fn with_latency(label: &str, latency: &Histogram<u64>) -> GroupReport {
        let value_at = |q| quantile(latency, q);
        // A quantile with less than one sample beyond it would only repeat the maximum.
        let has_samples = |q: f64| (1.0 - q) * latency.len() as f64 >= 1.0;
        GroupReport {
            label: label.to_owned(),
            connections: 0,
            requests: 0,
            per_second: 0.0,
            errors: 0,
            first_error: None,
            mean: latency.mean() / 1e3,
            jitter: latency.stdev() / 1e3,
            p50: value_at(0.5),
            p90: value_at(0.9),
            p95: value_at(0.95),
            p99: value_at(0.99),
            p999: value_at(0.999),
            max: latency.max() as f64 / 1e3,
            unanswered: 0,
            oldest_unanswered: 0.0,
            send_lag_p99: 0.0,
            curve: CURVE_QUANTILES
                .into_iter()
                .filter(|&q| has_samples(q))
                .map(|q| (q, value_at(q)))
                .collect(),
        }
    }
}

fn quantile(histogram: &Histogram<u64>, q: f64) -> f64 {
    histogram.value_at_quantile(q) as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_starved_group_is_as_slow_as_its_oldest_request() {
        let tail = |requests, unanswered| {
            let histogram = Histogram::new_with_bounds(1, 1_000_000_000, 3).unwrap();
            GroupReport {
                p99: 100.0,
                requests,
                unanswered,
                oldest_unanswered: 5e6,
                ..GroupReport::with_latency("", &histogram)
            }
            .p99_with_unanswered()
        };
        assert_eq!(tail(1000, 5), 100.0);
        assert_eq!(tail(1000, 500), 5e6);
        assert_eq!(tail(0, 10), 5e6);
    }

    #[test]
    fn jitter_is_the_standard_deviation() {
        let mut latency = Histogram::new_with_bounds(1, 1_000_000_000, 3).unwrap();
        for us in [90_000, 110_000] {
            latency.record_n(us, 50).unwrap();
        }
        let group = GroupReport::with_latency("", &latency);
        assert!((group.mean - 100.0).abs() < 0.1, "{}", group.mean);
        assert!((group.jitter - 10.0).abs() < 0.1, "{}", group.jitter);
    }

    #[test]
    fn a_curve_ends_where_the_samples_are_too_few() {
        let mut latency = Histogram::new_with_bounds(1, 1_000_000_000, 3).unwrap();
        for i in 1..=1000u64 {
            latency.record(i * 1000).unwrap();
        }
        let group = GroupReport::with_latency("level 8", &latency);
        assert!((group.p50 - 500.0).abs() < 2.0);
        assert!(group.curve.iter().any(|&(q, _)| q == 0.999));
        assert!(
            group.curve.iter().all(|&(q, _)| q < 0.9995),
            "1000 samples have no p99.95"
        );
    }
}
