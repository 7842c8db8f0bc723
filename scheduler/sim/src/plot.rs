//! The plots of `docs/scale.md`: one line per number of vCPUs, the ideal machine in a dashed one.

use std::io;
use std::path::Path;

use upshift_trace::plot::{Kind, Look, Plot, Series};

use crate::scale::Point;

/// Draws `figure` of all points over the load, to a file.
///
/// # Errors
/// What writing the file meets.
pub fn draw(
    points: &[Point],
    title: &str,
    figure: impl Fn(&(f64, f64, f64)) -> f64,
    to: &Path,
) -> io::Result<()> {
    let mut series = Vec::new();
    for (colour, vcpus) in [2, 8, 32, 128].into_iter().enumerate() {
        let line = |figures: fn(&Point) -> &(f64, f64, f64)| {
            let machine = points.iter().filter(move |point| point.vcpus == vcpus);
            machine
                .map(|point| (point.load, figure(figures(point))))
                .collect::<Vec<_>>()
        };
        series.push(Series {
            name: String::new(),
            points: line(|point| &point.ideal),
            colour,
            look: Look::DashedCurve,
        });
        series.push(Series {
            name: format!("{vcpus} vCPUs"),
            points: line(|point| &point.core),
            colour,
            look: Look::Curve,
        });
    }
    let plot = Plot {
        title: title.into(),
        x_label: "load: offered work over capacity".into(),
        y_label: "µs".into(),
        x: Kind::Range,
        y: Kind::Linear,
        groups: Vec::new(),
        series,
        palette: 'c',
    };
    std::fs::write(to, plot.file())
}
