//! Formats the table of the mixed load: Upshift beside the alternatives that users of tokio have.

use upshift_report::Table;

use super::{IDLE_CASE, OVERLOAD_CASE, capacity, rest_row, urgent_row};
use crate::results::{Run, SectionResults};
use crate::table::{format_spread, format_value};

const TITLE: &str = "### One request in ten urgent: alone, and at 120 % of capacity\n\n\
     Capacity is that of the server in a closed loop; for servers without such a row, it is that of axum on tokio. \
     Everything runs on CPU 0, including HAProxy.";

const HEADS: [&str; 9] = [
    "<server",
    "urgent alone: p50 µs",
    "p99 µs",
    "urgent at 120 %: p50 µs",
    "p99 µs",
    "the rest: p50 ms",
    "replies k/s",
    "% of capacity",
    "server CPU µs/req",
];

/// Returns the table in Markdown; empty if the mixed load was not measured.
pub(crate) fn table(section_results: &SectionResults) -> String {
    let mut table = Table::new(TITLE, &HEADS);
    let suffix = urgent_row("");
    for cell in section_results.cells_of_case(OVERLOAD_CASE, |row| row.ends_with(&suffix)) {
        let server = cell.peer.trim_end_matches(&suffix);
        let rest = section_results.cell(OVERLOAD_CASE, &rest_row(server));
        let alone = section_results.cell(IDLE_CASE, &urgent_row(server));
        let per_second = |run: &Run| run.per_second;
        let replies =
            rest.and_then(|rest| Some(cell.median(per_second)? + rest.median(per_second)?));
        let replies_and_capacity = replies.zip(capacity(section_results, server));
        // Both rows contain the CPU time of the whole server.
        let cpu = replies.zip(cell.median(|run| run.server_busy));
        table.row([
            server.to_owned(),
            format_spread(alone.and_then(|alone| alone.spread(Run::p50)), 0),
            format_spread(alone.and_then(|alone| alone.spread(Run::p99)), 0),
            format_spread(cell.spread(Run::p50), 0),
            format_spread(cell.spread(Run::p99), 0),
            format_value(rest.and_then(|rest| rest.median(|run| run.p50() / 1e3)), 0),
            format_value(replies.map(|replies| replies / 1e3), 1),
            format_value(
                replies_and_capacity.map(|(replies, capacity)| 100.0 * replies / capacity),
                0,
            ),
            format_value(cpu.map(|(replies, busy)| 1e6 * busy / replies), 1),
        ]);
    }
    if table.rows.is_empty() {
        return String::new();
    }
    table.markdown()
}

#[cfg(test)]
mod tests {
    use super::super::{CAPACITY_CASE, TOKIO};
    use super::*;
    use crate::peers::ALTERNATIVES;

    fn run(per_second: f64, p99: f64) -> Run {
        Run {
            per_second,
            p99,
            server_busy: 1.0,
            ..Run::default()
        }
    }

    #[test]
    fn alternatives_are_measured_against_the_capacity_of_axum_on_tokio() {
        let mut section_results = SectionResults::default();
        assert_eq!(table(&section_results), "");
        section_results.record(CAPACITY_CASE, TOKIO, run(10_000.0, 0.0));
        let server = ALTERNATIVES[1];
        section_results.record(IDLE_CASE, &urgent_row(server), run(1_200.0, 200.0));
        section_results.record(OVERLOAD_CASE, &urgent_row(server), run(1_200.0, 300.0));
        section_results.record(OVERLOAD_CASE, &rest_row(server), run(6_800.0, 9e5));
        let table = table(&section_results);
        let row = table.trim_end().lines().last().unwrap_or_default();
        let cells: Vec<_> = row.split(" | ").collect();
        assert!(cells[0].ends_with(server));
        assert_eq!(cells[2], "200 (200–200)");
        assert_eq!(cells[4], "300 (300–300)");
        assert_eq!(cells[6..], ["8.0", "80", "125.0 |"]);
    }
}
