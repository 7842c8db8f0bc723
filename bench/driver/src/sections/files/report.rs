//! Defines the goals and formats the tables of the section `files`.

use super::{CASES, MIXED, REQUIRED_SPEEDUP};
use crate::goal::{Goal, at_least, at_most};
use crate::peers::{RAW_C, UPSHIFT};
use crate::results::{Cell, Run, SectionResults};
use crate::table::{Column, cells, format_value, spread, text};

fn cause(case: &str) -> &'static str {
    if case.contains("writes") {
        "the kernel copies; beside urgent reads only one write runs at a time"
    } else if case.starts_with("random 4 KiB reads, warm") {
        "a read that must not block costs the kernel 0.05 µs more"
    } else if case.starts_with("open") {
        "each file needs several calls of its own"
    } else {
        "not known"
    }
}

/// Returns the goals: Upshift is at least as fast as every other runtime and at least 0.95 times as
/// fast as raw C, and its p99 of urgent reads is at most a third of the best other runtime's.
pub(crate) fn goals(section: &SectionResults) -> Vec<Goal> {
    let is_other = |peer: &str| !peer.starts_with(UPSHIFT) && peer != RAW_C;
    let mut goals = Vec::new();
    for case in CASES.iter().map(|case| case.name).chain([MIXED[1]]) {
        let rate = |peer: &str| section.values(case, peer, |run| run.per_second / 1e3);
        let best = section.lowest_median(case, is_other, |run| -run.per_second);
        goals.push(
            at_least(format!("{case}: rate ≥ best peer"), 1.0, "k/s")
                .cell("", rate(UPSHIFT), best.and_then(|(peer, _)| rate(peer)))
                .cause(cause(case)),
        );
        goals.push(
            at_least(format!("{case}: rate ≥ 0.95 × raw C"), 0.95, "k/s")
                .cell("", rate(UPSHIFT), rate(RAW_C))
                .cause(cause(case)),
        );
    }
    let p99 = |peer: &str| section.values(MIXED[0], peer, |run| run.p99);
    let best = section.lowest_median(MIXED[0], is_other, |run| run.p99);
    goals.push(
        at_most(
            format!("{}: p99 ≤ best peer / {REQUIRED_SPEEDUP}", MIXED[0]),
            1.0 / REQUIRED_SPEEDUP,
            "µs",
        )
        .cell("", p99(UPSHIFT), best.and_then(|(peer, _)| p99(peer)))
        .cause("a kernel thread copies 1 MiB without being preempted"),
    );
    goals
}

/// Formats the table of a case, the best peer first.
pub(crate) fn table(section_results: &SectionResults, case: &str) -> String {
    let is_urgent = case == MIXED[0];
    let key = |run: &Run| if is_urgent { run.p99 } else { -run.per_second };
    let value = |cell: &Cell| cell.median(key).unwrap_or(f64::INFINITY);
    let mut all: Vec<&Cell> = section_results.cells_of_case(case, |_| true).collect();
    all.sort_by(|a, b| value(a).total_cmp(&value(b)));
    let ours = section_results.cell(case, UPSHIFT).map(value);
    let ratio_head = if is_urgent {
        "p99 ÷ upshift's"
    } else {
        "op/s ÷ upshift's"
    };
    fn median(head: &str, of: fn(&Run) -> f64) -> Column<'_> {
        text(head, move |cell| {
            format_value(cell.median(of).filter(|value| *value > 0.0), 2)
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
        text(ratio_head, |cell| {
            format_value(ours.map(|ours| value(cell) / ours), 2)
        }),
    ];
    cells(case, "peer", all, &columns)
}
