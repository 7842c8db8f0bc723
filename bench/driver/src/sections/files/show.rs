//! The rows and tables of the section.

use super::{AHEAD, CASES, MIXED};
use crate::peers::{RAW_C, UPSHIFT};
use crate::results::{Cell, Run, SectionResults};
use crate::table::{Column, cells, plain, spread, text};
use crate::verdict::{Row, at_most, row};

/// Returns the goals: no peer is faster, raw C hardly so, and urgent reads take a third of the time
/// of other runtimes.
pub(crate) fn rows(section: &SectionResults) -> Vec<Row> {
    let rate = |run: &Run| run.per_second;
    let is_other = |peer: &str| !peer.starts_with(UPSHIFT) && peer != RAW_C;
    let mut rows = Vec::new();
    for case in CASES.iter().map(|case| case.name).chain([MIXED[1]]) {
        let ours = section.median(case, UPSHIFT, rate);
        let best = section.least(case, is_other, |run| -run.per_second);
        rows.push(row(
            format!("files, {case}: no peer does more"),
            ours.zip(best).map(|(us, (peer, best))| {
                let text = format!("{us:.0}/s; best other {peer} {:.0}", -best);
                (text, at_most(-best / us, 1.0))
            }),
        ));
        rows.push(row(
            format!("files, {case}: ≥ 0.95 × raw C"),
            ours.zip(section.median(case, RAW_C, rate))
                .map(|(us, raw)| {
                    let text = format!("{:.2} × ({us:.0}/s against {raw:.0}/s)", us / raw);
                    (text, at_most(0.95 * raw / us, 1.0))
                }),
        ));
    }
    let p99 = |run: &Run| run.p99;
    let best = section.least(MIXED[0], is_other, p99);
    let both = section.median(MIXED[0], UPSHIFT, p99).zip(best);
    rows.push(row(
        format!("files, {}: p99 ahead of all by {AHEAD} ×", MIXED[0]),
        both.map(|(us, (peer, best))| {
            let text = format!("{us:.0} µs; best other {peer} {best:.0}");
            (text, at_most(AHEAD * us, best))
        }),
    ));
    rows
}

/// Formats the table of a row of the section, the best peer first.
pub(crate) fn table(found: &SectionResults, case: &str) -> String {
    let is_urgent = case == MIXED[0];
    let key = |run: &Run| if is_urgent { run.p99 } else { -run.per_second };
    let value = |cell: &Cell| cell.median(key).unwrap_or(f64::INFINITY);
    let mut all: Vec<&Cell> = found.of_case(case, |_| true).collect();
    all.sort_by(|a, b| value(a).total_cmp(&value(b)));
    let ours = found.cell(case, UPSHIFT).map(value);
    let against = if is_urgent {
        "p99 ÷ upshift's"
    } else {
        "op/s ÷ upshift's"
    };
    fn median(head: &str, of: fn(&Run) -> f64) -> Column<'_> {
        text(head, move |cell| {
            plain(cell.median(of).filter(|value| *value > 0.0), 2)
        })
    }
    let columns = [
        spread("op/s", 0, |run| run.per_second),
        spread("p50 µs", 1, |run| run.p50),
        spread("p99 µs", 1, |run| run.p99),
        spread("p99.9 µs", 0, |run| run.p999),
        median("CPU µs/op", Run::cpu),
        median("user", |run| run.user),
        median("kernel", |run| run.sys),
        median("CPU busy", |run| run.server_busy),
        text(against, |cell| {
            plain(ours.map(|ours| value(cell) / ours), 2)
        }),
    ];
    cells(case, "peer", all, &columns)
}
