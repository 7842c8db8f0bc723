//! Compares coroutines with threads by number of connections, each of which sends at fixed times.

use std::time::Duration;

use upshift_report::Table;

use super::Selection;
use super::limits::thread_shortage;
use super::load::Load;
use crate::goal::{Goal, at_least};
use crate::options::Options;
use crate::peers::{Programs, THREADS, UPSHIFT};
use crate::results::{Cell, Run, SectionResults};
use crate::rounds;
use crate::table::format_value;

/// Orders of the matrices.
pub(super) const ORDERS: [usize; 4] = [8, 12, 15, 20];
/// Times between the requests of a connection, in ms.
const PERIODS: [usize; 2] = [100, 50];

/// Published numbers of connections.
pub(super) const PUBLISHED: [usize; 6] = [1, 8, 16, 32, 64, 128];
/// Total requests per second that determine the numbers of connections beyond the published ones.
/// The largest exceeds what one CPU can answer.
const BEYOND_PER_SECOND: [usize; 4] = [10_240, 40_960, 81_920, 163_840];

/// Number of threads per connection in the server `threads`.
const THREADS_PER_CONNECTION: usize = 3;

/// A curve: the order of the matrices, and the time between the requests of a connection in ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Curve {
    pub(super) n: usize,
    pub(super) period: usize,
}

/// Curve to which most claims refer.
pub(super) const CURVE: Curve = Curve { n: 20, period: 100 };
/// Curve of the second paper's data, which contains the *knee*: the number of connections beyond
/// which a server no longer answers nearly all requests (see [`knee`]).
pub(super) const SMALL: Curve = Curve { n: 15, period: 100 };

impl Curve {
    fn all() -> impl Iterator<Item = Curve> {
        let with_period = |period| ORDERS.into_iter().map(move |n| Curve { n, period });
        PERIODS.into_iter().flat_map(with_period)
    }

    fn name(self) -> String {
        format!("n{}-{}", self.n, self.period)
    }

    pub(super) fn connections(self) -> impl Iterator<Item = usize> {
        let beyond = BEYOND_PER_SECOND.map(|per_second| per_second * self.period / 1000);
        PUBLISHED.into_iter().chain(beyond)
    }

    /// Whether a run of all rows measures a number of connections. For the curves of the claims,
    /// all numbers are measured. For the other curves, only the first and the last published number
    /// are measured, and the numbers beyond.
    fn is_measured(self, connections: usize) -> bool {
        let inner = PUBLISHED[1]..PUBLISHED[PUBLISHED.len() - 1];
        [CURVE, SMALL].contains(&self) || !inner.contains(&connections)
    }

    pub(super) fn case(self, connections: usize) -> String {
        let Curve { n, period } = self;
        let s = if connections == 1 { "" } else { "s" };
        format!("n = {n}, every {period} ms, {connections} connection{s}")
    }

    /// Returns the requests per second that a number of connections sends.
    pub(super) fn offered(self, connections: usize) -> f64 {
        connections as f64 * 1e3 / self.period as f64
    }
}

pub(super) fn row_names() -> Vec<String> {
    Curve::all().map(Curve::name).collect()
}

pub(super) fn run(
    results: &mut SectionResults,
    options: &Options,
    servers: &Programs,
    selection: &Selection<'_>,
) {
    let is_ours = |name: &str| [UPSHIFT, THREADS].contains(&name);
    for curve in Curve::all().filter(|curve| selection.has(&curve.name())) {
        if options.quick && options.rows.is_empty() && curve.n != 8 {
            continue;
        }
        for connections in curve.connections() {
            let is_quick = options.quick && ![8, 128, 1024].contains(&connections);
            if is_quick || !(selection.is_partial() || curve.is_measured(connections)) {
                continue;
            }
            let case = curve.case(connections);
            let period = Duration::from_millis(curve.period as u64);
            let load = Load::new(curve.n, connections, period, options);
            let shortage = thread_shortage(connections * THREADS_PER_CONNECTION);
            if let Some(why) = &shortage {
                results.note(format!("{case}, {THREADS}: {why}"));
            }
            let entries = rounds::entries(servers, |name| {
                let is_run = is_ours(name) && (name != THREADS || shortage.is_none());
                is_run.then(|| load.clone())
            });
            rounds::run(results, &case, &entries, options);
        }
    }
}

pub(super) fn tables(section: &SectionResults) -> String {
    Curve::all().map(|curve| table(section, curve)).collect()
}

fn table(section: &SectionResults, curve: Curve) -> String {
    let Curve { n, period } = curve;
    let title = format!(
        "### n = {n}, each connection every {period} ms\n\nOne CPU. Requests answered per second of those sent; \
         latency in µs: mean, 99 %, standard deviation (the papers' jitter) of the answered ones. `×`: threads to coroutines."
    );
    let heads = [
        "connections",
        "sent /s",
        "coroutines /s",
        "mean",
        "p99",
        "jitter",
        "threads /s",
        "mean",
        "p99",
        "jitter",
        "× /s",
        "× mean",
    ];
    let mut table = Table::new(title, &heads);
    for connections in curve.connections() {
        let case = curve.case(connections);
        let [coroutines, threads] = [UPSHIFT, THREADS].map(|peer| section.cell(&case, peer));
        if coroutines.is_none() && threads.is_none() {
            continue;
        }
        let cells = |cell: Option<&Cell>| {
            let figures: [fn(&Run) -> f64; 4] = [
                |run| run.per_second,
                |run| run.mean,
                Run::p99,
                |run| run.jitter,
            ];
            figures.map(|figure| format_value(cell.and_then(|cell| cell.median(figure)), 0))
        };
        let times = |figure: fn(&Run) -> f64| {
            let ratio = section.ratio(&case, THREADS, UPSHIFT, figure);
            format_value(ratio.map(|ratio| ratio.value), 2)
        };
        let load_cells = [
            connections.to_string(),
            format!("{:.0}", curve.offered(connections)),
        ];
        let ratios = [times(|run| run.per_second), times(|run| run.mean)];
        table.row(
            load_cells
                .into_iter()
                .chain(cells(coroutines))
                .chain(cells(threads))
                .chain(ratios),
        );
    }
    if table.rows.is_empty() {
        return String::new();
    }
    table.markdown()
}

/// Returns the largest number of connections up to which a server answers 95 % of the requests, and
/// the next measured number, if there is one.
pub(super) fn knee(section: &SectionResults, curve: Curve, peer: &str) -> [Option<usize>; 2] {
    let mut last = None;
    for connections in curve.connections() {
        let rate = section.median(&curve.case(connections), peer, |run| run.per_second);
        let Some(rate) = rate else { continue };
        if rate < 0.95 * curve.offered(connections) {
            return [last, Some(connections)];
        }
        last = Some(connections);
    }
    [last, None]
}

/// Returns the goals: coroutines answer as much as threads.
pub(super) fn goals(section: &SectionResults) -> Vec<Goal> {
    let goal = |curve: Curve| {
        let Curve { n, period } = curve;
        let title = format!("n = {n}, every {period} ms: rate ≥ 0.99 × threads at any connections");
        let goal = at_least(title, 0.99, "/s").margin();
        curve.connections().fold(goal, |goal, connections| {
            let case = curve.case(connections);
            let [coroutines, threads] =
                [UPSHIFT, THREADS].map(|peer| section.values(&case, peer, |run| run.per_second));
            goal.cell(format!("{connections}"), coroutines, threads)
        })
    };
    Curve::all().map(goal).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::goal::Verdict;

    /// Returns results in which each server answers all requests up to its rate and only this rate
    /// beyond. The mean latency of threads is `mean` times the mean latency of coroutines.
    pub(in crate::sections::papers) fn measured(
        coroutines: f64,
        threads: f64,
        mean: f64,
    ) -> SectionResults {
        let mut section = SectionResults::default();
        for curve in Curve::all() {
            for connections in curve.connections() {
                for (peer, max_rate, mean) in [
                    (UPSHIFT, coroutines, 100.0),
                    (THREADS, threads, 100.0 * mean),
                ] {
                    let run = Run {
                        per_second: curve.offered(connections).min(max_rate),
                        mean,
                        ..Run::default()
                    };
                    section.record(&curve.case(connections), peer, run);
                }
            }
        }
        section
    }

    #[test]
    fn a_curve_goes_through_the_published_numbers_and_beyond() {
        let curve = Curve { n: 8, period: 50 };
        let connections: Vec<usize> = curve.connections().collect();
        assert_eq!(connections[..6], PUBLISHED);
        assert_eq!(connections[6..], [512, 2048, 4096, 8192]);
        assert!(connections.is_sorted());
        assert_eq!(curve.offered(512), 10_240.0);
    }

    #[test]
    fn a_knee_lies_between_two_points_and_goals_compare_the_rates() {
        let section = measured(200e3, 30e3, 1.2);
        let curve = Curve { n: 8, period: 100 };
        assert_eq!(knee(&section, curve, THREADS), [Some(1024), Some(4096)]);
        assert_eq!(knee(&section, curve, UPSHIFT), [Some(16384), None]);
        assert!(
            goals(&section)
                .iter()
                .all(|goal| goal.verdict() == Verdict::Reached)
        );
        let table = tables(&section);
        assert!(table.contains("| 16384 | 163840 |"), "{table}");
        let slow = measured(20e3, 30e3, 1.2);
        assert!(
            goals(&slow)
                .iter()
                .all(|goal| goal.verdict() == Verdict::Missed)
        );
    }
}
