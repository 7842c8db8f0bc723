//! Holds the results and answers queries on them. `storage` saves and loads them.

mod storage;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, Serializer};
use upshift_load::Spread;

use crate::goal::Values;
use crate::interval::Ratio;
use crate::peers::Program;

#[derive(Debug, Default)]
pub(crate) struct Results {
    pub(crate) sections: BTreeMap<String, SectionResults>,
}

/// Results of one section, with the information needed to repeat it.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct SectionResults {
    /// Measured commit, with the suffix `-dirty` if uncommitted changes were measured, too.
    pub(crate) commit: String,
    /// Date and time of the end, UTC.
    pub(crate) when: String,
    /// Kernel, processor, memory, compiler, and the network of the section.
    pub(crate) machine: Vec<String>,
    /// Versions of the measured programs.
    pub(crate) versions: Vec<String>,
    /// Command line of the driver, and those of the servers.
    pub(crate) commands: Vec<String>,
    pub(crate) cells: Vec<Cell>,
    /// Figures of the microbenchmarks.
    pub(crate) figures: Vec<Figure>,
    /// Peers not built, servers whose bytes differed, disturbed runs that count.
    pub(crate) notes: Vec<String>,
    #[serde(default)]
    pub(crate) rounds: usize,
    /// Time that the section took, in seconds.
    #[serde(default)]
    pub(crate) seconds: u64,
    #[serde(default)]
    pub(crate) runs: usize,
    #[serde(default)]
    pub(crate) repeated: usize,
    #[serde(default)]
    pub(crate) disturbed: usize,
    /// Peers of the section without figures: not selected, not built, or with wrong replies.
    #[serde(default)]
    pub(crate) missing: Vec<String>,
    /// Set if all rows and all peers that could be built were measured, in at least the smallest
    /// number of rounds that a section needs.
    #[serde(default)]
    pub(crate) is_whole: bool,
}

/// Share of disturbed runs above which a section counts as disturbed.
const MAX_DISTURBED_SHARE: f64 = 0.1;
/// Smallest share of a CPU whose use by other programs disturbs a run.
const MIN_FOREIGN_SHARE: f64 = 0.10;
/// Share of a CPU above which the hypervisor disturbs a run.
const MAX_STEAL_SHARE: f64 = 0.01;
/// Largest lateness of an open-loop client (99 %) that never disturbs a run, in µs.
pub(crate) const MAX_LATENESS_US: f64 = 100.0;
/// Largest permitted lateness of an open-loop client (99 %), as a share of the run's 99 % latency.
const MAX_LATENESS_SHARE: f64 = 0.1;

/// All runs of one server under one load.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Cell {
    /// The load, such as `64 connections`.
    pub(crate) case: String,
    pub(crate) peer: String,
    /// Runs that count, in the order of the rounds.
    pub(crate) runs: Vec<Run>,
}

/// One run. Times in µs; shares of a CPU from 0 to 1.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Run {
    /// Number of the round, from 0, if runs of one round are compared.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) round: usize,
    #[serde(serialize_with = "short")]
    pub(crate) per_second: f64,
    /// Mean latency of the replies; 0 if not recorded.
    #[serde(default, serialize_with = "short", skip_serializing_if = "is_zero")]
    pub(crate) mean: f64,
    #[serde(default, serialize_with = "short", skip_serializing_if = "is_zero")]
    pub(crate) jitter: f64,
    #[serde(serialize_with = "short")]
    pub(crate) p50: f64,
    #[serde(default, serialize_with = "short", skip_serializing_if = "is_zero")]
    pub(crate) p95: f64,
    #[serde(serialize_with = "short")]
    pub(crate) p99: f64,
    #[serde(serialize_with = "short")]
    pub(crate) p999: f64,
    /// Median of the 99 % latencies of intervals of 0.1 s, where measured. Occasional stalls of the
    /// whole machine do not determine it.
    #[serde(default, serialize_with = "short", skip_serializing_if = "is_zero")]
    pub(crate) p99_of_pieces: f64,
    /// CPU time of the server in user mode per reply.
    #[serde(serialize_with = "short")]
    pub(crate) user: f64,
    /// CPU time of the server in the kernel per reply.
    #[serde(serialize_with = "short")]
    pub(crate) sys: f64,
    /// Failed connections and wrong replies.
    pub(crate) errors: u64,
    pub(crate) first_error: Option<String>,
    /// Requests without a reply at the end, and the age of the oldest in µs.
    pub(crate) unanswered: (u64, f64),
    /// Replies in the measured time; 0 if not recorded.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) replies: u64,
    /// Open loop: lateness of requests whose connection was free, 99 %; large if the client was at
    /// its limit.
    #[serde(serialize_with = "short")]
    pub(crate) send_lag: f64,
    /// CPU time of the server per second, in CPUs.
    #[serde(serialize_with = "short")]
    pub(crate) server_busy: f64,
    /// CPU time of the client per second, in CPUs.
    #[serde(serialize_with = "short")]
    pub(crate) client_busy: f64,
    /// CPU time of other programs per second, in CPUs: the larger of the values of the two CPUs, or
    /// their mean if the run is not pinned.
    #[serde(serialize_with = "short")]
    pub(crate) foreign: f64,
    /// Share of time that the hypervisor took from one of the two CPUs, the larger of the two.
    #[serde(default, serialize_with = "short", skip_serializing_if = "is_zero")]
    pub(crate) steal: f64,
    /// Growth of the server's resident memory per connection, in bytes, where measured.
    #[serde(default, serialize_with = "short", skip_serializing_if = "is_zero")]
    pub(crate) resident: f64,
    /// Growth of the kernel's memory per connection, both ends, in bytes.
    #[serde(default, serialize_with = "short", skip_serializing_if = "is_zero")]
    pub(crate) kernel: f64,
}

fn is_zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Serializes a value with five digits, which is more than the precision of any figure.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn short<S: Serializer>(value: &f64, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(format!("{value:.4e}").parse().unwrap_or(*value))
}

impl Run {
    pub(crate) fn cpu(&self) -> f64 {
        self.user + self.sys
    }

    /// Returns the reason why the run is disturbed, if it is.
    ///
    /// Without a client of the driver (in `files`, and under `ab`), the CPU time of other programs
    /// is not judged. In `files`, most of this time is that of kernel threads that work for the
    /// measured program.
    pub(crate) fn disturbance(&self) -> Option<String> {
        let lateness = self.send_lag;
        if lateness > MAX_LATENESS_US.max(MAX_LATENESS_SHARE * self.p99) {
            return Some(format!("the client was late by {lateness:.0} µs (99 %)"));
        }
        let foreign = if self.client_busy > 0.0 {
            self.foreign
        } else {
            0.0
        };
        disturbance_by_others(foreign, self.steal)
    }

    /// Returns the median, with unanswered requests included.
    pub(crate) fn p50(&self) -> f64 {
        self.with_unanswered(self.p50, 0.5)
    }

    /// Returns the 95th percentile, with unanswered requests included.
    pub(crate) fn p95(&self) -> f64 {
        self.with_unanswered(self.p95, 0.95)
    }

    /// Returns the 99th percentile, with unanswered requests included.
    pub(crate) fn p99(&self) -> f64 {
        self.with_unanswered(self.p99, 0.99)
    }

    /// Returns the 99.9th percentile, with unanswered requests included.
    pub(crate) fn p999(&self) -> f64 {
        self.with_unanswered(self.p999, 0.999)
    }

    /// Returns a percentile that includes the unanswered requests. Each of these counts as being as
    /// old as the oldest. They have no effect if they are too few to reach the percentile. A run
    /// whose replies were not counted is taken to be one second long.
    fn with_unanswered(&self, percentile: f64, quantile: f64) -> f64 {
        let replies = match self.replies {
            0 => self.per_second.max(0.0),
            replies => replies as f64,
        };
        let missing = self.unanswered.0 as f64;
        if missing > 0.0 && missing >= (1.0 - quantile) * (replies + missing) {
            percentile.max(self.unanswered.1)
        } else {
            percentile
        }
    }
}

/// Returns the disturbance by other programs and by the hypervisor, given their shares of a CPU.
pub(crate) fn disturbance_by_others(foreign: f64, steal: f64) -> Option<String> {
    if steal > MAX_STEAL_SHARE {
        Some(format!("the hypervisor took {:.1} %", 100.0 * steal))
    } else if foreign >= MIN_FOREIGN_SHARE {
        Some(format!("others used {:.0} % of a CPU", 100.0 * foreign))
    } else {
        None
    }
}

/// A figure of a microbenchmark: ns per operation, or bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Figure {
    pub(crate) bench: String,
    pub(crate) peer: String,
    pub(crate) ns: f64,
    /// Smallest sample; with several rounds the smallest of them.
    pub(crate) min: f64,
    /// Largest sample; with several rounds the largest of them.
    pub(crate) max: f64,
    /// Value of each round.
    #[serde(default)]
    pub(crate) rounds: Vec<f64>,
}

impl Cell {
    /// Returns the spread of a quantity over the runs; `None` without runs.
    pub(crate) fn spread(&self, quantity: impl Fn(&Run) -> f64) -> Option<Spread> {
        Spread::of(self.runs.iter().map(quantity))
    }

    /// Returns the mean of a quantity. The mean suits the split of CPU time into user and kernel
    /// time, because the kernel samples that split: a single run has too few samples, but all runs
    /// together have enough.
    pub(crate) fn mean(&self, quantity: impl Fn(&Run) -> f64) -> Option<f64> {
        let count = self.runs.len() as f64;
        (count > 0.0).then(|| self.runs.iter().map(quantity).sum::<f64>() / count)
    }

    pub(crate) fn median(&self, quantity: impl Fn(&Run) -> f64) -> Option<f64> {
        Some(self.spread(quantity)?.median)
    }

    /// Returns the values of a quantity in the undisturbed runs, by round; `None` if these are
    /// fewer than half of the runs.
    pub(crate) fn values(&self, quantity: impl Fn(&Run) -> f64) -> Option<Values> {
        let mut runs: Vec<&Run> = self.runs.iter().collect();
        runs.retain(|run| run.disturbance().is_none());
        if 2 * runs.len() < self.runs.len() {
            return None;
        }
        Values::new(
            &self.peer,
            runs.iter().map(|run| (run.round, quantity(run))),
        )
    }
}

impl SectionResults {
    /// Returns the cell of a server under a load.
    pub(crate) fn cell(&self, case: &str, peer: &str) -> Option<&Cell> {
        self.cells.iter().find(|c| c.case == case && c.peer == peer)
    }

    pub(crate) fn median(
        &self,
        case: &str,
        peer: &str,
        quantity: impl Fn(&Run) -> f64,
    ) -> Option<f64> {
        self.cell(case, peer)?.median(quantity)
    }

    /// Returns the [values](Cell::values) of a quantity in a cell.
    pub(crate) fn values(
        &self,
        case: &str,
        peer: &str,
        quantity: impl Fn(&Run) -> f64,
    ) -> Option<Values> {
        self.cell(case, peer)?.values(quantity)
    }

    /// Returns the values of a runtime's figure, by round.
    pub(crate) fn figure_values(&self, bench: &str, peer: &str) -> Option<Values> {
        let figure = self.figure(bench, peer)?;
        let rounds = match figure.rounds.as_slice() {
            [] => std::slice::from_ref(&figure.ns),
            rounds => rounds,
        };
        Values::new(peer, rounds.iter().copied().enumerate())
    }

    /// Returns the number of disturbed runs and the number of runs. Runs that are saved are judged
    /// anew, by the present limits.
    pub(crate) fn disturbed_runs(&self) -> (usize, usize) {
        let saved: Vec<&Run> = self.cells.iter().flat_map(|cell| &cell.runs).collect();
        if saved.is_empty() {
            return (self.disturbed, self.runs);
        }
        let disturbed = saved.iter().filter(|run| run.disturbance().is_some());
        (disturbed.count(), saved.len())
    }

    /// Whether so many runs were disturbed that the title of the section says so.
    pub(crate) fn is_disturbed(&self) -> bool {
        let (disturbed, runs) = self.disturbed_runs();
        disturbed as f64 > MAX_DISTURBED_SHARE * runs as f64
    }

    /// Compares a quantity in two cells of one load. Returns the ratio, from the rounds that both
    /// cells have.
    pub(crate) fn ratio(
        &self,
        case: &str,
        own: &str,
        base: &str,
        quantity: impl Fn(&Run) -> f64,
    ) -> Option<Ratio> {
        let (own, base) = (
            self.values(case, own, &quantity)?,
            self.values(case, base, &quantity)?,
        );
        Ratio::of(&base.pairs(&own))
    }

    /// Returns the cells of a load whose server satisfies `wanted`.
    pub(crate) fn cells_of_case<'a>(
        &'a self,
        case: &str,
        wanted: impl Fn(&str) -> bool,
    ) -> impl Iterator<Item = &'a Cell> {
        let cells = self.cells.iter();
        cells.filter(move |cell| cell.case == case && wanted(&cell.peer))
    }

    /// Returns the wanted server with the smallest median of a quantity under a load, and this
    /// median.
    pub(crate) fn lowest_median(
        &self,
        case: &str,
        wanted: impl Fn(&str) -> bool,
        quantity: impl Fn(&Run) -> f64,
    ) -> Option<(&str, f64)> {
        let cells = self.cells_of_case(case, wanted);
        let medians = cells.filter_map(|cell| Some((cell.peer.as_str(), cell.median(&quantity)?)));
        medians.min_by(|a, b| a.1.total_cmp(&b.1))
    }

    pub(crate) fn figure(&self, bench: &str, peer: &str) -> Option<&Figure> {
        let mut figures = self.figures.iter();
        figures.find(|figure| figure.bench == bench && figure.peer == peer)
    }

    pub(crate) fn add_figure(&mut self, figure: Figure) {
        let mut existing = self.figures.iter_mut();
        let is_same = |it: &&mut Figure| (&it.bench, &it.peer) == (&figure.bench, &figure.peer);
        let Some(own) = existing.find(is_same) else {
            let rounds = vec![figure.ns];
            self.figures.push(Figure { rounds, ..figure });
            return;
        };
        own.rounds.push(figure.ns);
        if let Some(spread) = Spread::of(own.rounds.iter().copied()) {
            (own.ns, own.min, own.max) = (spread.median, spread.min, spread.max);
        }
    }

    pub(crate) fn record(&mut self, case: &str, peer: &str, run: Run) {
        let existing = self.cells.iter_mut();
        match existing
            .into_iter()
            .find(|c| c.case == case && c.peer == peer)
        {
            Some(cell) => cell.runs.push(run),
            None => self.cells.push(Cell {
                case: case.to_owned(),
                peer: peer.to_owned(),
                runs: vec![run],
            }),
        }
    }

    /// Prints an omission or a disturbance, and records it once.
    pub(crate) fn note(&mut self, text: String) {
        eprintln!("  {text}");
        push_once(&mut self.notes, text);
    }

    /// Records the command line of a program.
    pub(crate) fn note_command(&mut self, name: &str, program: &Program) {
        let file = program.file.file_name().unwrap_or_default();
        let words = format!("{} {}", file.display(), program.args.join(" "));
        push_once(&mut self.commands, format!("{name}: `{words}`"));
    }

    /// Returns the loads, in the order measured.
    pub(crate) fn cases(&self) -> Vec<&str> {
        distinct(self.cells.iter().map(|cell| cell.case.as_str()))
    }
}

fn push_once(lines: &mut Vec<String>, line: String) {
    if !lines.contains(&line) {
        lines.push(line);
    }
}

/// Returns the first occurrence of each name, in order.
pub(crate) fn distinct<'a>(all: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for name in all {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unanswered_requests_are_compared_with_the_replies_not_with_their_rate() {
        // 90 of 9,090 requests in ten seconds are less than 1 %, although they exceed 1 % of one
        // second's replies.
        let run = Run {
            per_second: 900.0,
            replies: 9_000,
            p50: 1.0,
            p99: 2.0,
            p999: 3.0,
            unanswered: (90, 5e6),
            ..Run::default()
        };
        assert_eq!(run.with_unanswered(run.p50, 0.5), 1.0);
        assert_eq!(run.with_unanswered(run.p99, 0.99), 2.0);
        assert_eq!(run.with_unanswered(run.p999, 0.999), 5e6);
        // 9 of 459 requests in half a second are more than 1 %.
        let run = Run {
            replies: 450,
            unanswered: (9, 5e6),
            ..run
        };
        assert_eq!(run.with_unanswered(run.p99, 0.99), 5e6);
    }

    #[test]
    fn disturbed_runs_are_no_values_of_a_goal() {
        let run = |round, steal| Run {
            round,
            per_second: round as f64,
            steal,
            ..Run::default()
        };
        let cell = |runs: &[Run]| Cell {
            case: "a".into(),
            peer: "us".into(),
            runs: runs.to_vec(),
        };
        let rate = |cell: &Cell| Some(cell.values(|run| run.per_second)?.median());
        assert_eq!(
            rate(&cell(&[run(1, 0.0), run(9, 0.5), run(3, 0.0)])),
            Some(2.0)
        );
        assert_eq!(rate(&cell(&[run(1, 0.0), run(9, 0.5), run(3, 0.5)])), None);
    }

    #[test]
    fn lateness_is_compared_with_the_latency() {
        let run = |send_lag, p99| Run {
            send_lag,
            p99,
            ..Run::default()
        };
        assert_eq!(run(90.0, 100.0).disturbance(), None);
        assert!(run(110.0, 100.0).disturbance().is_some());
        assert_eq!(run(110.0, 2000.0).disturbance(), None);
        assert!(
            disturbance_by_others(0.0, 0.02).is_some() && disturbance_by_others(0.1, 0.0).is_some()
        );
        assert_eq!(disturbance_by_others(0.05, 0.005), None);
    }

    #[test]
    fn others_disturb_only_a_run_with_a_client() {
        let run = |client_busy| Run {
            foreign: 0.5,
            client_busy,
            ..Run::default()
        };
        assert_eq!(run(0.0).disturbance(), None);
        assert!(run(0.5).disturbance().is_some());
    }
}
