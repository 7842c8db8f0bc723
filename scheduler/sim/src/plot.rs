//! Draws the plots of `docs/scale.md`, with a solid line per number of vCPUs and a dashed line for
//! the ideal machine.

use std::io;
use std::path::Path;

use upshift_report::plot::COLOURS;
use upshift_report::{Kind, Plot, SeriesStyle};

use crate::scale::Point;

/// Plots `figure` of all points against the load, and writes the plot to the file `to`.
///
/// # Errors
/// Returns an error if the file cannot be written.
pub fn draw(
    points: &[Point],
    title: &str,
    figure: impl Fn(&(f64, f64)) -> f64,
    to: &Path,
) -> io::Result<()> {
    let x = ("load: offered work over capacity", Kind::Range);
    let mut plot = Plot::new(title, x, ("µs", Kind::Linear));
    for (vcpus, colour) in [2, 8, 32, 128].into_iter().zip(COLOURS) {
        let line = |figures: fn(&Point) -> &(f64, f64)| {
            let machine = points.iter().filter(move |point| point.vcpus == vcpus);
            let point = |point: &Point| (point.load, figure(figures(point)));
            machine.map(point).collect::<Vec<_>>()
        };
        plot.add(
            "",
            SeriesStyle::DashedCurve,
            colour,
            line(|point| &point.ideal),
        );
        let name = format!("{vcpus} vCPUs");
        plot.add(name, SeriesStyle::Curve, colour, line(|point| &point.core));
    }
    std::fs::write(to, plot.svg())
}
