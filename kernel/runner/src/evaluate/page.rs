//! Writes the page about the evaluation: tables of all points, the goals and their results, and the
//! published figures beside the measured figures.

use std::fmt::Write as _;

use upshift_report::Table;

use super::plan;
use super::point::{Load, MODELS, Point};
use super::published;

const INTRODUCTION: &str = "# The papers' server in the kernel

The matrix server of the SharedScheduler papers (cited in [the kernel](kernel.md)) in four models;
[the papers' figures](papers.md) are beside these. `cargo xtask os -- evaluate` measures all that
is on this page and draws it. KC: a call that blocks is a coroutine of the kernel. KT: it is a
kernel thread with a stack of 16 KiB (feature `kernel-threads`). UC: the server has three coroutines
per connection (receive, compute, send). UT: three threads. The clients are coroutines of one
process, connected over the loopback; the figures include their instructions and those of the
network.

Time counts instructions (QEMU 7.2, `-icount`): every figure repeats exactly. QEMU runs several
harts in turn, 10,000 instructions each: latencies on several harts are meaningful only if they are
longer than the turns. A hart whose turn ends inside a lock makes the others spin through theirs, so
instruction counts on several harts depend on the length of turns, too.

";

/// Orders of the matrices that have a table on the page.
const SHOWN: [u32; 2] = [1, 20];
/// Numbers of connections that have a row in such a table.
const SHOWN_CONNECTIONS: [u32; 4] = [1, 16, 64, 128];

struct Points<'a>(&'a [Point]);

impl Points<'_> {
    fn find(&self, model: usize, is_wanted: impl Fn(&Load) -> bool) -> Option<&Point> {
        let mut points = self.0.iter();
        points.find(|point| point.load.model == model && is_wanted(&point.load))
    }

    /// Returns the distinct values of a field of the wanted loads, ascending.
    fn values<T: Ord>(
        &self,
        is_wanted: impl Fn(&Load) -> bool,
        field: impl Fn(&Load) -> T,
    ) -> Vec<T> {
        let loads = self.0.iter().map(|point| &point.load);
        let mut values: Vec<T> = loads.filter(|load| is_wanted(load)).map(field).collect();
        values.sort_unstable();
        values.dedup();
        values
    }
}

/// Table with a column for each model; a cell without a point is `fails`.
struct ByModel(Table);

impl ByModel {
    fn new(title: &str, first: &str) -> ByModel {
        let first = format!("<{first}");
        let heads: Vec<&str> = std::iter::once(first.as_str()).chain(MODELS).collect();
        ByModel(Table::new(title, &heads))
    }

    fn row(&mut self, first: impl ToString, cell: impl Fn(usize) -> Option<String>) {
        let cells = (0..MODELS.len()).map(|model| cell(model).unwrap_or("fails".into()));
        self.0.row(std::iter::once(first.to_string()).chain(cells));
    }
}

/// Returns the sections that count instructions on one hart; the plots are in `folder`, next to the
/// page.
pub(crate) fn page(folder: &str, counted: &[Point], saturated: &[Point], commit: &str) -> String {
    let points = Points(counted);
    let mut page = INTRODUCTION.to_owned();
    let _ = writeln!(
        page,
        "Points of one hart are in [`points.csv`]({folder}/points.csv), measured at commit `{commit}`: an \
         instruction in a nanosecond.\n"
    );
    page += &goals(&points, saturated);
    page += "## Closed loop\n\nEach connection sends its next request on receiving a reply.\n\n";
    page += &closed(&points, folder);
    page += &memory(&points);
    page
}

fn image(folder: &str, name: &str, file: &str) -> String {
    format!("![{name}]({folder}/{file})\n\n")
}

fn is_closed(load: &Load) -> bool {
    load.period == 0 && load.millis != plan::MEMORY_MILLIS
}

/// Returns a table and a plot for each order in [`SHOWN`], on one hart; a row for each number of
/// connections.
fn closed(points: &Points<'_>, folder: &str) -> String {
    let mut page = String::new();
    for n in SHOWN {
        let is_wanted = |load: &Load| is_closed(load) && load.harts == 1 && load.n == n;
        let title = format!("Instructions per request, {n} × {n}, one hart:");
        let mut table = ByModel::new(&title, "connections");
        for row in SHOWN_CONNECTIONS {
            let is_wanted = |load: &Load| is_wanted(load) && load.connections == row;
            table.row(row, |model| {
                Some(points.find(model, is_wanted)?.instructions()?.to_string())
            });
        }
        page += &table.0.markdown();
        page += &image(folder, "closed loop", &format!("closed-{n}.svg"));
    }
    page
}

fn pages(points: &Points<'_>, model: usize, connections: u32) -> Option<u64> {
    let is_wanted =
        |load: &Load| load.millis == plan::MEMORY_MILLIS && load.connections == connections;
    Some(points.find(model, is_wanted)?.figures.first()?.pages)
}

/// Returns the memory of a connection in bytes: the difference between many and few connections,
/// divided by the difference of their numbers.
fn bytes_of_connection(points: &Points<'_>, model: usize) -> Option<u64> {
    let [more, less] = [plan::MANY_CONNECTIONS, plan::FEW_CONNECTIONS];
    let added = pages(points, model, more)?.checked_sub(pages(points, model, less)?)?;
    Some(added * 4096 / u64::from(more - less))
}

fn memory(points: &Points<'_>) -> String {
    let (coroutines, threads) = published::MAX_CONNECTIONS;
    let title = format!(
        "## Memory\n\nMemory of a connection: both ends, buffers, coroutines or threads (with stacks of 16 KiB in user and kernel mode, as published), client included, computed from the growth between {} and {} \
         connections. Published for 26 MiB of frames: KCUC {coroutines}, KTUT {threads} connections.",
        plan::FEW_CONNECTIONS,
        plan::MANY_CONNECTIONS,
    );
    let mut table = ByModel::new(&title, "");
    let bytes = |model| bytes_of_connection(points, model);
    table.row("bytes", |model| Some(bytes(model)?.to_string()));
    for count in plan::MOST_CONNECTIONS {
        table.row(format!("MiB of {count} connections, measured"), |model| {
            Some(format!(
                "{:.1}",
                pages(points, model, count)? as f64 / 256.0
            ))
        });
    }
    table.0.markdown()
}

/// Returns the table of the goals with their results.
fn goals(points: &Points<'_>, saturated: &[Point]) -> String {
    let has_one_hart = |load: &Load| is_closed(load) && load.harts == 1;
    let shapes = points.values(has_one_hart, |load| (load.n, load.connections));
    let (mut losing, mut ratios) = (Vec::new(), Vec::new());
    for &(n, connections) in &shapes {
        let is_wanted =
            |load: &Load| has_one_hart(load) && (load.n, load.connections) == (n, connections);
        let cost = |model| points.find(model, is_wanted)?.instructions();
        let Some(ours) = cost(0) else { continue };
        let better = (1..MODELS.len()).filter(|&model| cost(model).is_some_and(|cost| cost < ours));
        let better: Vec<&str> = better.map(|model| MODELS[model]).collect();
        if !better.is_empty() {
            let names = better.join(", ");
            losing.push(format!("{names} at {n} × {n} (connections: {connections})"));
        }
        let threads = cost(3).filter(|_| connections >= 16);
        ratios.extend(threads.map(|threads| threads as f64 / ours as f64));
    }
    let all = shapes.len();
    let loses = if losing.is_empty() {
        String::new()
    } else {
        format!("; needs more than {}", losing.join("; "))
    };
    let mut table = Table::new("## The goals", &["<goal", "<result"]);
    let mut goal = |name: &str, outcome: String| table.row([name.to_owned(), outcome]);
    goal(
        "KCUC needs no more instructions per request than any other model",
        format!("at {} of {all} points{loses}", all - losing.len()),
    );
    ratios.sort_by(f64::total_cmp);
    if let [worst, .., best] = ratios[..] {
        goal(
            "KCUC serves at least twice as many requests as KTUT, from 16 connections on",
            format!(
                "{worst:.2} × to {best:.2} × (closed loop, one hart); [the shares](#where-the-instructions-go) say what the maximum is"
            ),
        );
    }
    let connections = published::MAX_CONNECTIONS.1;
    let pages = [0, 3].map(|model| pages(points, model, connections));
    if let [Some(ours), Some(threads)] = pages {
        goal(
            "three times the connections of KTUT in the same memory",
            format!(
                "{:.1} × the memory for {connections} connections, measured",
                threads as f64 / ours.max(1) as f64
            ),
        );
    }
    let top = |&harts: &u32| {
        let load = plan::LEVELS_8.load(0, harts);
        let point = saturated.iter().find(|point| point.load == load)?;
        let top = point.figures.get(1)?;
        Some(format!("{} µs with {harts}", top.mean))
    };
    let tops = plan::LEVELS_8.harts.iter().filter_map(top);
    goal(
        "the mean latency of the most urgent of 8 levels is no longer with 4 harts than with 1",
        Vec::from_iter(tops).join(", "),
    );
    table.markdown()
}
