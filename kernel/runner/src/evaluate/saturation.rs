//! Draws the papers' figures at saturation: throughput and latency of coroutines and threads over
//! connections, and several levels on several numbers of harts. The clocks are so slow that
//! connections request more than the harts can answer.

use std::fs;
use std::path::Path;

use upshift_report::plot::{COLOURS, LEVELS};
use upshift_report::{Kind, Plot, SeriesStyle, Table};

use super::plan::{self, CLOCKS, COMPARED, FEW, FEW_OF_4, LEVELS_8, PERIODS, RAW_LEVELS};
use super::point::{Figures, Load, MODELS, Point};
use super::published;

/// Percentiles of [`Figures`].
const PERCENTILES: [f64; 6] = [25.0, 50.0, 75.0, 90.0, 99.0, 99.9];

fn find<'a>(points: &'a [Point], load: &Load) -> Option<&'a Point> {
    points.iter().find(|point| point.load == *load)
}

/// Returns the points of a figure over connections, in their order.
fn over_connections(
    points: &[Point],
    model: usize,
    n: u32,
    period: u32,
) -> impl Iterator<Item = (u32, &Point)> {
    let is_wanted = move |load: &Load| {
        (load.model, load.n, load.period, load.levels) == (model, n, period, 1) && load.harts == 1
    };
    let wanted = points.iter().filter(move |point| is_wanted(&point.load));
    wanted.map(|point| (point.load.connections, point))
}

/// Returns the orders of the matrices that have points with this period, ascending.
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
        let latency = |name, figure| over_connections_in_ms(points, period, &title, name, figure);
        let mean = latency("mean latency, ms", |all| all.mean);
        plots.push((format!("saturated-latency-{period}.svg"), mean));
        let jitter = latency("standard deviation of latency, ms", |all| all.deviation);
        plots.push((format!("saturated-jitter-{period}.svg"), jitter));
    }
    for model in COMPARED {
        let name = MODELS[model].to_lowercase();
        for (figure_name, y, figure) in LEVEL_FIGURES {
            if let Some(plot) = by_levels(points, model, y, figure) {
                plots.push((format!("saturated-levels-{figure_name}-{name}.svg"), plot));
            }
        }
        for (group, shape) in [("8", LEVELS_8), ("few-8", FEW), ("few-4", FEW_OF_4)] {
            for &harts in shape.harts {
                let point = self::find(points, &shape.load(model, harts));
                if let Some(point) = point.filter(|point| !point.figures.is_empty()) {
                    let file = format!("saturated-distribution-{group}-{harts}-{name}.svg");
                    plots.push((file, distribution(point)));
                }
            }
        }
    }
    plots
}

/// Adds a line for each model and order.
fn lines(plot: &mut Plot, points: &[Point], period: u32, figure: impl Fn(&Point) -> Option<f64>) {
    for (n, colour) in orders(points, period).into_iter().zip(LEVELS) {
        for (model, style) in COMPARED
            .into_iter()
            .zip([SeriesStyle::Line, SeriesStyle::Dashed])
        {
            let all = over_connections(points, model, n, period);
            let line = all.filter_map(|(count, point)| Some((f64::from(count), figure(point)?)));
            plot.add(format!("{} {n} × {n}", MODELS[model]), style, colour, line);
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

fn over_connections_in_ms(
    points: &[Point],
    period: u32,
    title: &str,
    name: &str,
    figure: fn(&Figures) -> u64,
) -> Plot {
    let (x, y) = (("connections", Kind::Linear), (name, Kind::Log10));
    let mut plot = Plot::new(title, x, y);
    // A logarithmic axis has no zero, and one connection has no jitter.
    let millis = |point: &Point| {
        let micros = figure(point.figures.first()?);
        (micros > 0).then_some(micros as f64 / 1000.0)
    };
    lines(&mut plot, points, period, millis);
    plot
}

/// A figure of a level: the name of its plot, its axis, and its value.
type LevelFigure = (&'static str, (&'static str, Kind), fn(&Figures) -> f64);

const LEVEL_FIGURES: [LevelFigure; 3] = [
    (
        "throughput",
        ("answered in a second", Kind::Linear),
        |figures| figures.count as f64 * 1000.0 / f64::from(plan::SATURATED_MILLIS),
    ),
    ("latency", ("mean latency, ms", Kind::Log10), |figures| {
        figures.mean as f64 / 1000.0
    }),
    (
        "jitter",
        ("standard deviation of latency, ms", Kind::Log10),
        |figures| figures.deviation as f64 / 1000.0,
    ),
];

/// Returns a plot with a line over levels for each number of harts, without levels that have no
/// replies; `None` if no point was measured.
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
        let Some(point) = find(points, &shape.load(model, harts)) else {
            continue;
        };
        let levels = point.figures.iter().skip(1).enumerate();
        let answered = levels.filter(|(_, level)| level.count > 0);
        let line = answered.map(|(at, level)| (at as f64, figure(level)));
        let s = if harts == 1 { "" } else { "s" };
        plot.add(format!("{harts} hart{s}"), SeriesStyle::Line, colour, line);
    }
    (!plot.series.is_empty()).then_some(plot)
}

/// Minimum number of replies of a level whose distribution is drawn.
const MIN_REPLIES: u64 = 10;

/// Returns a plot of the latencies of each level by percentile, on a logarithmic axis.
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
    for ((level, figures), colour) in
        levels.filter(|((_, figures), _)| figures.count >= MIN_REPLIES)
    {
        let line = PERCENTILES.into_iter().zip(percentiles(figures));
        let line = line.map(|(percentile, micros)| (percentile / 100.0, micros as f64));
        plot.add(format!("level {level}"), SeriesStyle::Line, colour, line);
    }
    plot
}

pub(crate) fn page(folder: &str, points: &[Point], commit: &str, spinning: &str) -> String {
    if points.is_empty() {
        return String::new();
    }
    let plots = plots(points);
    let images = |part: &str| {
        let wanted = plots.iter().filter(|(file, _)| file.contains(part));
        let images = wanted.map(|(file, plot)| format!("![{}]({folder}/{file})\n\n", plot.title()));
        images.collect::<String>()
    };
    let mut page = format!(
        "## At saturation\n\nWith a slower clock connections ask for more than harts do, as on the papers' processor of 100 MHz: an instruction takes as long as \
         each table says, and the network and the clients share the harts. {} ms are measured. The points are in [`points-saturation.csv`]({folder}/points-saturation.csv), commit `{commit}`.\n\n",
        plan::SATURATED_MILLIS
    );
    page += &one_hart(points);
    for period in PERIODS {
        page += &images(&format!("-{period}.svg"));
    }
    page += &scaling(points, spinning);
    for (title, shape, part) in [
        ("8 levels on 1 to 4 harts", LEVELS_8, "-8"),
        ("8 connections of 8 levels", FEW, "-few-8"),
        ("8 connections of 4 levels", FEW_OF_4, "-few-4"),
    ] {
        page += &levels(points, title, shape);
        if part == "-8" {
            page += &images("saturated-levels");
        }
        page += &images(&format!("distribution{part}-"));
    }
    page + &raw_connections(points) + &raw_levels(points)
}

/// Formats a cell of a table; a cell without a point is `–`.
fn or_none(cell: Option<String>) -> String {
    cell.unwrap_or("–".to_owned())
}

/// Returns the share of counted instructions that a model on a number of harts spends in spin
/// loops.
fn spinning_of(file: &str, model: usize, harts: u32) -> Option<String> {
    let start = format!("{},{harts},", MODELS[model]);
    let line = file.lines().find_map(|line| line.strip_prefix(&start))?;
    let (all, spinning) = line.split_once(',')?;
    let (all, spinning): (f64, f64) = (all.parse().ok()?, spinning.parse().ok()?);
    Some(format!("{:.1} %", spinning * 100.0 / all.max(1.0)))
}

/// Returns a table of closed loops on several harts: instructions, replies relative to one hart,
/// and the share of spin loops.
fn scaling(points: &[Point], spinning: &str) -> String {
    let title = format!(
        "### Several harts\n\nClosed loop, 20 × 20, {} connections: instructions of all harts for a request, answers for each of one hart in the same time, and the share of \
         instructions that wait in spin loops (counted over 128 requests).",
        plan::SCALING_CONNECTIONS
    );
    let heads = ["<harts", "KCUC", "KTUT", "answers, KCUC", "answers, KTUT"];
    let heads = [&heads[..], &["spinning, KCUC", "spinning, KTUT"]].concat();
    let mut table = Table::new(title, &heads);
    let mut is_empty = true;
    let cost = |model, harts| find(points, &plan::scaling(model, harts))?.instructions();
    for harts in plan::SCALING_HARTS {
        let cost_of = COMPARED.map(|model| cost(model, harts));
        is_empty &= cost_of == [None; 2];
        let ratio = |model| {
            let (one, all) = (cost(model, 1)?, cost(model, harts)?);
            let ratio = one as f64 * f64::from(harts) / all as f64;
            Some(format!("{ratio:.2} ×"))
        };
        let costs = cost_of.map(|cost| cost.map(|cost| cost.to_string()));
        let cells = costs.into_iter().chain(COMPARED.map(ratio));
        let spun = COMPARED.map(|model| spinning_of(spinning, model, harts));
        let cells = cells.chain(spun).map(or_none);
        table.row(std::iter::once(harts.to_string()).chain(cells));
    }
    if is_empty {
        String::new()
    } else {
        table.markdown()
    }
}

/// Share of answered requests that counts as all, because a few requests are in progress when the
/// time ends.
const ANSWERED_SHARE: f64 = 0.95;

/// Returns a table with the knee, the maximum and the end of the throughput over connections, on
/// one hart.
fn one_hart(points: &[Point]) -> String {
    let title = "### Coroutines against threads\n\nOne hart. In each cell: KCUC / KTUT. *All answered up to*: the most connections that are answered as often as they ask (at least 95 %); then \
                 the most replies in a second, those of 128 connections, and the mean latency of one connection in ms.";
    let heads = ["<order, period", "an instruction", "all answered up to"];
    let heads = [
        &heads[..],
        &["most", "of 128", "KCUC to KTUT, of 128", "latency of 1"],
    ]
    .concat();
    let mut table = Table::new(title, &heads);
    let all = PERIODS
        .into_iter()
        .flat_map(|period| orders(points, period).into_iter().map(move |n| (n, period)));
    for (n, period) in all {
        let both = |figure: &dyn Fn(usize) -> Option<String>| {
            let cells = COMPARED.map(figure).map(or_none);
            cells.join(" / ")
        };
        let line = |model| over_connections(points, model, n, period);
        let rates = |model| line(model).filter_map(|(count, point)| Some((count, point.rate()?)));
        let rate_of = |model, wanted| {
            let mut rates = rates(model);
            rates
                .find(|(count, _)| *count == wanted)
                .map(|(_, rate)| rate)
        };
        let asked = |count: u32| f64::from(count) * 1000.0 / f64::from(period);
        let knee = |model| {
            let answered =
                rates(model).filter(|(count, rate)| *rate >= ANSWERED_SHARE * asked(*count));
            answered.map(|(count, _)| count).max()
        };
        let max_rate = |model| {
            let max_rate = rates(model).max_by(|(_, a), (_, b)| a.total_cmp(b));
            max_rate.map(|(_, rate)| format!("{rate:.0}"))
        };
        let latency = |model| {
            let (_, point) = line(model).find(|(count, _)| *count == 1)?;
            let mean = point.figures.first()?.mean;
            Some(format!("{:.2}", mean as f64 / 1000.0))
        };
        let nanos = line(0).next().map(|(_, point)| 1 << point.load.shift);
        let last = |model| rate_of(model, 128);
        let ratio = last(0).zip(last(3)).map(|(ours, threads)| ours / threads);
        table.row([
            format!("{n} × {n}, {period} ms"),
            or_none(nanos.map(|nanos: u32| format!("{nanos} ns"))),
            both(&|model| knee(model).map(|count| count.to_string())),
            both(&max_rate),
            both(&|model| last(model).map(|rate| format!("{rate:.0}"))),
            or_none(ratio.map(|ratio| format!("{ratio:.2} ×"))),
            both(&latency),
        ]);
    }
    table.markdown()
}

/// Returns a table with the replies and the mean latency of each level.
fn levels(points: &[Point], title: &str, shape: plan::Levels) -> String {
    let columns: Vec<(u32, usize)> = shape
        .harts
        .iter()
        .flat_map(|&harts| COMPARED.map(|model| (harts, model)))
        .collect();
    let load = |&(harts, model): &(u32, usize)| shape.load(model, harts);
    if columns.iter().all(|at| find(points, &load(at)).is_none()) {
        return String::new();
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
    let title = format!(
        "### {title}\n\n{connections} connections, the same number at each level, {n} × {n}, every {period} ms: {asked} requests per second at each level. An instruction in {} ns. \
         Replies per second; mean latency in ms; levels without replies are left out; –: not measured.",
        1 << shift
    );
    let heads = columns
        .iter()
        .map(|(harts, model)| format!("{}, {harts}", MODELS[*model]));
    let heads: Vec<String> = std::iter::once("<level".to_owned()).chain(heads).collect();
    let mut table = Table::new(title, &heads);
    for level in 0..levels as usize {
        let cell = |at: &(u32, usize)| {
            let figures = find(points, &load(at))?.figures.get(1 + level)?;
            let rate = figures.count as f64 * 1000.0 / f64::from(plan::SATURATED_MILLIS);
            Some(match figures.count {
                0 => "0".to_owned(),
                _ => format!("{rate:.0}; {:.1}", figures.mean as f64 / 1000.0),
            })
        };
        let cells: Vec<String> = columns.iter().map(cell).map(or_none).collect();
        if cells
            .iter()
            .any(|cell| !["0", "–"].contains(&cell.as_str()))
        {
            table.row(std::iter::once(level.to_string()).chain(cells));
        }
    }
    table.markdown()
}

/// Returns a table of the raw data over connections, beside measured points of the same shape.
fn raw_connections(points: &[Point]) -> String {
    let (n, period) = (plan::RAW_ORDER, plan::RAW_PERIOD);
    let title = format!(
        "## The raw data beside ours\n\nPublished: the raw data in the repository of the papers' code, from an FPGA with 4 harts at 100 MHz, {n} × {n}, every {period} ms, 5 s, with the client on \
         another machine. Ours: one hart, 16 ns for an instruction. Replies per second: published / ours.",
    );
    let heads: Vec<&str> = std::iter::once("<connections").chain(MODELS).collect();
    let mut table = Table::new(title, &heads);
    for (connections, rates) in published::THROUGHPUT {
        let cell = |model: usize| {
            let theirs = rates[model].map_or("fails".to_owned(), |rate| format!("{rate:.0}"));
            let mut line = over_connections(points, model, n, period);
            let ours = line.find(|(count, _)| *count == connections);
            let ours = ours.and_then(|(_, point)| point.rate());
            let ours = or_none(ours.map(|rate| format!("{rate:.0}")));
            format!("{theirs} / {ours}")
        };
        let cells = (0..MODELS.len()).map(cell);
        table.row(std::iter::once(connections.to_string()).chain(cells));
    }
    table.markdown()
}

/// Returns a table of the raw data on levels, beside measured points of the same shape.
fn raw_levels(points: &[Point]) -> String {
    let plan::Levels {
        connections,
        levels,
        period,
        ..
    } = RAW_LEVELS;
    let title = format!(
        "{connections} connections of {levels} levels, every {period} ms, KCUC: replies per second at each level, and mean latency of the first and the last level in ms."
    );
    let heads = ["<harts", "0", "1", "2", "3", "4", "5", "6", "7"];
    let heads = [&heads[..], &["of 0", "of 7"]].concat();
    let mut table = Table::new(title, &heads);
    let theirs = published::PRIORITIES.into_iter().zip(published::LATENCY);
    for ((harts, rates), (_, first, last)) in theirs {
        let row = std::iter::once(format!("{harts}, published"));
        let row = row.chain(rates.map(|rate| format!("{rate:.0}")));
        table.row(row.chain([first.to_string(), last.to_string()]));
        let Some(point) = find(points, &RAW_LEVELS.load(0, harts)) else {
            continue;
        };
        let ours = &point.figures[1..];
        let seconds = f64::from(plan::SATURATED_MILLIS) / 1000.0;
        let rates = ours
            .iter()
            .map(|level| format!("{:.0}", level.count as f64 / seconds));
        let mean = |level: Option<&Figures>| {
            let level = level.filter(|level| level.count > 0);
            or_none(level.map(|level| format!("{:.1}", level.mean as f64 / 1000.0)))
        };
        let row = std::iter::once(format!("{harts}, ours")).chain(rates);
        table.row(row.chain([mean(ours.first()), mean(ours.last())]));
    }
    table.markdown()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a point for each load of the plan, with the same figures.
    fn all() -> Vec<Point> {
        let figures = |group: u32| Figures {
            group: group.to_string(),
            count: 100,
            mean: 2_000,
            median: 1_500,
            p99: 9_000,
            deviation: 500,
            pages: 6,
            spread: [1_000, 2_500, 4_000, 12_000],
            nanos: 5_000_000,
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
        let page = page("folder", &points, "commit", "KCUC,4,200,5\n");
        for file in plots(&points).iter().map(|(file, _)| file) {
            let link = format!("(folder/{file})");
            assert_eq!(page.matches(&link).count(), 1, "{file}");
        }
        for part in [
            "| 8 × 8, 100 ms | 32 ns | 8 / 8 | 100 / 100 |",
            "| 20 × 20, 50 ms |",
            "| 4 | 5000000 | 5000000 | 4.00 × | 4.00 × | 2.5 % | – |",
            "| 4, ours | 100 |",
        ] {
            assert!(page.contains(part), "{part} is missing in {page}");
        }
        assert!(super::page("folder", &[], "commit", "").is_empty());
    }

    #[test]
    fn plots_have_no_style_sheet() {
        for (file, plot) in plots(&all()) {
            let svg = plot.svg();
            assert!(!svg.contains("var(") && !svg.contains("<style"), "{file}");
        }
    }
}
