//! The plots of `docs/scale.md`: one line per number of vCPUs, the ideal machine in a pale one.

use std::error::Error;
use std::path::Path;

use plotters::prelude::*;

use crate::scale::Point;

const COLOURS: [RGBColor; 4] = [
    RGBColor(27, 94, 168),
    RGBColor(200, 80, 30),
    RGBColor(40, 140, 80),
    RGBColor(130, 60, 150),
];

/// Draws `figure` of all points over the load, to a file.
///
/// # Errors
/// What writing the file meets.
pub fn draw(
    points: &[Point],
    title: &str,
    figure: impl Fn(&(f64, f64, f64)) -> f64,
    to: &Path,
) -> Result<(), Box<dyn Error>> {
    let of = |point: &Point| [figure(&point.core), figure(&point.ideal)];
    let most = points.iter().flat_map(of).fold(1.0, f64::max);
    let area = SVGBackend::new(to, (720, 400)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(56)
        .build_cartesian_2d(0.5..1.2, 0.0..most * 1.05)?;
    chart
        .configure_mesh()
        .x_desc("load: offered work over capacity")
        .y_desc("µs")
        .light_line_style(WHITE)
        .draw()?;
    for (machine, colour) in [2, 8, 32, 128].into_iter().zip(COLOURS) {
        let line = |figures: fn(&Point) -> &(f64, f64, f64)| {
            let machine = points.iter().filter(move |point| point.vcpus == machine);
            machine
                .map(|point| (point.load, figure(figures(point))))
                .collect::<Vec<_>>()
        };
        chart.draw_series(LineSeries::new(line(|point| &point.ideal), colour.mix(0.3)))?;
        chart
            .draw_series(LineSeries::new(
                line(|point| &point.core),
                colour.stroke_width(2),
            ))?
            .label(format!("{machine} vCPUs"))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperMiddle)
        .background_style(WHITE)
        .border_style(BLACK.mix(0.2))
        .draw()?;
    area.present()?;
    Ok(())
}
