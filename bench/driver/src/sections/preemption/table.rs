//! Formats one table per case, with one row per server: the median of each figure, and its ratios
//! to the server without preemption (*off*) and to the C server (*c*). A ratio uses only the rounds
//! in which both servers were measured.

use upshift_report::Table;

use super::cell::{LONG, SHORT, row};
use super::{C_SERVER, PREEMPT_OFF, Quantile};
use crate::results::{Run, SectionResults, distinct};
use crate::table::format_value;

/// Columns: heading, class of requests, quantity, and the factor that converts to the unit in the
/// heading (values are divided by it).
const FIGURES: [(&str, &str, Quantile, f64); 5] = [
    ("short p50 µs", SHORT, Run::p50, 1.0),
    ("p95 µs", SHORT, Run::p95, 1.0),
    ("p99 µs", SHORT, Run::p99, 1.0),
    ("long p50 ms", LONG, Run::p50, 1e3),
    ("CPU µs/req", SHORT, Run::cpu, 1.0),
];

pub(crate) fn tables(section: &SectionResults) -> String {
    let cases = section.cases();
    let tables: String = cases.iter().map(|case| table(section, case)).collect();
    if tables.is_empty() {
        return tables;
    }
    format!(
        "Medians of the rounds. In parentheses, the ratios of this median to that of *off* and to that of *c*, each over the \
         rounds in which both servers were measured.\n\n{tables}"
    )
}

fn table(section: &SectionResults, case: &str) -> String {
    let headings = FIGURES.map(|(heading, ..)| heading);
    let headings = [&["<server"], &headings[..], &["client late µs", "rounds"]].concat();
    let mut table = Table::new(format!("### {case}"), &headings);
    let peers = section
        .cells_of_case(case, |_| true)
        .map(|cell| cell.peer.as_str());
    let servers = distinct(peers.filter_map(|peer| Some(peer.rsplit_once(": ")?.0)));
    for server in servers {
        let figure = |&(_, class, quantile, unit): &(&str, &str, Quantile, f64)| {
            let own = row(server, class);
            let median = section.median(case, &own, quantile)? / unit;
            let ratio = |base: &str| {
                let ratio = section.ratio(case, &own, &row(base, class), quantile)?;
                Some(format_value(Some(ratio.value), 2))
            };
            let ratios: Vec<String> = [PREEMPT_OFF, C_SERVER]
                .into_iter()
                .filter_map(ratio)
                .collect();
            let digits = if median < 100.0 { 1 } else { 0 };
            Some(format!("{median:.digits$} ({})", ratios.join(", ")))
        };
        let short = section.cell(case, &row(server, SHORT));
        let lateness_us = short.and_then(|cell| cell.median(|run| run.send_lag));
        let rounds = short.map_or(0, |cell| cell.runs.len());
        let figures = FIGURES.iter().map(|it| figure(it).unwrap_or("–".into()));
        let cells = std::iter::once(server.to_owned()).chain(figures);
        table.row(cells.chain([format_value(lateness_us, 0), rounds.to_string()]));
    }
    if table.rows.is_empty() {
        return String::new();
    }
    table.markdown()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sections::preemption::PREEMPT_ON;

    #[test]
    fn ratios_use_the_rounds_that_both_servers_have() {
        let mut section = SectionResults::default();
        // The machine becomes slower from round to round, but the ratio stays the same.
        for (round, drift) in [(0, 1.0), (1, 2.0), (2, 8.0)] {
            for (server, p50) in [(PREEMPT_ON, 30.0), (C_SERVER, 20.0), (PREEMPT_OFF, 60.0)] {
                // A round that was not measured with all servers.
                if (server, round) == (C_SERVER, 1) {
                    continue;
                }
                let run = Run {
                    round,
                    p50: p50 * drift,
                    ..Run::default()
                };
                section.record("a", &row(server, SHORT), run);
            }
        }
        let table = tables(&section);
        assert!(table.contains("| 60.0 (0.50, 1.50) |"), "{table}");
        assert!(tables(&SectionResults::default()).is_empty());
    }
}
