//! One table of all mixes: what preemption does to short requests, and what it costs the long ones.

use upshift_report::Table;

use super::cases::{self, MILLIS, Mix};
use super::targets::{Quantile, latency};
use super::{NO_LONG, OFF, ON, PLAIN, TRICK};
use crate::results::{Run, SectionResults};
use crate::table::plain;

/// Loads, the class that goals are about, and where short requests are not disturbed.
fn loads() -> Vec<(String, Mix, String)> {
    let mut loads = Vec::new();
    for mix in Mix::ALL {
        loads.push((cases::micros(mix), mix, cases::micros(mix.without_long())));
    }
    loads.push((cases::awake(), Mix::Same, cases::awake()));
    for mix in Mix::TWO {
        loads.push((cases::two(mix), mix, cases::two(mix)));
    }
    for (load, mix) in MILLIS {
        loads.push((cases::millis(load, mix), mix, String::new()));
    }
    loads
}

/// The table, in Markdown; empty if nothing of it is measured.
pub(crate) fn table(section: &SectionResults) -> String {
    const SERVERS: [&str; 6] = [OFF, ON, PLAIN, TRICK, "go", "tokio-mt2"];
    let title = "Short requests, p50 / p99 / p99.9; then long ones, p50 / p99; all in µs. Of eight levels, the short requests are those of the most \
                 urgent one.";
    let heads = ["<load", "short p99 without long requests"];
    let mut table = Table::new(title, &[&heads[..], &SERVERS[..]].concat());
    for (case, mix, quiet) in loads() {
        let of = |server: &str, class: &str, quantiles: &[Quantile]| {
            let figure = |&quantile: &Quantile| {
                latency(section, &case, server, class, quantile).map(|it| format!("{it:.0}"))
            };
            let figures: Option<Vec<String>> = quantiles.iter().map(figure).collect();
            Some(figures?.join(" / "))
        };
        let cell = |server| {
            let short = of(server, mix.short(), &[Run::p50, Run::p99, Run::p999])?;
            Some(format!(
                "{short}; {}",
                of(server, "long", &[Run::p50, Run::p99])?
            ))
        };
        let cells = SERVERS.map(cell);
        if cells.iter().any(Option::is_some) {
            let quiet = latency(section, &quiet, NO_LONG, mix.short(), Run::p99);
            let row = [case.clone(), plain(quiet, 0)].into_iter();
            table.row(row.chain(cells.map(|cell| cell.unwrap_or("–".into()))));
        }
    }
    if table.rows.is_empty() {
        return String::new();
    }
    table.markdown()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Cell;
    use crate::sections::preemption::class_row;

    #[test]
    fn long_requests_stand_beside_short_ones() {
        let case = cases::micros(Mix::Same);
        let cell = |class: &str, p99| Cell {
            case: case.clone(),
            peer: class_row(ON, class),
            runs: vec![Run {
                p50: 20.0,
                p99,
                p999: 900.0,
                ..Run::default()
            }],
        };
        let section = SectionResults {
            cells: vec![cell("short", 90.0), cell("long", 1500.0)],
            ..SectionResults::default()
        };
        let table = table(&section);
        assert!(table.contains("20 / 90 / 900; 20 / 1500"), "{table}");
        assert!(super::table(&SectionResults::default()).is_empty());
    }
}
