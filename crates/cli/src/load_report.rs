//! The result of `upshift load`: as data (`--json`, read back by the demo) and as a table.
//!
//! Times are microseconds, rates are per second.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use upshift_load::{CpuUse, GroupOutcome, Histogram, Outcome};

use crate::table::{Table, grouped, micros};

/// Quantiles of [`LoadGroup::curve`]: dense in the tail, where the plots look.
const CURVE: [f64; 24] = [
    0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.925, 0.95, 0.97, 0.98, 0.99,
    0.993, 0.995, 0.997, 0.998, 0.999, 0.9995, 0.9999,
];

/// What a run measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct LoadReport {
    /// Seconds measured.
    pub(crate) seconds: f64,
    /// All groups together.
    pub(crate) total: LoadGroup,
    /// One per `--connect`, in their order.
    pub(crate) groups: Vec<LoadGroup>,
    /// CPU time of the server per request, user and system, µs.
    pub(crate) server_cpu_us: Option<(f64, f64)>,
    /// CPU time of the client per request, µs.
    pub(crate) client_cpu_us: Option<f64>,
}

/// What one group measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct LoadGroup {
    pub(crate) label: String,
    pub(crate) connections: usize,
    pub(crate) requests: u64,
    pub(crate) per_second: f64,
    pub(crate) errors: u64,
    pub(crate) first_error: Option<String>,
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) max: f64,
    /// Open loop: requests that were due but had no reply at the end.
    pub(crate) unanswered: u64,
    /// Age of the oldest of them: percentiles say nothing beyond it.
    pub(crate) oldest_unanswered: f64,
    /// Open loop: how late the client itself was, p99.
    pub(crate) send_lag_p99: f64,
    /// (quantile, latency) for plots.
    pub(crate) curve: Vec<(f64, f64)>,
}

fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

impl LoadReport {
    /// Takes over what was measured.
    pub(crate) fn new(outcome: &Outcome) -> LoadReport {
        let groups: Vec<LoadGroup> = outcome.groups.iter().map(LoadGroup::new).collect();
        let mut total = LoadGroup::with_latency("all", &outcome.latency());
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
        LoadReport {
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

    /// Server CPU time per request, user and system together, µs; NaN if unknown.
    pub(crate) fn server_cpu(&self) -> f64 {
        self.server_cpu_us
            .map_or(f64::NAN, |(user, sys)| user + sys)
    }

    /// The table that `upshift load` prints.
    pub(crate) fn table(&self) -> Table {
        let mut table = Table::new(
            format!(
                "{:.1} s measured; latency of replies, requests per second",
                self.seconds
            ),
            &[
                "<target", "conns", "req/s", "errors", "p50", "p90", "p99", "p99.9", "max",
                "waiting",
            ],
        );
        let total = (self.groups.len() > 1).then_some(&self.total);
        for group in self.groups.iter().chain(total) {
            table.row([
                group.label.clone(),
                group.connections.to_string(),
                grouped(group.per_second),
                group.errors.to_string(),
                group.time(group.p50),
                group.time(group.p90),
                group.time(group.p99),
                group.time(group.p999),
                group.time(group.max),
                grouped(group.unanswered as f64),
            ]);
        }
        table
    }

    /// How late the client itself was, in a sentence; empty in a closed loop.
    pub(crate) fn lag_line(&self) -> String {
        match self.total.send_lag_p99 {
            late if late > 0.0 => format!(
                "Requests left {} late (p99): the client's own part",
                micros(late)
            ),
            _ => String::new(),
        }
    }

    /// CPU time in a sentence.
    pub(crate) fn cpu_line(&self) -> String {
        let server = match self.server_cpu_us {
            Some((user, sys)) => {
                format!(
                    "server {} (user {}, system {})",
                    micros(user + sys),
                    micros(user),
                    micros(sys)
                )
            }
            None => "server unknown (give --server-pid)".into(),
        };
        let client = self.client_cpu_us.map_or("unknown".into(), micros);
        format!("CPU time per request: {server}; client {client}")
    }
}

impl LoadGroup {
    fn new(outcome: &GroupOutcome) -> LoadGroup {
        LoadGroup {
            connections: outcome.connections,
            requests: outcome.requests,
            per_second: outcome.per_second(),
            errors: outcome.errors,
            first_error: outcome.first_error.clone(),
            unanswered: outcome.unanswered,
            oldest_unanswered: us(outcome.oldest_unanswered),
            send_lag_p99: quantile(&outcome.send_lag, 0.99),
            ..LoadGroup::with_latency(&outcome.label, &outcome.latency)
        }
    }

    /// A latency of this group for a table; without replies there is none.
    pub(crate) fn time(&self, us: f64) -> String {
        micros(if self.requests == 0 { f64::NAN } else { us })
    }

    fn with_latency(label: &str, latency: &Histogram<u64>) -> LoadGroup {
        let at = |q| quantile(latency, q);
        // A quantile beyond the number of samples is only the maximum once more.
        let known = |q: f64| (1.0 - q) * latency.len() as f64 >= 1.0;
        LoadGroup {
            label: label.to_owned(),
            connections: 0,
            requests: 0,
            per_second: 0.0,
            errors: 0,
            first_error: None,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: latency.max() as f64 / 1e3,
            unanswered: 0,
            oldest_unanswered: 0.0,
            send_lag_p99: 0.0,
            curve: CURVE
                .into_iter()
                .filter(|&q| known(q))
                .map(|q| (q, at(q)))
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
    fn json_comes_back_as_it_was() {
        let mut latency = Histogram::new_with_bounds(1, 1_000_000_000, 3).unwrap();
        for i in 1..=1000u64 {
            latency.record(i * 1000).unwrap();
        }
        let group = LoadGroup::with_latency("level 8", &latency);
        assert!((group.p50 - 500.0).abs() < 2.0);
        assert!(group.curve.iter().any(|&(q, _)| q == 0.999));
        assert!(
            group.curve.iter().all(|&(q, _)| q < 0.9995),
            "1000 samples know no p99.95"
        );
        let report = LoadReport {
            seconds: 1.0,
            total: group.clone(),
            groups: vec![group.clone(), group],
            server_cpu_us: Some((1.0, 2.0)),
            client_cpu_us: None,
        };
        let back: LoadReport =
            serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
        assert_eq!(back.groups.len(), 2);
        assert_eq!(back.groups[0].curve, report.groups[0].curve);
        assert_eq!(back.server_cpu(), 3.0);
        assert_eq!(back.table().rows.len(), 3, "two groups and their total");
    }
}
