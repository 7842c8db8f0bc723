//! What the daemon was to reach, and whether it did: rows of the summary.

use super::{ALONE, CASE, DAEMON, NICE, PLAIN, THREADS, batch_row};
use crate::results::{Run, SectionResults};
use crate::verdict::{Row, at_most, row};

/// All rows of the section.
pub(crate) fn rows(section: &SectionResults, rows: &mut Vec<Row>) {
    let p99 = |name| {
        section
            .cell(CASE, name)?
            .median(|run: &Run| run.honest(run.p99, 0.99))
    };
    for name in [DAEMON, THREADS] {
        let found = p99(name).zip(p99(ALONE)).map(|(with, alone)| {
            let others = [PLAIN, NICE].map(|other| {
                let value = p99(other).map_or("–".into(), |v| format!("{v:.0}"));
                format!("{other} {value}")
            });
            let text = format!(
                "{:.2} × ({with:.0} against {alone:.0} µs; {})",
                with / alone,
                others.join(", ")
            );
            (text, at_most(with / alone, 2.0))
        });
        rows.push(row(
            format!("processes, {name}: the server's p99 ≤ 2 × alone"),
            found,
        ));
    }
    rows.push(row(
        "processes, both on the board: the batch does ≥ 90 % of what server and client leave",
        batch_share(section).map(|share| {
            let text = format!("{:.1} %", 100.0 * share);
            (text, at_most(0.9, share))
        }),
    ));
}

/// The batch's part of the CPU time that the others left.
fn batch_share(section: &SectionResults) -> Option<f64> {
    let server = section.cell(CASE, DAEMON)?;
    let batch = section.cell(CASE, &batch_row(DAEMON))?;
    let taken = server.median(|run| run.server_busy + run.client_busy)?;
    let done = batch.median(|run| run.per_second / 1e3)?;
    Some(done / (2.0 - taken))
}
