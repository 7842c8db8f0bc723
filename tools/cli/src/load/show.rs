//! Formats the result of a load as a table and two sentences.

use upshift_load::{GroupReport, Report};

use upshift_report::Table;
use upshift_report::number::{integer, micros};

pub(crate) fn table(report: &Report) -> Table {
    let mut table = Table::new(
        format!(
            "{:.1} s measured; latency of replies, requests per second",
            report.seconds
        ),
        &[
            "<target", "conns", "req/s", "errors", "p50", "p90", "p99", "p99.9", "max", "waiting",
        ],
    );
    let total = (report.groups.len() > 1).then_some(&report.total);
    for group in report.groups.iter().chain(total) {
        let counts = [
            group.label.clone(),
            group.connections.to_string(),
            integer(group.per_second),
            group.errors.to_string(),
        ];
        let cells = counts.into_iter().chain(latencies(group));
        table.row(cells.chain([integer(group.unanswered as f64)]));
    }
    table
}

/// Returns median, 90, 99, 99.9 % and longest latency of a group as cells; dashes without replies.
pub(crate) fn latencies(group: &GroupReport) -> [String; 5] {
    [group.p50, group.p90, group.p99, group.p999, group.max]
        .map(|us| micros(if group.requests == 0 { f64::NAN } else { us }))
}

/// Returns the client's own lateness as a sentence; empty in a closed loop.
pub(crate) fn lag_line(report: &Report) -> String {
    match report.total.send_lag_p99 {
        late if late > 0.0 => format!(
            "Requests left {} late (p99); the latencies contain this delay of the client",
            micros(late)
        ),
        _ => String::new(),
    }
}

pub(crate) fn cpu_line(report: &Report) -> String {
    let server = match report.server_cpu_us {
        Some((user, sys)) => format!(
            "server {} (user {}, system {})",
            micros(user + sys),
            micros(user),
            micros(sys)
        ),
        None => "server unknown (give --server-pid)".into(),
    };
    let client = report.client_cpu_us.map_or("unknown".into(), micros);
    format!("CPU time per request: {server}; client {client}")
}
