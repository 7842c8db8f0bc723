//! Measures the latency of 100 busy connections beside up to 50,000 mostly idle ones, and the
//! memory per idle connection, for Upshift with both I/O drivers, for tokio, and for threads.

use std::time::Duration;

use upshift_load::machine::allow_open_files;
use upshift_report::Table;

use super::Selection;
use super::limits::thread_shortage;
use super::load::Load;
use crate::goal::{Goal, at_most};
use crate::options::Options;
use crate::peers::{Programs, READINESS, THREADS, TOKIO, UPSHIFT};
use crate::results::{Run, SectionResults};
use crate::rounds;
use crate::table::format_value;

/// Numbers of idle connections. The server with threads has three threads per connection and
/// reaches `vm.max_map_count` before 5,500 connections; 18,000 connections stay below 20,000 open
/// files, a common hard limit.
pub(super) const IDLE: [usize; 5] = [0, 5_000, 18_000, 20_000, 50_000];
/// Number of connections that send a request every [`PERIOD`].
const BUSY: usize = 100;
/// Time between the requests of a busy connection.
const PERIOD: Duration = Duration::from_millis(10);
/// Order of the matrices.
const ORDER: usize = 8;
/// Maximum number of a process's open files besides its connections.
const OTHER_FILES: usize = 1_000;

pub(super) const SERVERS: [&str; 4] = [UPSHIFT, READINESS, TOKIO, THREADS];

fn name(idle: usize) -> String {
    if idle.is_multiple_of(1000) && idle > 0 {
        format!("idle-{}k", idle / 1000)
    } else {
        format!("idle-{idle}")
    }
}

pub(super) fn case(idle: usize) -> String {
    format!("{BUSY} busy connections, {idle} mostly idle")
}

pub(super) fn row_names() -> Vec<String> {
    IDLE.map(name).into()
}

pub(super) fn run(
    results: &mut SectionResults,
    options: &Options,
    servers: &Programs,
    selection: &Selection<'_>,
) {
    for idle in IDLE.into_iter().filter(|&idle| selection.has(&name(idle))) {
        if options.quick && idle > 5_000 && options.rows.is_empty() {
            continue;
        }
        let case = case(idle);
        if let Err(reason) = allow_open_files((BUSY + idle + OTHER_FILES) as u64) {
            results.note(format!("{case}: {reason}"));
            continue;
        }
        let load = Load {
            idle,
            ..Load::new(ORDER, BUSY, PERIOD, options)
        };
        let shortage = thread_shortage(3 * (BUSY + idle));
        if let Some(reason) = &shortage {
            results.note(format!("{case}, {THREADS}: {reason}"));
        }
        let entries = rounds::entries(servers, |name| {
            let is_run = SERVERS.contains(&name) && (name != THREADS || shortage.is_none());
            is_run.then(|| load.clone())
        });
        rounds::run(results, &case, &entries, options);
    }
}

pub(super) fn table(section: &SectionResults) -> String {
    let title = "### 100 busy connections beside mostly idle ones\n\nn = 8. A busy connection sends every 10 ms, an idle one every 60 s. \
         Latency of the busy ones in µs; memory per connection in bytes, the server's resident memory and the kernel's \
         (slabs, stacks, page tables, socket buffers) for both ends of the connection.";
    let heads = [
        "idle",
        "<server",
        "mean",
        "p50",
        "p99",
        "p99.9",
        "jitter",
        "resident B",
        "kernel B",
        "runs",
    ];
    let figures: [fn(&Run) -> f64; 7] = [
        |run| run.mean,
        Run::p50,
        Run::p99,
        Run::p999,
        |run| run.jitter,
        |run| run.resident,
        |run| run.kernel,
    ];
    let mut table = Table::new(title, &heads);
    for idle in IDLE {
        for cell in section.cells_of_case(&case(idle), |_| true) {
            let format =
                |figure: fn(&Run) -> f64| format_value(cell.median(figure).filter(|v| *v > 0.0), 0);
            let first = [idle.to_string(), cell.peer.clone()];
            let last = [cell.runs.len().to_string()];
            table.row(first.into_iter().chain(figures.map(format)).chain(last));
        }
    }
    if table.rows.is_empty() {
        return String::new();
    }
    table.markdown()
}

/// Returns the median of a quantity, for a server beside a number of idle connections.
pub(super) fn median(
    section: &SectionResults,
    idle: usize,
    peer: &str,
    quantity: fn(&Run) -> f64,
) -> Option<f64> {
    section
        .median(&case(idle), peer, quantity)
        .filter(|v| *v > 0.0)
}

/// Returns the largest number of idle connections beside which a server was measured.
pub(super) fn largest_measured(section: &SectionResults, peer: &str) -> Option<usize> {
    let mut measured = IDLE.into_iter().rev();
    measured.find(|&idle| idle > 0 && section.cell(&case(idle), peer).is_some())
}

/// Returns the goals, each for the largest number of idle connections that was measured.
pub(super) fn goals(section: &SectionResults) -> Vec<Goal> {
    let goals = |peer: &str| {
        let max_idle = largest_measured(section, peer).unwrap_or_default();
        let p99 = |idle| section.values(&case(idle), peer, Run::p99);
        let memory =
            |peer: &str| section.values(&case(max_idle), peer, |run| run.resident + run.kernel);
        let is_measured = max_idle > 0;
        let load = || format!("{max_idle} idle");
        [
            at_most(
                format!("most idle connections, {peer}: p99 of the busy ≤ 1.5 × without"),
                1.5,
                "µs",
            )
            .cell(load(), p99(max_idle).filter(|_| is_measured), p99(0)),
            at_most(
                format!("most idle connections, {peer}: memory of one ≤ tokio"),
                1.0,
                "B",
            )
            .cell(load(), memory(peer).filter(|_| is_measured), memory(TOKIO)),
        ]
    };
    [UPSHIFT, READINESS].into_iter().flat_map(goals).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::goal::Verdict;

    /// Returns results in which all servers are equal, except that threads have no results beyond
    /// 5,000 idle connections and need three times the memory.
    pub(in crate::sections::papers) fn measured(p99_beside_idle: f64) -> SectionResults {
        let mut section = SectionResults::default();
        for idle in IDLE {
            for peer in SERVERS {
                if peer == THREADS && idle > 5_000 {
                    continue;
                }
                let size = if peer == THREADS { 3.0 } else { 1.0 };
                let run = Run {
                    p50: 50.0,
                    p99: if idle == 0 { 100.0 } else { p99_beside_idle },
                    resident: if idle == 0 { 0.0 } else { 1_000.0 * size },
                    kernel: if idle == 0 { 0.0 } else { 4_000.0 * size },
                    ..Run::default()
                };
                section.record(&case(idle), peer, run);
            }
        }
        section
    }

    #[test]
    fn goals_compare_many_idle_connections_with_none() {
        assert_eq!(row_names()[..2], ["idle-0", "idle-5k"]);
        let section = measured(120.0);
        assert!(
            goals(&section)
                .iter()
                .all(|goal| goal.verdict() == Verdict::Reached)
        );
        let table = table(&section);
        assert!(table.contains("| 50000 | tokio-ct |"), "{table}");
        assert!(!table.contains("| 50000 | threads |"), "{table}");
        let missed = goals(&measured(200.0)).into_iter();
        assert_eq!(
            missed
                .filter(|goal| goal.verdict() == Verdict::Missed)
                .count(),
            2
        );
    }
}
