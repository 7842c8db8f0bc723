//! The plots of the page, as the papers have them: throughput and latency over connections, a line for each
//! model; throughput, latency and jitter over levels, a line for each number of harts.

use std::fs;
use std::path::Path;

use upshift_trace::plot::{Kind, Look, Plot as Drawing, Series};

use super::plan;
use super::point::{Figures, MODELS, Point};

/// A line: its name, and its points.
type Line = (String, Vec<(f64, f64)>);

/// What a plot says about itself.
struct Plot<'a> {
    file: &'a str,
    title: String,
    x: &'a str,
    y: &'a str,
}

/// Draws all of them.
pub(crate) fn draw_all(points: &[Point], folder: &Path) -> Result<(), String> {
    for n in [1, 20] {
        let closed = |point: &&Point| {
            let load = point.load;
            load.period == 0 && load.n == n && load.harts == 1 && load.millis == plan::CLOSED
        };
        let plot = Plot {
            file: &format!("closed-{n}.svg"),
            title: format!("closed loop, {n} × {n}, one hart"),
            x: "connections",
            y: "thousands of instructions per request",
        };
        let lines = of_models(points, closed, |point| {
            Some(point.instructions()? as f64 / 1000.0)
        });
        draw(&plot, &lines, folder)?;
    }
    for period in [100, 50] {
        let open = |point: &&Point| {
            let load = point.load;
            load.period == period && load.n == 20 && load.harts == 1 && load.levels == 1
        };
        let plot = |file, y| Plot {
            file,
            title: format!("20 × 20 every {period} ms, one hart"),
            x: "connections",
            y,
        };
        let file = format!("throughput-{period}.svg");
        let lines = of_models(points, open, Point::rate);
        draw(&plot(&file, "answered in a second"), &lines, folder)?;
        let file = format!("latency-{period}.svg");
        let lines = of_models(points, open, |point| {
            Some(point.figures.first()?.mean as f64 / 1000.0)
        });
        draw(&plot(&file, "mean latency, ms"), &lines, folder)?;
    }
    for (name, y, figure) in PRIORITIES {
        for (model, model_name) in [(0, "kcuc"), (3, "ktut")] {
            let plot = Plot {
                file: &format!("levels-{name}-{model_name}.svg"),
                title: format!(
                    "{}: {} connections, 8 levels, every {} ms",
                    MODELS[model],
                    plan::PRIORITY_CONNECTIONS,
                    plan::PRIORITY_PERIOD
                ),
                x: "level, 0: most urgent",
                y,
            };
            draw(&plot, &of_harts(points, model, figure), folder)?;
        }
    }
    Ok(())
}

/// Of a level: what is drawn, its unit, and the figure.
type OfLevel = (&'static str, &'static str, fn(&Figures) -> f64);

const PRIORITIES: [OfLevel; 3] = [
    ("throughput", "answered in a second", |figures| {
        figures.count as f64 * 1000.0 / f64::from(plan::OPEN)
    }),
    ("latency", "mean latency, ms", |figures| {
        figures.mean as f64 / 1000.0
    }),
    ("jitter", "standard deviation of latency, ms", |figures| {
        figures.deviation as f64 / 1000.0
    }),
];

/// A line over connections for each model.
fn of_models(
    points: &[Point],
    wanted: impl Fn(&&Point) -> bool,
    figure: impl Fn(&Point) -> Option<f64>,
) -> Vec<Line> {
    let line = |(model, name): (usize, &&str)| {
        let of_model = points.iter().filter(|point| point.load.model == model);
        let points = of_model
            .filter(&wanted)
            .filter_map(|point| Some((f64::from(point.load.connections), figure(point)?)));
        ((*name).to_owned(), points.collect())
    };
    MODELS.iter().enumerate().map(line).collect()
}

/// A line over levels for each number of harts; levels without replies are left out.
fn of_harts(points: &[Point], model: usize, figure: fn(&Figures) -> f64) -> Vec<Line> {
    let line = |harts: u32| {
        let wanted = |point: &&Point| {
            point.load.levels == 8
                && point.load.n == 20
                && point.load.harts == harts
                && point.load.model == model
        };
        let levels = points
            .iter()
            .find(wanted)
            .map_or(&[][..], |point| point.figures.get(1..).unwrap_or_default());
        let answered = levels
            .iter()
            .enumerate()
            .filter(|(_, level)| level.count > 0);
        let points = answered.map(|(at, level)| (at as f64, figure(level)));
        let name = match harts {
            1 => "1 hart".to_owned(),
            _ => format!("{harts} harts"),
        };
        (name, points.collect())
    };
    plan::HARTS.map(line).into()
}

fn draw(plot: &Plot<'_>, lines: &[Line], folder: &Path) -> Result<(), String> {
    let series = |(colour, (name, points)): (usize, &Line)| Series {
        name: name.clone(),
        points: points.clone(),
        colour,
        look: Look::Line,
    };
    let drawing = Drawing {
        title: plot.title.clone(),
        x_label: plot.x.into(),
        y_label: plot.y.into(),
        x: Kind::Linear,
        y: Kind::Linear,
        groups: Vec::new(),
        series: lines.iter().enumerate().map(series).collect(),
        palette: 'c',
    };
    let file = folder.join(plot.file);
    fs::write(&file, drawing.file()).map_err(|error| format!("{}: {error}", file.display()))
}
