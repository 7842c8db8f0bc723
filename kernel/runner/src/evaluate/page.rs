//! The page: tables of all points, the goals that are reached, and the published figures beside them.

use std::fmt::Write;

use super::plan;
use super::point::{Figures, Load, MODELS, Point};
use super::published;

/// Points by what was asked.
struct Points<'a>(&'a [Point]);

impl Points<'_> {
    fn of(&self, model: usize, wanted: impl Fn(&Load) -> bool) -> Option<&Point> {
        let mut points = self.0.iter();
        points.find(|point| point.load.model == model && wanted(&point.load))
    }

    /// The distinct values of a field of the wanted loads, ascending.
    fn values(&self, wanted: impl Fn(&Load) -> bool, part: impl Fn(&Load) -> u32) -> Vec<u32> {
        let loads = self.0.iter().map(|point| point.load);
        let mut values: Vec<u32> = loads
            .filter(|load| wanted(load))
            .map(|load| part(&load))
            .collect();
        values.sort_unstable();
        values.dedup();
        values
    }
}

/// The whole page; points and plots are in the folder of this name beside it.
pub(crate) fn page(folder: &str, counted: &[Point], commit: &str) -> String {
    let mut page = INTRODUCTION.to_owned();
    let _ = writeln!(
        page,
        "\nThe points are in [`points.csv`](:points.csv), measured at commit {commit}.\n"
    );
    let points = Points(counted);
    goals(&mut page, &points);
    closed(&mut page, &points, "## Closed loop");
    open(&mut page, &points, "## Open loop");
    memory(&mut page, &points);
    for levels in [8, 4] {
        let title = format!("## {levels} levels");
        priorities(&mut page, &points, levels, &title);
    }
    published_figures(&mut page, &points);
    page.replace("](:", &format!("]({folder}/"))
}

/// Adds the points measured by the host's clock, if there are any.
pub(crate) fn by_clock(page: &mut String, folder: &str, (timed, commit): &(Vec<Point>, String)) {
    if timed.is_empty() {
        return;
    }
    let _ = writeln!(
        page,
        "\n## By the host's clock\n\n`cargo xtask os -- evaluate --clock`, commit {commit}. QEMU emulates every instruction, on a busy host: \
         these figures show that the models work, not which one is faster. The points are in [`points-clock.csv`]({folder}/points-clock.csv)."
    );
    let points = Points(timed);
    closed(page, &points, "### Closed loop, by the host's clock");
    open(page, &points, "### Open loop, by the host's clock");
    priorities(page, &points, 8, "### 8 levels, by the host's clock");
}

/// Adds the points measured by clients on the host, if there are any.
pub(crate) fn from_host(page: &mut String, folder: &str, (timed, commit): &(Vec<Point>, String)) {
    if timed.is_empty() {
        return;
    }
    let _ = writeln!(
        page,
        "\n## Clients on the host\n\n`cargo xtask os -- evaluate --host`, commit {commit}. The client of `upshift load matrix` sends requests through ports that QEMU forwards to the \
         machine's network card, and measures by the host's clock. QEMU emulates every instruction, on a busy host: these figures show that the models work, not which one is faster. \
         Each connection has a forwarded port of its own: QEMU's user networking listens on such a port with a backlog of 1 (`ss -ltn`), so if 64 clients connect to one port at once, the \
         host's kernel drops most of the connections (400 in `TcpExtListenOverflows`) and retries after 1, 3, 7 and 15 seconds, which may be after the end of the measurement. The points are in [`points-host.csv`]({folder}/points-host.csv)."
    );
    let points = Points(timed);
    closed(page, &points, "### Closed loop, clients on the host");
    open(page, &points, "### Open loop, clients on the host");
}

const INTRODUCTION: &str = "# The papers' server in the kernel

The matrix server of the SharedScheduler papers in four models. `cargo xtask os -- evaluate` measures them and writes this
page, its plots and the file of points. In KC, a call that blocks is a coroutine of the kernel; in KT, it is a kernel
thread (the feature `kernel-threads`: 16 KiB of stack, a stack switch, the ready queues of each hart). In UC, the server has three
coroutines per connection (receive, compute, send, with a queue between each two); in UT, three threads. In all models the clients are coroutines of one
process, connected over the loopback; the figures include the instructions of the clients and of the network.

Time counts instructions (QEMU 7.2, `-icount shift=0`): a millisecond of a hart is a million instructions, and every figure repeats exactly. QEMU runs several harts
in turn, 0.1 ms each, so on *n* harts a millisecond of the machine takes *n* of QEMU's; a wake from one hart to another waits for a turn. Instruction counts
are not affected by this; latencies on several harts are meaningful only if they are longer than the turns. A process has at most 64 threads, so with threads in user mode there is a server for every
16 connections.
";

fn heading(page: &mut String, title: &str, first: &str) {
    let _ = writeln!(page, "\n{title}\n\n| {first} | {} |", MODELS.join(" | "));
    let _ = writeln!(page, "|---|{}", "---|".repeat(MODELS.len()));
}

/// A row with a cell for each model.
fn row(page: &mut String, first: &str, cell: impl Fn(usize) -> Option<String>) {
    let cells: Vec<String> = (0..MODELS.len())
        .map(|model| cell(model).unwrap_or_else(|| "fails".to_owned()))
        .collect();
    let _ = writeln!(page, "| {first} | {} |", cells.join(" | "));
}

/// Whether the load has the published shape.
fn is_published(load: &Load) -> bool {
    load.n == plan::PUBLISHED_N
}

fn is_closed(load: &Load) -> bool {
    load.period == 0 && load.millis != plan::MEMORY
}

/// Each connection sends its next request on receiving a reply.
fn closed(page: &mut String, points: &Points<'_>, title: &str) {
    let harts = points.values(is_closed, |load| load.harts);
    let _ = writeln!(
        page,
        "\n{title}\n\nEach connection sends its next request on receiving a reply."
    );
    if points.0.first().is_some_and(|point| !point.load.by_clock) {
        let _ = writeln!(
            page,
            "The cost of a request is counted from the first reply of each connection to its last: a fixed period would include replies of one turn too many \
             or too few."
        );
    }
    for &harts in &harts {
        let wanted = |load: &Load| is_closed(load) && load.harts == harts;
        for n in points.values(wanted, |load| load.n) {
            let wanted = |load: &Load| wanted(load) && load.n == n;
            let unit = match points.0.first().is_some_and(|point| point.load.by_clock) {
                true => "Replies per second",
                false => "Instructions per request, of all harts",
            };
            heading(
                page,
                &format!("{unit}, {n} × {n}, harts: {harts}:"),
                "connections",
            );
            for connections in points.values(wanted, |load| load.connections) {
                row(page, &connections.to_string(), |model| {
                    let point = points.of(model, |load| {
                        wanted(load) && load.connections == connections
                    })?;
                    match point.load.by_clock {
                        true => point.rate().map(|rate| format!("{rate:.0}")),
                        false => point.instructions().map(|count| count.to_string()),
                    }
                });
            }
            if harts == 1 && matches!(n, 1 | 20) && !points.0[0].load.by_clock {
                let _ = writeln!(page, "\n![closed loop](:closed-{n}.svg)");
            }
        }
    }
}

/// Each connection sends requests at set times.
fn open(page: &mut String, points: &Points<'_>, title: &str) {
    let is_open = |load: &Load| load.period != 0 && load.levels == 1 && !is_published(load);
    let _ = writeln!(
        page,
        "\n{title}\n\nEach connection sends requests at set times, from which latency counts. Replies per second; mean latency, 99th \
         percentile and standard deviation (the papers' jitter) in µs."
    );
    for harts in points.values(is_open, |load| load.harts) {
        let wanted = |load: &Load| is_open(load) && load.harts == harts;
        for period in points.values(wanted, |load| load.period).into_iter().rev() {
            for n in points.values(|load| wanted(load) && load.period == period, |load| load.n) {
                let wanted = |load: &Load| wanted(load) && load.period == period && load.n == n;
                heading(
                    page,
                    &format!("{n} × {n}, every {period} ms, harts: {harts}:"),
                    "connections",
                );
                for connections in points.values(wanted, |load| load.connections) {
                    row(page, &connections.to_string(), |model| {
                        let point = points.of(model, |load| {
                            wanted(load) && load.connections == connections
                        })?;
                        let all = point.figures.first()?;
                        let (mean, p99, jitter) = (all.mean, all.p99, all.deviation);
                        Some(format!("{:.0}; {mean}, {p99}, {jitter}", point.rate()?))
                    });
                }
                if harts == 1 && n == 20 && !points.0[0].load.by_clock {
                    let _ = writeln!(
                        page,
                        "\n![throughput](:throughput-{period}.svg)\n![latency](:latency-{period}.svg)"
                    );
                }
            }
        }
    }
}

/// Bytes of a connection: the difference between many and few connections, divided by their number.
fn bytes_of_connection(points: &Points<'_>, model: usize) -> Option<u64> {
    let pages = |connections| {
        let is_it = |load: &Load| load.millis == plan::MEMORY && load.connections == connections;
        Some(points.of(model, is_it)?.figures.first()?.pages)
    };
    let more = pages(plan::MANY_CONNECTIONS)?.checked_sub(pages(plan::FEW_CONNECTIONS)?)?;
    Some(more * 4096 / u64::from(plan::MANY_CONNECTIONS - plan::FEW_CONNECTIONS))
}

/// The memory of connections.
fn memory(page: &mut String, points: &Points<'_>) {
    if bytes_of_connection(points, 0).is_none() {
        return;
    }
    let _ = writeln!(
        page,
        "\n## Memory\n\nMemory of a connection: both ends, buffers, coroutines or threads (with stacks of 16 KiB in user and kernel mode, as published), client included, computed from the growth between {} and {} \
         connections. Published for 26 MiB of frames: KCUC {}, KTUT {} connections.",
        plan::FEW_CONNECTIONS,
        plan::MANY_CONNECTIONS,
        published::MOST.0,
        published::MOST.1
    );
    heading(page, "", "");
    let bytes = |model| bytes_of_connection(points, model);
    row(page, "bytes", |model| Some(bytes(model)?.to_string()));
    row(page, "connections in 26 MiB, computed from it", |model| {
        Some(((26 << 20) / bytes(model)?.max(1)).to_string())
    });
    let (coroutines, threads) = published::MOST;
    let published = [Some(coroutines), None, None, Some(threads)];
    row(page, "published", |model| {
        Some(published[model].map_or_else(|| "–".to_owned(), |most| most.to_string()))
    });
    for connections in plan::MOST_CONNECTIONS {
        let is_it = |load: &Load| load.millis == plan::MEMORY && load.connections == connections;
        if points.values(is_it, |load| load.connections).is_empty() {
            continue;
        }
        let first = format!("MiB of {connections} connections, measured");
        row(page, &first, |model| {
            let pages = points.of(model, is_it)?.figures.first()?.pages;
            Some(format!("{:.1}", pages as f64 / 256.0))
        });
    }
}

/// Connections of several levels.
fn priorities(page: &mut String, points: &Points<'_>, levels: u32, title: &str) {
    let wanted = |load: &Load| load.levels == levels && !is_published(load);
    let harts = points.values(wanted, |load| load.harts);
    if harts.is_empty() {
        return;
    }
    let (connections, period) = (plan::PRIORITY_CONNECTIONS, plan::PRIORITY_PERIOD);
    let _ = writeln!(
        page,
        "\n{title}\n\n{connections} connections, the same number at each level, 20 × 20, every {period} ms: {} requests per second at each level. \
         Replies per second; mean latency, 50th and 99th percentile, jitter in µs.",
        connections * 1000 / period / levels
    );
    for &harts in &harts {
        heading(page, &format!("Harts: {harts}:"), "level");
        for level in 0..levels {
            row(page, &level.to_string(), |model| {
                let point = points.of(model, |load| wanted(load) && load.harts == harts)?;
                let figures = point.figures.get(1 + level as usize)?;
                let rate = figures.count * 1000 / u64::from(point.load.millis);
                Some(match figures.count {
                    0 => "0".to_owned(),
                    _ => format!(
                        "{rate}; {}, {}, {}, {}",
                        figures.mean, figures.median, figures.p99, figures.deviation
                    ),
                })
            });
        }
    }
    for harts in harts {
        let of = |model| points.of(model, |load| wanted(load) && load.harts == harts);
        distributions(page, harts, [of(0), of(3)]);
    }
    if levels == 8 && !points.0[0].load.by_clock {
        for what in ["throughput", "latency", "jitter"] {
            let _ = writeln!(
                page,
                "\n![{what}, KCUC](:levels-{what}-kcuc.svg)\n![{what}, KTUT](:levels-{what}-ktut.svg)"
            );
        }
    }
}

/// Percentiles of the latencies of each level, of two models.
fn distributions(page: &mut String, harts: u32, points: [Option<&Point>; 2]) {
    let [Some(coroutines), Some(threads)] = points else {
        return;
    };
    // Older points have no percentiles.
    let is_known = |point: &Point| point.figures.iter().any(|of| of.spread != [0; 4]);
    if !is_known(coroutines) || !is_known(threads) {
        return;
    }
    let _ = writeln!(
        page,
        "\nPercentiles of the latencies of KCUC and KTUT: 25, 50, 75, 90, 99 and 99.9, harts: {harts}, in µs:\n\n\
         | level | KCUC | KTUT |\n|---|---|---|"
    );
    let cell = |figures: &Figures| {
        let [p25, p75, p90, p999] = figures.spread;
        match figures.count {
            0 => "–".to_owned(),
            _ => {
                let (median, p99) = (figures.median, figures.p99);
                format!("{p25}, {median}, {p75}, {p90}, {p99}, {p999}")
            }
        }
    };
    let levels = coroutines.figures.iter().zip(&threads.figures).skip(1);
    for (level, (first, second)) in levels.enumerate() {
        let _ = writeln!(page, "| {level} | {} | {} |", cell(first), cell(second));
    }
}

/// The published figures, and ours of the same shape.
fn published_figures(page: &mut String, points: &Points<'_>) {
    let _ = writeln!(
        page,
        "\n## Published figures beside ours\n\nPublished: the raw data in the repository of the papers' code, from an FPGA with 4 harts at 100 MHz, 15 × 15, every 100 ms, 5 s, with the client on \
         another machine. One of our harts, at an instruction per nanosecond, executes two and a half times as many instructions as those four; so ours is one hart with a period of 40 ms, and its \
         rates are divided by 2.5. In each cell: published / ours."
    );
    heading(page, "Replies per second:", "connections");
    for (connections, rates) in published::THROUGHPUT {
        row(page, &connections.to_string(), |model| {
            let published =
                rates[model].map_or_else(|| "fails".to_owned(), |rate| format!("{rate:.1}"));
            let is_it = |load: &Load| {
                is_published(load) && load.levels == 1 && load.connections == connections
            };
            let ours = points.of(model, is_it).and_then(Point::rate);
            let ours = ours.map_or_else(
                || "–".to_owned(),
                |rate| format!("{:.1}", rate / plan::PUBLISHED_FASTER),
            );
            Some(format!("{published} / {ours}"))
        });
    }
    heading(
        page,
        "Ours, mean latency and jitter, multiplied by 2.5, in ms:",
        "connections",
    );
    for (connections, _) in published::THROUGHPUT {
        row(page, &connections.to_string(), |model| {
            let is_it = |load: &Load| {
                is_published(load) && load.levels == 1 && load.connections == connections
            };
            let all = points.of(model, is_it)?.figures.first()?;
            let millis = |micros: u64| micros as f64 * plan::PUBLISHED_FASTER / 1000.0;
            Some(format!(
                "{:.2}; {:.2}",
                millis(all.mean),
                millis(all.deviation)
            ))
        });
    }
    let _ = writeln!(
        page,
        "\n64 connections of 8 levels, every 50 ms, KCUC: replies per second at each level, and mean latency of the first and the last level in ms. Ours: every 5 ms, \
         rates divided and latencies multiplied by ten.\n\n\
         | harts | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | latency of 0 | of 7 |\n|---|{}",
        "---|".repeat(10)
    );
    for ((harts, rates), (_, first, last)) in
        published::PRIORITIES.into_iter().zip(published::LATENCY)
    {
        let cells = rates.map(|rate| rate.to_string()).join(" | ");
        let _ = writeln!(page, "| {harts}, published | {cells} | {first} | {last} |");
        let is_it = |load: &Load| is_published(load) && load.levels == 8 && load.harts == harts;
        let Some(point) = points.of(0, is_it) else {
            continue;
        };
        let levels = &point.figures[1..];
        let rate = |of: &Figures| of.count as f64 * 100.0 / f64::from(point.load.millis);
        let cells: Vec<String> = levels.iter().map(|of| format!("{:.1}", rate(of))).collect();
        let mean = |of: Option<&Figures>| match of {
            Some(of) if of.count > 0 => format!("{:.1}", of.mean as f64 / 100.0),
            _ => "–".to_owned(),
        };
        let (first, last) = (mean(levels.first()), mean(levels.last()));
        let cells = cells.join(" | ");
        let _ = writeln!(page, "| {harts}, ours | {cells} | {first} | {last} |");
    }
}

/// Which goals are reached, according to the points.
fn goals(page: &mut String, points: &Points<'_>) {
    let _ = writeln!(page, "\n## The goals\n\n| goal | result |\n|---|---|");
    let mut goal = |name: &str, outcome: String| {
        let _ = writeln!(page, "| {name} | {outcome} |");
    };
    let one_hart = |load: &Load| is_closed(load) && load.harts == 1;
    let (mut all, mut losing) = (0, Vec::new());
    let (mut best, mut worst) = (0.0_f64, f64::MAX);
    for n in points.values(one_hart, |load| load.n) {
        let of_n = |load: &Load| one_hart(load) && load.n == n;
        for connections in points.values(of_n, |load| load.connections) {
            let cost = |model| {
                points
                    .of(model, |load| of_n(load) && load.connections == connections)?
                    .instructions()
            };
            let Some(ours) = cost(0) else { continue };
            all += 1;
            let better: Vec<String> = (1..MODELS.len())
                .filter(|model| cost(*model).is_some_and(|cost| cost < ours))
                .map(|model| MODELS[model].to_owned())
                .collect();
            if !better.is_empty() {
                losing.push(format!(
                    "{} at {n} × {n} (connections: {connections})",
                    better.join(", ")
                ));
            }
            if let Some(threads) = cost(3).filter(|_| connections >= 16) {
                let ratio = threads as f64 / ours as f64;
                best = best.max(ratio);
                worst = worst.min(ratio);
            }
        }
    }
    let kept = all - losing.len();
    let loses = match losing.is_empty() {
        true => String::new(),
        false => format!("; needs more than {}", losing.join("; ")),
    };
    goal(
        "KCUC needs no more instructions per request than any other model",
        format!("at {kept} of {all} points{loses}"),
    );
    if worst <= best {
        goal(
            "KCUC serves at least twice as many requests as KTUT, from 16 connections on",
            format!(
                "{worst:.2} × to {best:.2} × (closed loop, one hart); [the kernel](kernel.md#the-papers-server) says what the maximum is"
            ),
        );
    }
    if let (Some(ours), Some(threads)) = (
        bytes_of_connection(points, 0),
        bytes_of_connection(points, 3),
    ) {
        goal(
            "three times the connections of KTUT in the same memory",
            format!("{:.1} ×", threads as f64 / ours as f64),
        );
    }
    let top = |harts| {
        let is_it = |load: &Load| load.levels == 8 && load.harts == harts && !is_published(load);
        let point = points.of(0, is_it)?;
        Some(point.figures.get(1)?.mean)
    };
    let means: Vec<String> = plan::HARTS
        .iter()
        .filter_map(|harts| Some(format!("{} µs with {harts}", top(*harts)?)))
        .collect();
    if !means.is_empty() {
        goal(
            "the mean latency of the most urgent of 8 levels is no longer with 4 harts than with 1",
            means.join(", "),
        );
    }
}
