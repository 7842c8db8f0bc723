//! One table of all mixes: what preemption does to short requests, and what it costs the long ones.

use std::fmt::Write;

use super::cases::{self, MILLIS, Mix};
use super::targets::{Quantile, latency};
use super::{NO_LONG, OFF, ON, PLAIN, TRICK};
use crate::results::SectionResults;

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
    let mut rows = String::new();
    for (case, mix, quiet) in loads() {
        let of = |server: &str, class: &str, quantile| {
            latency(section, &case, server, class, quantile).map(figure)
        };
        let cells: Vec<String> = SERVERS
            .iter()
            .map(|server| {
                let short = [Quantile::P50, Quantile::P99, Quantile::P999];
                let short = short.map(|quantile| of(server, mix.short(), quantile));
                let long = [Quantile::P50, Quantile::P99].map(|q| of(server, "long", q));
                match (short, long) {
                    ([Some(p50), Some(p99), Some(p999)], [Some(median), Some(worst)]) => {
                        format!("{p50} / {p99} / {p999}; {median} / {worst}")
                    }
                    _ => "–".into(),
                }
            })
            .collect();
        if cells.iter().all(|cell| cell == "–") {
            continue;
        }
        let quiet = latency(section, &quiet, NO_LONG, mix.short(), Quantile::P99);
        let quiet = quiet.map_or("–".into(), figure);
        let _ = writeln!(rows, "| {case} | {quiet} | {} |", cells.join(" | "));
    }
    if rows.is_empty() {
        return rows;
    }
    format!(
        "Short requests, p50 / p99 / p99.9; then long ones, p50 / p99; all in µs. Of eight levels, the short requests are those of the most \
         urgent one.\n\n| load | short p99 without long requests | {} |\n|---|---{}|\n{rows}\n",
        SERVERS.join(" | "),
        "|---".repeat(SERVERS.len())
    )
}

/// Whole µs.
fn figure(micros: f64) -> String {
    format!("{micros:.0}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Cell, Run};
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
