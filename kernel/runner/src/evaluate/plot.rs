//! Draws the plots of the page, as in the papers: throughput and latency over connections, a line
//! for each model. The plots over levels are drawn at saturation (`saturation`).

use std::fs;
use std::path::Path;

use upshift_report::plot::COLOURS;
use upshift_report::{Kind, Plot, SeriesStyle};

use super::plan;
use super::point::{Load, MODELS, Point};

pub(crate) fn draw_all(points: &[Point], folder: &Path) -> Result<(), String> {
    let draw = |file: String, plot: Plot| {
        let file = folder.join(file);
        fs::write(&file, plot.svg()).map_err(|error| format!("{}: {error}", file.display()))
    };
    for n in [1, 20] {
        let wanted = |load: &Load| {
            load.period == 0 && load.n == n && load.harts == 1 && load.millis == plan::CLOSED_MILLIS
        };
        let title = format!("closed loop, {n} × {n}, one hart");
        let y = "thousands of instructions per request";
        let figure = |point: &Point| Some(point.instructions()? as f64 / 1000.0);
        let plot = by_connections(points, title, y, wanted, figure);
        draw(format!("closed-{n}.svg"), plot)?;
    }
    Ok(())
}

fn by_connections(
    points: &[Point],
    title: String,
    y: &str,
    wanted: impl Fn(&Load) -> bool,
    figure: impl Fn(&Point) -> Option<f64>,
) -> Plot {
    let x = ("connections", Kind::Linear);
    let mut plot = Plot::new(title, x, (y, Kind::Linear));
    for (model, name) in MODELS.into_iter().enumerate() {
        let is_wanted = |load: &Load| load.model == model && wanted(load);
        let points = points.iter().filter(|point| is_wanted(&point.load));
        let points =
            points.filter_map(|point| Some((f64::from(point.load.connections), figure(point)?)));
        plot.add(name, SeriesStyle::Line, COLOURS[model], points);
    }
    plot
}
