//! The papers' figures at saturation: throughput and latency of coroutines against threads over connections, and several
//! levels on several numbers of harts, by clocks so slow that connections ask for more than harts do.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use upshift_report::plot::{COLOURS, LEVELS};
use upshift_report::{Kind, Look, Plot, Table};

use super::plan::{self, CLOCKS, COMPARED, FEW, FEW_OF_4, LEVELS_8, PERIODS};
use super::point::{Figures, Load, MODELS, Point};

/// Percentiles of [`Figures`].
const SHARES: [f64; 6] = [25.0, 50.0, 75.0, 90.0, 99.0, 99.9];

fn of<'a>(points: &'a [Point], load: &Load) -> Option<&'a Point> {
    points.iter().find(|point| point.load == *load)
}

/// The points of a figure over connections, in their order.
fn over_connections(
    points: &[Point],
    model: usize,
    n: u32,
    period: u32,
) -> impl Iterator<Item = (u32, &Point)> {
    let is_it = move |load: &Load| {
        (load.model, load.n, load.period, load.levels) == (model, n, period, 1) && load.harts == 1
    };
    let wanted = points.iter().filter(move |point| is_it(&point.load));
    wanted.map(|point| (point.load.connections, point))
}

/// The orders of the matrices that have points with this period, ascending.
fn orders(points: &[Point], period: u32) -> Vec<u32> {
    let mut orders: Vec<u32> = CLOCKS.map(|(n, _)| n).into();
    orders.retain(|n| over_connections(points, 0, *n, period).next().is_some());
    orders.sort_unstable();
    orders
}

fn percentiles(figures: &Figures) -> [u64; 6] {
    let [p25, p75, p90, p999] = figures.spread;
    [p25, figures.median, p75, p90, figures.p99, p999]
}

/// Draws all figures that have points.
pub(crate) fn draw(points: &[Point], folder: &Path) -> Result<(), String> {
    for (file, plot) in plots(points) {
        let file = folder.join(file);
        fs::write(&file, plot.svg()).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    Ok(())
}

fn plots(points: &[Point]) -> Vec<(String, Plot)> {
    let mut plots = Vec::new();
    for period in PERIODS {
        if orders(points, period).is_empty() {
            continue;
        }
        let title = format!("one hart, every {period} ms");
        let rate = throughput(points, period, &title);
        plots.push((format!("saturated-throughput-{period}.svg"), rate));
        let latency = latency(points, period, &title);
        plots.push((format!("saturated-latency-{period}.svg"), latency));
    }
    for model in COMPARED {
        let name = MODELS[model].to_lowercase();
        for (what, y, figure) in OF_LEVEL {
            if let Some(plot) = by_levels(points, model, y, figure) {
                plots.push((format!("saturated-levels-{what}-{name}.svg"), plot));
            }
        }
        for (of, shape) in [("8", LEVELS_8), ("few-8", FEW), ("few-4", FEW_OF_4)] {
            for &harts in shape.harts {
                if let Some(point) = self::of(points, &shape.load(model, harts)) {
                    let file = format!("saturated-distribution-{of}-{harts}-{name}.svg");
                    plots.push((file, distribution(point)));
                }
            }
        }
    }
    plots
}

/// A line for each model and order.
fn lines(plot: &mut Plot, points: &[Point], period: u32, figure: impl Fn(&Point) -> Option<f64>) {
    for (n, colour) in orders(points, period).into_iter().zip(LEVELS) {
        for (model, look) in COMPARED.into_iter().zip([Look::Line, Look::Dashed]) {
            let all = over_connections(points, model, n, period);
            let line = all.filter_map(|(count, point)| Some((f64::from(count), figure(point)?)));
            plot.add(format!("{} {n} × {n}", MODELS[model]), look, colour, line);
        }
    }
}

fn throughput(points: &[Point], period: u32, title: &str) -> Plot {
    let (x, y) = (
        ("connections", Kind::Linear),
        ("answered in a second", Kind::Linear),
    );
    let mut plot = Plot::new(title, x, y);
    lines(&mut plot, points, period, Point::rate);
    plot
}

fn latency(points: &[Point], period: u32, title: &str) -> Plot {
    let (x, y) = (
        ("connections", Kind::Linear),
        ("mean latency, ms", Kind::Log10),
    );
    let mut plot = Plot::new(title, x, y);
    let mean = |point: &Point| Some(point.figures.first()?.mean as f64 / 1000.0);
    lines(&mut plot, points, period, mean);
    plot
}

/// Of a level: the name of its plot, the unit, and the figure.
type OfLevel = (&'static str, (&'static str, Kind), fn(&Figures) -> f64);

const OF_LEVEL: [OfLevel; 3] = [
    ("throughput", ("answered in a second", Kind::Linear), |it| {
        it.count as f64 * 1000.0 / f64::from(plan::SATURATED)
    }),
    ("latency", ("mean latency, ms", Kind::Log10), |it| {
        it.mean as f64 / 1000.0
    }),
    (
        "jitter",
        ("standard deviation of latency, ms", Kind::Log10),
        |it| it.deviation as f64 / 1000.0,
    ),
];

/// A line over levels for each number of harts; levels without replies are left out.
fn by_levels(
    points: &[Point],
    model: usize,
    y: (&str, Kind),
    figure: fn(&Figures) -> f64,
) -> Option<Plot> {
    let shape = LEVELS_8;
    let title = format!(
        "{}: {} connections, every {} ms",
        MODELS[model], shape.connections, shape.period
    );
    let mut plot = Plot::new(title, ("level, 0: most urgent", Kind::Linear), y);
    for (&harts, colour) in shape.harts.iter().zip(COLOURS) {
        let Some(point) = of(points, &shape.load(model, harts)) else {
            continue;
        };
        let levels = point.figures.iter().skip(1).enumerate();
        let answered = levels.filter(|(_, level)| level.count > 0);
        let line = answered.map(|(at, level)| (at as f64, figure(level)));
        let s = if harts == 1 { "" } else { "s" };
        plot.add(format!("{harts} hart{s}"), Look::Line, colour, line);
    }
    (!plot.series.is_empty()).then_some(plot)
}

/// Latencies of each level by percentile, on a log axis.
fn distribution(point: &Point) -> Plot {
    let Load {
        model,
        connections,
        levels,
        harts,
        ..
    } = point.load;
    let s = if harts == 1 { "" } else { "s" };
    let title = format!(
        "{}: {connections} connections, {levels} levels, {harts} hart{s}",
        MODELS[model]
    );
    let mut plot = Plot::latencies(title);
    let levels = point.figures.iter().skip(1).enumerate().zip(LEVELS);
    for ((level, figures), colour) in levels.filter(|((_, figures), _)| figures.count > 0) {
        let line = SHARES.into_iter().zip(percentiles(figures));
        let line = line.map(|(share, micros)| (share / 100.0, micros as f64));
        plot.add(format!("level {level}"), Look::Line, colour, line);
    }
    plot
}

/// The section of the page.
pub(crate) fn page(folder: &str, points: &[Point], commit: &str) -> String {
    if points.is_empty() {
        return String::new();
    }
    let mut page = format!(
        "## At saturation\n\n`cargo xtask os -- evaluate --saturation`, commit `{commit}`. With a slower clock connections ask for more than harts do, as on the \
         papers' processor of 100 MHz: an instruction takes as long as each table says, and the network and the clients share the harts. The points are in \
         [`points-saturation.csv`]({folder}/points-saturation.csv).\n\n"
    );
    page += &scaling(points);
    for period in PERIODS {
        page += &one_hart(points, period);
    }
    for (title, shape) in [
        ("8 levels on 1 to 4 harts", LEVELS_8),
        ("8 connections of 8 levels", FEW),
        ("8 connections of 4 levels", FEW_OF_4),
    ] {
        page += &levels(points, title, shape);
    }
    for (file, plot) in plots(points) {
        let name = plot.title();
        let _ = write!(page, "![{name}]({folder}/{file})\n\n");
    }
    page
}

/// Answers of several harts for those of one, in a closed loop.
fn scaling(points: &[Point]) -> String {
    let title = format!(
        "### Several harts\n\nClosed loop, 20 × 20, {} connections: instructions of all harts for a request, and answers for each of one hart in the same time.",
        plan::SCALING_CONNECTIONS
    );
    let heads = ["<harts", "KCUC", "KTUT", "answers, KCUC", "answers, KTUT"];
    let mut table = Table::new(title, &heads);
    let mut is_empty = true;
    let cost = |model, harts| of(points, &plan::scaling(model, harts))?.instructions();
    for harts in plan::SCALING_HARTS {
        let cost_of = COMPARED.map(|model| cost(model, harts));
        is_empty &= cost_of == [None; 2];
        let ratio = |model| {
            let (one, all) = (cost(model, 1)?, cost(model, harts)?);
            Some(format!(
                "{:.2} ×",
                one as f64 * f64::from(harts) / all as f64
            ))
        };
        let costs = cost_of.map(|cost| cost.map(|cost| cost.to_string()));
        let cells = costs.into_iter().chain(COMPARED.map(ratio));
        let cells = cells.map(|cell| cell.unwrap_or("–".to_owned()));
        table.row(std::iter::once(harts.to_string()).chain(cells));
    }
    if is_empty {
        String::new()
    } else {
        table.markdown()
    }
}

/// Throughput and latency over connections, of one hart.
fn one_hart(points: &[Point], period: u32) -> String {
    let mut page = String::new();
    for n in orders(points, period) {
        let shift = over_connections(points, 0, n, period).next();
        let nanos = shift.map_or(1, |(_, point)| 1 << point.load.shift);
        let title = format!(
            "### {n} × {n}, every {period} ms\n\nOne hart, an instruction in {nanos} ns. Replies per second; mean latency and jitter in ms."
        );
        let heads = ["<connections", "KCUC", "KTUT", "KCUC to KTUT"];
        let mut table = Table::new(title, &heads);
        for (connections, ours) in over_connections(points, 0, n, period) {
            let mut others = over_connections(points, 3, n, period);
            let threads = others.find(|(count, _)| *count == connections);
            let threads = threads.map(|(_, point)| point);
            let cell = |point: Option<&Point>| {
                let (rate, all) = (point?.rate()?, point?.figures.first()?);
                let millis = |micros: u64| micros as f64 / 1000.0;
                let (mean, jitter) = (millis(all.mean), millis(all.deviation));
                Some(format!("{rate:.0}; {mean:.1}, {jitter:.1}"))
            };
            let rate = |point: Option<&Point>| point.and_then(Point::rate);
            let ratio = rate(Some(ours)).zip(rate(threads));
            let ratio = ratio.map(|(ours, threads)| format!("{:.2} ×", ours / threads));
            let cells = [cell(Some(ours)), cell(threads), ratio];
            let cells = cells.map(|cell| cell.unwrap_or("–".to_owned()));
            table.row(std::iter::once(connections.to_string()).chain(cells));
        }
        page += &table.markdown();
    }
    page
}

/// Replies and latencies of each level.
fn levels(points: &[Point], title: &str, shape: plan::Levels) -> String {
    let mut page = String::new();
    for &harts in shape.harts {
        let both = COMPARED.map(|model| of(points, &shape.load(model, harts)));
        if both.iter().all(Option::is_none) {
            continue;
        }
        let mut table = Table::new(format!("Harts: {harts}:"), &["<level", "KCUC", "KTUT"]);
        for level in 0..shape.levels as usize {
            let cell = |point: &Option<&Point>| {
                let figures = point.as_ref()?.figures.get(1 + level)?;
                let rate = figures.count as f64 * 1000.0 / f64::from(plan::SATURATED);
                let (mean, jitter) = (figures.mean, figures.deviation);
                let spread = percentiles(figures).map(|micros| micros.to_string());
                Some(match figures.count {
                    0 => "0".to_owned(),
                    _ => format!("{rate:.1}; {mean}, {jitter}; {}", spread.join(", ")),
                })
            };
            let cells = both.each_ref().map(cell);
            let cells = cells.map(|cell| cell.unwrap_or("–".to_owned()));
            table.row(std::iter::once(level.to_string()).chain(cells));
        }
        page += &table.markdown();
    }
    if page.is_empty() {
        return page;
    }
    let plan::Levels {
        connections,
        levels,
        n,
        period,
        shift,
        ..
    } = shape;
    let asked = connections * 1000 / period / levels;
    format!(
        "### {title}\n\n{connections} connections, the same number at each level, {n} × {n}, every {period} ms: {asked} requests per second at each level. An instruction in {} ns. \
         Replies per second; mean latency and jitter; percentiles 25, 50, 75, 90, 99 and 99.9, in µs.\n\n{page}",
        1 << shift
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A point of each load of the plan, with the same figures.
    fn all() -> Vec<Point> {
        let figures = |who: u32| Figures {
            who: who.to_string(),
            count: 100,
            mean: 2_000,
            median: 1_500,
            p99: 9_000,
            deviation: 500,
            pages: 6,
            spread: [1_000, 2_500, 4_000, 12_000],
            nanos: 220_000,
        };
        let point = |load: Load| Point {
            load,
            figures: (0..=load.levels).map(figures).collect(),
        };
        plan::saturation().into_iter().map(point).collect()
    }

    #[test]
    fn every_figure_of_the_papers_is_on_the_page() {
        let points = all();
        let page = page("folder", &points, "commit");
        for file in plots(&points).iter().map(|(file, _)| file) {
            assert!(page.contains(&format!("(folder/{file})")), "{file}");
        }
        for head in [
            "### 8 × 8, every 100 ms",
            "### 20 × 20, every 50 ms",
            "Harts: 3:",
        ] {
            assert!(page.contains(head), "{head} is missing in {page}");
        }
        assert!(
            page.contains("| 4 | 220000 | 220000 | 4.00 × | 4.00 × |"),
            "{page}"
        );
        assert!(super::page("folder", &[], "commit").is_empty());
    }

    #[test]
    fn plots_have_no_style_sheet() {
        for (file, plot) in plots(&all()) {
            let svg = plot.svg();
            assert!(!svg.contains("var(") && !svg.contains("<style"), "{file}");
        }
    }
}
