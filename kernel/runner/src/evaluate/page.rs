//! The page: tables of all points, the goals that are reached, and the published figures beside
//! them.

use std::fmt::Write as _;

use upshift_report::Table;

use super::plan;
use super::point::{Figures, Load, MODELS, Point};
use super::published;

const INTRODUCTION: &str = "# The papers' server in the kernel

The matrix server of the SharedScheduler papers in four models. `cargo xtask os -- evaluate` measures them and writes this
page, its plots and the file of points. In KC, a call that blocks is a coroutine of the kernel; in KT, it is a kernel
thread (the feature `kernel-threads`: 16 KiB of stack, a stack switch, the ready queues of each hart). In UC, the server has three
coroutines per connection (receive, compute, send, with a queue between each two); in UT, three threads. In all models the clients are coroutines of one
process, connected over the loopback; the figures include the instructions of the clients and of the network.

Time counts instructions (QEMU 7.2, `-icount shift=0`): a millisecond of a hart is a million instructions, and every figure repeats exactly. QEMU runs several harts
in turn, 10,000 instructions each at most, so on *n* harts a millisecond of the machine takes *n* of QEMU's. A wake from one hart to another waits for a turn: latencies on several harts
are meaningful only if they are longer than the turns. A hart whose turn ends inside a lock makes the others spin through theirs, so instruction counts on several harts depend on the length of turns, too. A process has at most 64 threads, so with threads in user mode there is a server for every
16 connections.

";

const BY_CLOCK: &str = "`cargo xtask os -- evaluate --clock`, commit `{commit}`. QEMU emulates every instruction, on a busy host: \
these figures show that the models work, not which one is faster. The points are in [`points-clock.csv`]({folder}/points-clock.csv).";

const FROM_HOST: &str = "`cargo xtask os -- evaluate --host`, commit `{commit}`. The client of `upshift load matrix` sends requests through ports that QEMU forwards to the \
machine's network card, and measures by the host's clock. QEMU emulates every instruction, on a busy host: these figures show that the models work, not which one is faster. \
Each connection has a forwarded port of its own: QEMU's user networking listens on such a port with a backlog of 1 (`ss -ltn`), so if 64 clients connect to one port at once, the \
host's kernel drops most of the connections (400 in `TcpExtListenOverflows`) and retries after 1, 3, 7 and 15 seconds, which may be after the end of the measurement. The points are in [`points-host.csv`]({folder}/points-host.csv).";

/// Points of one file.
struct Points<'a>(&'a [Point]);

impl Points<'_> {
    fn of(&self, model: usize, wanted: impl Fn(&Load) -> bool) -> Option<&Point> {
        let mut points = self.0.iter();
        points.find(|point| point.load.model == model && wanted(&point.load))
    }

    /// The distinct values of a part of the wanted loads, ascending.
    fn values<T: Ord>(&self, wanted: impl Fn(&Load) -> bool, part: impl Fn(&Load) -> T) -> Vec<T> {
        let loads = self.0.iter().map(|point| &point.load);
        let mut values: Vec<T> = loads.filter(|load| wanted(load)).map(part).collect();
        values.sort_unstable();
        values.dedup();
        values
    }
}

/// A table with a column for each model; a cell without a point is `fails`.
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

/// The whole page but for profiles; points and plots are in `folder` beside it.
pub(crate) fn page(folder: &str, counted: &[Point], commit: &str) -> String {
    let points = Points(counted);
    let mut page = INTRODUCTION.to_owned();
    let _ = writeln!(
        page,
        "The points are in [`points.csv`]({folder}/points.csv), measured at commit `{commit}`.\n"
    );
    page += &goals(&points);
    page += "## Closed loop\n\nEach connection sends its next request on receiving a reply.\n\
             The cost of a request is counted from the first reply of each connection to its last: a fixed period would include replies of one turn too many \
             or too few.\n\n";
    page += &closed(&points, folder);
    page += &open("## Open loop", &points, folder);
    page += &memory(&points);
    page += &priorities("## 8 levels", &points, 8);
    let plots = ["throughput", "latency", "jitter"];
    for (what, model) in plots.iter().flat_map(|it| [(it, "KCUC"), (it, "KTUT")]) {
        let file = format!("levels-{what}-{}.svg", model.to_lowercase());
        page += &image(folder, &format!("{what}, {model}"), &file);
    }
    page += &priorities("## 4 levels", &points, 4);
    page + &published_figures(&points)
}

/// The points measured by the host's clock; `is_outside`: by clients on the host.
pub(crate) fn by_clock(folder: &str, timed: &[Point], commit: &str, is_outside: bool) -> String {
    let points = Points(timed);
    if timed.is_empty() {
        return String::new();
    }
    let (title, text, short) = if is_outside {
        ("Clients on the host", FROM_HOST, "clients on the host")
    } else {
        ("By the host's clock", BY_CLOCK, "by the host's clock")
    };
    let text = text.replace("{commit}", commit).replace("{folder}", folder);
    let mut page = format!(
        "## {title}\n\n{text}\n\n### Closed loop, {short}\n\n\
         Each connection sends its next request on receiving a reply.\n\n"
    );
    page += &closed(&points, folder);
    page += &open(&format!("### Open loop, {short}"), &points, folder);
    page + &priorities(&format!("### 8 levels, {short}"), &points, 8)
}

fn image(folder: &str, name: &str, file: &str) -> String {
    format!("![{name}]({folder}/{file})\n\n")
}

/// Whether the load has the published shape.
fn is_published(load: &Load) -> bool {
    load.n == plan::PUBLISHED_N
}

fn is_closed(load: &Load) -> bool {
    load.period == 0 && load.millis != plan::MEMORY
}

/// A table for each number of harts, period (the longest first) and order, a row for each number
/// of connections; `plots` are shown below the table of the shape that they are drawn of.
fn loops(
    points: &Points<'_>,
    wanted: fn(&Load) -> bool,
    title: impl Fn(&Load) -> String,
    cell: fn(&Point) -> Option<String>,
    plots: impl Fn(&Load) -> String,
) -> String {
    let shape = |load: &Load| (load.harts, std::cmp::Reverse(load.period), load.n);
    let mut page = String::new();
    for of in points.values(wanted, shape) {
        let is_it = |load: &Load| wanted(load) && shape(load) == of;
        let Some(point) = points.0.iter().find(|point| is_it(&point.load)) else {
            continue;
        };
        let mut table = ByModel::new(&title(&point.load), "connections");
        for row in points.values(is_it, |load| load.connections) {
            let is_it = |load: &Load| is_it(load) && load.connections == row;
            table.row(row, |model| cell(points.of(model, is_it)?));
        }
        page += &table.0.markdown();
        if point.load.harts == 1 && !point.load.by_clock {
            page += &plots(&point.load);
        }
    }
    page
}

fn closed(points: &Points<'_>, folder: &str) -> String {
    let title = |load: &Load| {
        let unit = if load.by_clock {
            "Replies per second"
        } else {
            "Instructions per request, of all harts"
        };
        let (n, harts) = (load.n, load.harts);
        format!("{unit}, {n} × {n}, harts: {harts}:")
    };
    let cell = |point: &Point| {
        if point.load.by_clock {
            point.rate().map(|rate| format!("{rate:.0}"))
        } else {
            point.instructions().map(|count| count.to_string())
        }
    };
    loops(points, is_closed, title, cell, |load| match load.n {
        n @ (1 | 20) => image(folder, "closed loop", &format!("closed-{n}.svg")),
        _ => String::new(),
    })
}

fn open(title: &str, points: &Points<'_>, folder: &str) -> String {
    let wanted = |load: &Load| load.period != 0 && load.levels == 1 && !is_published(load);
    let of_shape =
        |&Load {
             n, period, harts, ..
         }: &Load| { format!("{n} × {n}, every {period} ms, harts: {harts}:") };
    let cell = |point: &Point| {
        let all = point.figures.first()?;
        let (mean, p99, jitter) = (all.mean, all.p99, all.deviation);
        Some(format!("{:.0}; {mean}, {p99}, {jitter}", point.rate()?))
    };
    let plots = |load: &Load| match load.n {
        20 => ["throughput", "latency"]
            .map(|what| image(folder, what, &format!("{what}-{}.svg", load.period)))
            .concat(),
        _ => String::new(),
    };
    format!(
        "{title}\n\nEach connection sends requests at set times, from which latency counts. Replies per second; mean latency, 99th \
         percentile and standard deviation (the papers' jitter) in µs.\n\n{}",
        loops(points, wanted, of_shape, cell, plots)
    )
}

/// Pages that connecting has taken.
fn pages(points: &Points<'_>, model: usize, connections: u32) -> Option<u64> {
    let is_it = |load: &Load| load.millis == plan::MEMORY && load.connections == connections;
    Some(points.of(model, is_it)?.figures.first()?.pages)
}

/// Bytes of a connection: the difference between many and few connections, divided by their number.
fn bytes_of_connection(points: &Points<'_>, model: usize) -> Option<u64> {
    let [more, less] = [plan::MANY_CONNECTIONS, plan::FEW_CONNECTIONS];
    let added = pages(points, model, more)?.checked_sub(pages(points, model, less)?)?;
    Some(added * 4096 / u64::from(more - less))
}

fn memory(points: &Points<'_>) -> String {
    let (coroutines, threads) = published::MOST;
    let title = format!(
        "## Memory\n\nMemory of a connection: both ends, buffers, coroutines or threads (with stacks of 16 KiB in user and kernel mode, as published), client included, computed from the growth between {} and {} \
         connections. Published for 26 MiB of frames: KCUC {coroutines}, KTUT {threads} connections.",
        plan::FEW_CONNECTIONS,
        plan::MANY_CONNECTIONS,
    );
    let mut table = ByModel::new(&title, "");
    let bytes = |model| bytes_of_connection(points, model);
    table.row("bytes", |model| Some(bytes(model)?.to_string()));
    table.row("connections in 26 MiB, computed from it", |model| {
        Some(((26 << 20) / bytes(model)?.max(1)).to_string())
    });
    let published = [Some(coroutines), None, None, Some(threads)];
    table.row("published", |model| {
        Some(published[model].map_or("–".into(), |most| most.to_string()))
    });
    for most in plan::MOST_CONNECTIONS {
        table.row(format!("MiB of {most} connections, measured"), |model| {
            Some(format!("{:.1}", pages(points, model, most)? as f64 / 256.0))
        });
    }
    table.0.markdown()
}

/// Connections of several levels.
fn priorities(title: &str, points: &Points<'_>, levels: u32) -> String {
    let wanted = |load: &Load| load.levels == levels && !is_published(load);
    let all_harts = points.values(wanted, |load| load.harts);
    if all_harts.is_empty() {
        return String::new();
    }
    let (connections, period) = (plan::PRIORITY_CONNECTIONS, plan::PRIORITY_PERIOD);
    let mut page = format!(
        "{title}\n\n{connections} connections, the same number at each level, 20 × 20, every {period} ms: {} requests per second at each level. \
         Replies per second; mean latency, 50th and 99th percentile, jitter in µs.\n\n",
        connections * 1000 / period / levels
    );
    let of = |harts, model| points.of(model, |load| wanted(load) && load.harts == harts);
    for &harts in &all_harts {
        let mut table = ByModel::new(&format!("Harts: {harts}:"), "level");
        for level in 0..levels {
            table.row(level, |model| {
                let point = of(harts, model)?;
                let level = point.figures.get(1 + level as usize)?;
                let rate = level.count * 1000 / u64::from(point.load.millis);
                let (mean, median, p99, jitter) =
                    (level.mean, level.median, level.p99, level.deviation);
                Some(match level.count {
                    0 => "0".to_owned(),
                    _ => format!("{rate}; {mean}, {median}, {p99}, {jitter}"),
                })
            });
        }
        page += &table.0.markdown();
    }
    for &harts in &all_harts {
        let (Some(coroutines), Some(threads)) = (of(harts, 0), of(harts, 3)) else {
            continue;
        };
        let title = format!(
            "Percentiles of the latencies of KCUC and KTUT: 25, 50, 75, 90, 99 and 99.9, harts: {harts}, in µs:"
        );
        let mut table = Table::new(title, &["<level", "KCUC", "KTUT"]);
        let cell = |of: &Figures| {
            let [p25, p75, p90, p999] = of.spread;
            match of.count {
                0 => "–".to_owned(),
                _ => format!("{p25}, {}, {p75}, {p90}, {}, {p999}", of.median, of.p99),
            }
        };
        let all = coroutines.figures.iter().zip(&threads.figures).skip(1);
        for (level, (first, second)) in all.enumerate() {
            table.row([level.to_string(), cell(first), cell(second)]);
        }
        page += &table.markdown();
    }
    page
}

/// The published figures, and ours of the same shape.
fn published_figures(points: &Points<'_>) -> String {
    let of = |model, connections| {
        points.of(model, |load| {
            is_published(load) && load.levels == 1 && load.connections == connections
        })
    };
    let none = |value: Option<f64>, word: &str| {
        value.map_or_else(|| word.to_owned(), |value| format!("{value:.1}"))
    };
    let mut rates = ByModel::new("Replies per second:", "connections");
    let title = "Ours, mean latency and jitter, multiplied by 2.5, in ms:";
    let mut latencies = ByModel::new(title, "connections");
    for (connections, published) in published::THROUGHPUT {
        rates.row(connections, |model| {
            let ours = of(model, connections).and_then(Point::rate);
            let ours = none(ours.map(|rate| rate / plan::PUBLISHED_FASTER), "–");
            Some(format!("{} / {ours}", none(published[model], "fails")))
        });
        latencies.row(connections, |model| {
            let all = of(model, connections)?.figures.first()?;
            let millis = |micros: u64| micros as f64 * plan::PUBLISHED_FASTER / 1000.0;
            let (mean, jitter) = (millis(all.mean), millis(all.deviation));
            Some(format!("{mean:.2}; {jitter:.2}"))
        });
    }
    let title = "64 connections of 8 levels, every 50 ms, KCUC: replies per second at each level, and mean latency of the first and the last level in ms. Ours: every 5 ms, \
                 rates divided and latencies multiplied by ten.";
    let heads = ["<harts", "0", "1", "2", "3", "4", "5", "6", "7"];
    let heads = [&heads[..], &["latency of 0", "of 7"]].concat();
    let mut levels = Table::new(title, &heads);
    for ((harts, rates), (_, first, last)) in
        published::PRIORITIES.into_iter().zip(published::LATENCY)
    {
        let row = std::iter::once(format!("{harts}, published"));
        let row = row.chain(rates.map(|rate| rate.to_string()));
        levels.row(row.chain([first.to_string(), last.to_string()]));
        let is_it = |load: &Load| is_published(load) && load.levels == 8 && load.harts == harts;
        let Some(point) = points.of(0, is_it) else {
            continue;
        };
        let ours = &point.figures[1..];
        let rate = |of: &Figures| of.count as f64 * 100.0 / f64::from(point.load.millis);
        let mean = |of: Option<&Figures>| {
            let of = of.filter(|of| of.count > 0);
            none(of.map(|of| of.mean as f64 / 100.0), "–")
        };
        let row = std::iter::once(format!("{harts}, ours"));
        let row = row.chain(ours.iter().map(|of| format!("{:.1}", rate(of))));
        levels.row(row.chain([mean(ours.first()), mean(ours.last())]));
    }
    format!(
        "## Published figures beside ours\n\nPublished: the raw data in the repository of the papers' code, from an FPGA with 4 harts at 100 MHz, 15 × 15, every 100 ms, 5 s, with the client on \
         another machine. One of our harts, at an instruction per nanosecond, executes two and a half times as many instructions as those four; so ours is one hart with a period of 40 ms, and its \
         rates are divided by 2.5. In each cell: published / ours.\n\n{}{}{}",
        rates.0.markdown(),
        latencies.0.markdown(),
        levels.markdown()
    )
}

/// Which goals are reached, according to the points.
fn goals(points: &Points<'_>) -> String {
    let one_hart = |load: &Load| is_closed(load) && load.harts == 1;
    let shapes = points.values(one_hart, |load| (load.n, load.connections));
    let (mut losing, mut ratios) = (Vec::new(), Vec::new());
    for &(n, connections) in &shapes {
        let is_it = |load: &Load| one_hart(load) && (load.n, load.connections) == (n, connections);
        let cost = |model| points.of(model, is_it)?.instructions();
        let Some(ours) = cost(0) else { continue };
        let better = (1..MODELS.len()).filter(|&model| cost(model).is_some_and(|it| it < ours));
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
                "{worst:.2} × to {best:.2} × (closed loop, one hart); [the kernel](kernel.md#the-papers-server) says what the maximum is"
            ),
        );
    }
    let bytes = [0, 3].map(|model| bytes_of_connection(points, model));
    if let [Some(ours), Some(threads)] = bytes {
        goal(
            "three times the connections of KTUT in the same memory",
            format!("{:.1} ×", threads as f64 / ours as f64),
        );
    }
    let top = |harts| {
        let is_it = |load: &Load| load.levels == 8 && load.harts == harts && !is_published(load);
        let top = points.of(0, is_it)?.figures.get(1)?;
        Some(format!("{} µs with {harts}", top.mean))
    };
    goal(
        "the mean latency of the most urgent of 8 levels is no longer with 4 harts than with 1",
        Vec::from_iter(plan::HARTS.into_iter().filter_map(top)).join(", "),
    );
    table.markdown()
}
