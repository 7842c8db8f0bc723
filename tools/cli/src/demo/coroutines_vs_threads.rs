//! Experiment 1: the same matrix server with coroutines and with threads.
//!
//! Closed loop over connections × matrix sizes (how much can it serve), and the open loop of the
//! papers, a request per connection every 100 ms (how long does a reply take when there is little
//! to do). Both servers run throughout and are measured in turn, so that what disturbs the
//! machine disturbs both.

use std::time::Duration;

use anyhow::Result;
use upshift_load::Report;

use super::bench::{Bench, Measurement, Pace, keep_going, planned};
use upshift_report::number::{factor, grouped, micros};
use upshift_report::plot::COLOURS;
use upshift_report::{Kind, Look, Plot, Table};

use crate::choice::Model;
use crate::demo::report::{Finding, Section};

const PERIOD: Duration = Duration::from_millis(100);
/// Matrix size of the open loop.
const OPEN_SIZE: usize = 20;
/// Below this ratio threads count as ahead, above its inverse coroutines do: less is noise.
const NOISE: f64 = 0.95;

const MODELS: [Model; 2] = [Model::Coroutine, Model::Thread];

struct Grid {
    connections: &'static [usize],
    sizes: &'static [usize],
    open: &'static [usize],
    warmup: Duration,
    duration: Duration,
    open_warmup: Duration,
    open_duration: Duration,
}

fn grid(quick: bool) -> Grid {
    let ms = Duration::from_millis;
    if quick {
        Grid {
            connections: &[1, 32, 512],
            sizes: &[8],
            open: &[64],
            warmup: ms(80),
            duration: ms(300),
            open_warmup: ms(110),
            open_duration: ms(500),
        }
    } else {
        Grid {
            connections: &[1, 8, 32, 64, 128, 512],
            sizes: &[1, 8, 20],
            open: &[8, 64, 256, 512],
            warmup: ms(120),
            duration: ms(500),
            open_warmup: ms(200),
            open_duration: ms(900),
        }
    }
}

/// How long the experiment is planned to take.
pub(crate) fn plan(quick: bool) -> Duration {
    let grid = grid(quick);
    let closed = grid.connections.len() * grid.sizes.len() * 2;
    let open = grid.open.len() * 2;
    planned(grid.warmup, grid.duration) * closed as u32
        + planned(grid.open_warmup, grid.open_duration) * open as u32
}

/// Both models at one point of the grid; the message of a measurement that failed.
struct Cell {
    size: usize,
    connections: usize,
    results: [Result<Report, String>; 2],
}

impl Cell {
    /// NaN where nothing was measured.
    fn figure(&self, model: usize, figure: impl Fn(&Report) -> f64) -> f64 {
        match &self.results[model] {
            Ok(report) if report.total.requests > 0 => figure(report),
            _ => f64::NAN,
        }
    }

    fn rates(&self) -> [f64; 2] {
        [0, 1].map(|model| self.figure(model, |r| r.total.per_second))
    }

    fn ratio(&self) -> f64 {
        let [coroutines, threads] = self.rates();
        coroutines / threads
    }
}

/// Runs the experiment.
pub(crate) fn run(bench: &mut Bench) -> Result<Section> {
    let grid = grid(bench.quick);
    let pin = bench.placement.server.clone();
    let servers = [
        bench.matrix_server(MODELS[0], &[32], &pin)?,
        bench.matrix_server(MODELS[1], &[32], &pin)?,
    ];
    let mut cell =
        |size: usize, connections: usize, pace: Pace, warmup, duration| -> Result<Cell> {
            let mut one = |model: usize| {
                let label = format!(
                    "n = {size}, {connections} connections, {}",
                    MODELS[model].word()
                );
                keep_going(bench.measure(&Measurement {
                    label: &label,
                    targets: vec![(servers[model].addresses[0], MODELS[model].word().into())],
                    connections,
                    size,
                    pace,
                    warmup,
                    duration,
                    server: servers[model].pid(),
                }))
            };
            Ok(Cell {
                size,
                connections,
                results: [one(0)?, one(1)?],
            })
        };
    let mut closed = Vec::new();
    for &size in grid.sizes {
        for &connections in grid.connections {
            closed.push(cell(
                size,
                connections,
                Pace::Closed,
                grid.warmup,
                grid.duration,
            )?);
        }
    }
    let mut open = Vec::new();
    for &connections in grid.open {
        open.push(cell(
            OPEN_SIZE,
            connections,
            Pace::Period(PERIOD),
            grid.open_warmup,
            grid.open_duration,
        )?);
    }
    let [coroutines, threads] = servers;
    coroutines.stop(&bench.stop)?;
    threads.stop(&bench.stop)?;
    Ok(section(bench, &grid, &closed, &open))
}

fn section(bench: &Bench, grid: &Grid, closed: &[Cell], open: &[Cell]) -> Section {
    let mut plots = Vec::new();
    for &size in grid.sizes {
        let cells: Vec<&Cell> = closed.iter().filter(|c| c.size == size).collect();
        let title = |what: &str| format!("{what}, n = {size}");
        plots.push(plot(
            title("Throughput"),
            "requests per second",
            Kind::Linear,
            &cells,
            &[(|r| r.total.per_second, "")],
        ));
        plots.push(latency_plot(title("Latency"), &cells));
        plots.push(plot(
            title("Server CPU time"),
            "µs per request",
            Kind::Linear,
            &cells,
            &[(Report::server_cpu, "")],
        ));
    }
    if open.len() > 1 {
        plots.push(latency_plot(
            format!("Latency, one request per 100 ms, n = {OPEN_SIZE}"),
            &open.iter().collect::<Vec<_>>(),
        ));
    }
    let mut findings = findings(closed, grid);
    findings.extend(open_finding(open));
    for cell in closed.iter().chain(open) {
        for (model, result) in MODELS.iter().zip(&cell.results) {
            let trouble = match result {
                Err(message) => message.clone(),
                Ok(report) if report.total.errors > 0 => {
                    let first = report.total.first_error.as_deref().unwrap_or("no details");
                    format!("{} errors, the first: {first}", report.total.errors)
                }
                Ok(report) if report.total.requests == 0 => {
                    "no reply came while it was measured".into()
                }
                Ok(_) => continue,
            };
            findings.push(Finding::failed(format!(
                "{} at n = {}, {} connections: {trouble}",
                model.word(),
                cell.size,
                cell.connections
            )));
        }
    }
    Section {
        title: "1. Coroutines vs threads".into(),
        intro: format!(
            "The same matrix server twice, on one CPU: three coroutines per connection on one vCPU, and three threads \
             per connection. Closed loop: each connection sends its next matrix when the reply is there; each point \
             is measured for {} ms. Every reply is checked. Open loop: each connection sends a matrix every 100 ms, \
             and latency counts from the time the request was due.",
            grid.duration.as_millis()
        ),
        findings,
        plots,
        tables: vec![
            table(
                "Closed loop (co: coroutines, th: threads; CPU: server's CPU time per request)",
                closed,
            ),
            table("Open loop, a request per connection every 100 ms", open),
        ],
        commands: commands(bench, grid),
        ..Section::default()
    }
}

fn findings(closed: &[Cell], grid: &Grid) -> Vec<Finding> {
    let mut findings = Vec::new();
    let (Some(&fewest), Some(&most)) = (grid.connections.first(), grid.connections.last()) else {
        return findings;
    };
    for cell in closed
        .iter()
        .filter(|c| c.connections == fewest || c.connections == most)
    {
        let [coroutines, threads] = cell.rates();
        if !cell.ratio().is_finite() {
            continue;
        }
        findings.push(Finding::new(format!(
            "n = {}, {}: coroutines serve {} the requests of threads ({} against {} per second), p99 {} against {}, CPU time per request {} against {}.",
            cell.size,
            in_words(cell.connections),
            factor(coroutines, threads),
            grouped(coroutines),
            grouped(threads),
            micros(cell.figure(0, |r| r.total.p99)),
            micros(cell.figure(1, |r| r.total.p99)),
            micros(cell.figure(0, Report::server_cpu)),
            micros(cell.figure(1, Report::server_cpu)),
        )));
    }
    let measured: Vec<&Cell> = closed.iter().filter(|c| c.ratio().is_finite()).collect();
    let losing: Vec<String> = measured
        .iter()
        .filter(|c| c.ratio() < NOISE)
        .map(|c| {
            format!(
                "n = {} with {} ({})",
                c.size,
                in_words(c.connections),
                factor(c.ratio(), 1.0)
            )
        })
        .collect();
    let ahead = measured.iter().filter(|c| c.ratio() > 1.0 / NOISE).count();
    let behind = if losing.is_empty() {
        "behind in none".into()
    } else {
        format!("behind at {}", losing.join(", "))
    };
    findings.push(Finding::new(format!(
        "Throughput of coroutines: ahead in {ahead} of {} closed-loop points, {behind}; differences under 5 % count as equal.",
        measured.len()
    )));
    findings
}

fn in_words(connections: usize) -> String {
    format!(
        "{connections} connection{}",
        if connections == 1 { "" } else { "s" }
    )
}

fn open_finding(open: &[Cell]) -> Option<Finding> {
    let cell = open.last()?;
    let [p50, p99] = [|r: &Report| r.total.p50, |r: &Report| r.total.p99]
        .map(|figure| [cell.figure(0, figure), cell.figure(1, figure)]);
    p50.iter().all(|p| p.is_finite()).then(|| {
        Finding::new(format!(
            "Open loop, {} connections, a matrix of n = {} each every 100 ms: p50 {} with coroutines, {} with threads; p99 {} and {}.",
            cell.connections,
            cell.size,
            micros(p50[0]),
            micros(p50[1]),
            micros(p99[0]),
            micros(p99[1]),
        ))
    })
}

type Figure = fn(&Report) -> f64;

fn plot(
    title: String,
    y_label: &str,
    y: Kind,
    cells: &[&Cell],
    figures: &[(Figure, &str)],
) -> Plot {
    let mut plot = Plot::new(title, ("connections", Kind::Log2), (y_label, y));
    for (model, name) in ["coroutines", "threads"].into_iter().enumerate() {
        for (i, (figure, suffix)) in figures.iter().enumerate() {
            let look = if i == 0 { Look::Line } else { Look::Dashed };
            let point = |c: &&Cell| (c.connections as f64, c.figure(model, figure));
            let name = format!("{name}{suffix}");
            plot.add(name, look, COLOURS[model], cells.iter().map(point));
        }
    }
    plot
}

fn latency_plot(title: String, cells: &[&Cell]) -> Plot {
    let figures: [(Figure, &str); 2] = [
        (|r| r.total.p50 / 1e3, ", p50"),
        (|r| r.total.p99 / 1e3, ", p99"),
    ];
    plot(title, "latency, ms", Kind::Log10, cells, &figures)
}

fn table(title: &str, cells: &[Cell]) -> Table {
    let heads = [
        "n", "conns", "req/s co", "req/s th", "co/th", "?p50 co", "?p50 th", "p99 co", "p99 th",
        "CPU co", "CPU th",
    ];
    let mut table = Table::new(title, &heads);
    for cell in cells {
        let [coroutines, threads] = cell.rates();
        let both = |figure: Figure| [0, 1].map(|model| micros(cell.figure(model, figure)));
        let mut row = vec![
            cell.size.to_string(),
            cell.connections.to_string(),
            grouped(coroutines),
            grouped(threads),
            factor(coroutines, threads),
        ];
        row.extend(both(|r| r.total.p50));
        row.extend(both(|r| r.total.p99));
        row.extend(both(Report::server_cpu));
        table.row(row);
    }
    table
}

fn commands(bench: &Bench, grid: &Grid) -> Vec<String> {
    let list = |values: &[usize]| {
        values
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(" ")
    };
    let server = super::bench::server_flags(&bench.placement.server).join(" ");
    let client = bench.placement.client_flag();
    let load = |pace: &str, warmup: Duration, duration: Duration| {
        format!(
            "    upshift load matrix --connect 127.0.0.1:7000 --connections $C --size $N{pace} \\\n      --warmup {}ms --duration {}ms{client} --server-pid $SERVER",
            warmup.as_millis(),
            duration.as_millis()
        )
    };
    vec![
        "for MODEL in coroutine thread; do".into(),
        format!(
            "  upshift matrix-server --listen 127.0.0.1:7000 --model $MODEL {server} & SERVER=$!; sleep 1"
        ),
        format!(
            "  for N in {}; do for C in {}; do",
            list(grid.sizes),
            list(grid.connections)
        ),
        load("", grid.warmup, grid.duration),
        format!(
            "  done; done; N={OPEN_SIZE}; for C in {}; do",
            list(grid.open)
        ),
        load(" --period 100ms", grid.open_warmup, grid.open_duration),
        "  done; kill $SERVER; wait $SERVER".into(),
        "done".into(),
    ]
}
