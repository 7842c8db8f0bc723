//! The rows and tables of the section.

use std::fmt::Write as _;

use super::{AHEAD, CASES, MIXED};
use crate::peers::{RAW_C, UPSHIFT};
use crate::results::{Cell, Run, SectionResults, shown};
use crate::verdict::{Row, at_most, row};

/// What was to be reached: no peer does more, raw C hardly more, and urgent reads wait for a third of what they wait for elsewhere.
pub(crate) fn rows(section: &SectionResults, rows: &mut Vec<Row>) {
    let rate = |run: &Run| run.per_second;
    for case in CASES.iter().map(|case| case.name).chain([MIXED[1]]) {
        let ours = section.cell(case, UPSHIFT).and_then(|c| c.median(rate));
        let best = best_other(section, case, |run| -run.per_second);
        rows.push(row(
            format!("files, {case}: no peer does more"),
            ours.zip(best).map(|(us, (peer, best))| {
                let text = format!("{us:.0}/s; best other {peer} {:.0}", -best);
                (text, at_most(-best / us, 1.0))
            }),
        ));
        let raw = section.cell(case, RAW_C).and_then(|c| c.median(rate));
        rows.push(row(
            format!("files, {case}: ≥ 0.95 × raw C"),
            ours.zip(raw).map(|(us, raw)| {
                let text = format!("{:.2} × ({us:.0}/s against {raw:.0}/s)", us / raw);
                (text, at_most(0.95 * raw / us, 1.0))
            }),
        ));
    }
    let ours = section.cell(MIXED[0], UPSHIFT);
    let ours = ours.and_then(|c| c.median(|run| run.p99));
    let best = best_other(section, MIXED[0], |run| run.p99);
    rows.push(row(
        format!("files, {}: p99 ahead of all by {AHEAD} ×", MIXED[0]),
        ours.zip(best).map(|(us, (peer, best))| {
            let text = format!("{us:.0} µs; best other {peer} {best:.0}");
            (text, at_most(AHEAD * us, best))
        }),
    ));
}

/// The smallest median of those that are neither ours nor raw C.
fn best_other<'a>(
    section: &'a SectionResults,
    case: &str,
    of: impl Fn(&Run) -> f64,
) -> Option<(&'a str, f64)> {
    section
        .cells
        .iter()
        .filter(|c| c.case == case && !c.peer.starts_with(UPSHIFT) && c.peer != RAW_C)
        .filter_map(|c| Some((c.peer.as_str(), c.median(&of)?)))
        .min_by(|a, b| a.1.total_cmp(&b.1))
}

/// A table for each row of the section.
pub(crate) fn tables(found: &SectionResults) -> String {
    let mut page = String::new();
    for case in found.cases() {
        let is_urgent = case == MIXED[0];
        let key = |run: &Run| if is_urgent { run.p99 } else { -run.per_second };
        let value = |cell: &Cell| cell.median(key).unwrap_or(f64::INFINITY);
        let mut cells: Vec<&Cell> = found.cells.iter().filter(|c| c.case == case).collect();
        cells.sort_by(|a, b| value(a).total_cmp(&value(b)));
        let ours = found.cell(case, UPSHIFT).map(value);
        let _ = write!(
            page,
            "### {case}\n\n\
             | peer | op/s | p50 µs | p99 µs | p99.9 µs | CPU µs/op | user | kernel | CPU busy | {} | runs |\n\
             |---|---|---|---|---|---|---|---|---|---|---|\n",
            if is_urgent {
                "p99 ÷ upshift's"
            } else {
                "op/s ÷ upshift's"
            }
        );
        for cell in cells {
            let plain = |of: fn(&Run) -> f64| match cell.median(of) {
                Some(value) if value > 0.0 => format!("{value:.2}"),
                _ => "–".into(),
            };
            let ratio = ours.map_or("–".into(), |ours| format!("{:.2}", value(cell) / ours));
            let name = match cell.peer.as_str() {
                UPSHIFT => "**upshift**",
                other => other,
            };
            let _ = writeln!(
                page,
                "| {name} | {} | {} | {} | {} | {} | {} | {} | {} | {ratio} | {} |",
                shown(cell.spread(|r| r.per_second), 0),
                shown(cell.spread(|r| r.p50), 1),
                shown(cell.spread(|r| r.p99), 1),
                shown(cell.spread(|r| r.p999), 0),
                plain(Run::cpu),
                plain(|r| r.user),
                plain(|r| r.sys),
                plain(|r| r.server_busy),
                cell.runs.len(),
            );
        }
        page.push('\n');
    }
    page
}
