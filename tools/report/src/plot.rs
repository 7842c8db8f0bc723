//! Draws plots as SVG: lines with markers over two axes, or groups of bars.
//!
//! Every colour and size is an attribute of its element, so a drawing looks the same in a browser,
//! in `rsvg-convert` and inside any page. Points that are not finite are left out. A drawing is 460
//! units wide, about the width of a phone, so its text stays readable.

use std::fmt::Write as _;

use crate::escape;
use crate::number::tick_label;
use crate::scale::{Kind, Scale};

/// Colours of series without an order.
pub const COLOURS: [&str; 4] = ["#1f6feb", "#d9730d", "#1a7f37", "#8250df"];
/// Colours of priority levels, the most urgent first.
pub const LEVELS: [&str; 8] = [
    "#b3123f", "#d6452b", "#e07b1a", "#b8960c", "#5f9c2e", "#1f9a80", "#2a7fc0", "#5b5fc7",
];
/// Colour of a series that stands in the background; also of axes and their labels.
pub const SOFT: &str = "#57606a";
/// Colour of a series that other series are compared with; also of titles.
pub const DARK: &str = "#1b1f24";
const GRID: &str = "#d5dae0";

/// Width of a drawing, in SVG units like all lengths here.
const WIDTH: f64 = 460.0;
/// Height of a drawing without its legend.
const HEIGHT: f64 = 300.0;
/// Left end of the axes.
const LEFT: f64 = 64.0;
/// Right end of the axes.
const RIGHT: f64 = WIDTH - 26.0;
/// Upper end of the vertical axis.
const TOP: f64 = 30.0;
/// Vertical position of the horizontal axis.
const BASE: f64 = HEIGHT - 48.0;
/// Height of a line in the legend, below the axis.
const LEGEND_LINE: f64 = 19.0;

/// The style of a series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeriesStyle {
    /// A line with a dot on each point.
    Line,
    /// A dashed line with a dot on each point.
    Dashed,
    /// A line without dots, for many points.
    Curve,
    /// A dashed line without dots.
    DashedCurve,
    /// A bar per point; x is the index of its group.
    Bar,
}

/// Named points in one colour.
#[derive(Debug, Clone)]
pub struct Series {
    /// Name in the legend; a series with an empty name is not in the legend.
    pub name: String,
    /// Style of the series.
    pub style: SeriesStyle,
    /// Colour, in SVG's notation.
    pub colour: &'static str,
    /// Finite x and y.
    pub points: Vec<(f64, f64)>,
}

/// A figure: two axes and series of points.
#[derive(Debug, Clone)]
pub struct Plot {
    title: String,
    x: (String, Kind),
    y: (String, Kind),
    /// Names of the groups in a bar plot; empty in other plots.
    groups: Vec<String>,
    /// Series in the order in which they are drawn.
    pub series: Vec<Series>,
}

/// The part of a text that is at its position.
#[derive(Clone, Copy)]
enum Anchor {
    Start,
    Middle,
    End,
}

impl Plot {
    /// Creates a figure without series. An axis is given by its label, with the unit, and its kind.
    #[must_use]
    pub fn new(title: impl Into<String>, x: (&str, Kind), y: (&str, Kind)) -> Plot {
        Plot {
            title: title.into(),
            x: (x.0.to_owned(), x.1),
            y: (y.0.to_owned(), y.1),
            groups: Vec::new(),
            series: Vec::new(),
        }
    }

    /// Returns the title.
    #[must_use]
    pub fn title(&self) -> &str {
        &self.title
    }

    /// Creates a figure of bars in named groups, without series.
    #[must_use]
    pub fn bars(
        title: impl Into<String>,
        x: &str,
        y: (&str, Kind),
        groups: impl IntoIterator<Item = impl ToString>,
    ) -> Plot {
        Plot {
            groups: groups.into_iter().map(|name| name.to_string()).collect(),
            ..Plot::new(title, (x, Kind::Linear), y)
        }
    }

    /// Creates a figure of latencies (µs, logarithmic) by percentile.
    #[must_use]
    pub fn latencies(title: impl Into<String>) -> Plot {
        let x = ("percentile of the replies", Kind::Quantile);
        Plot::new(title, x, ("latency, µs", Kind::Log10))
    }

    /// Adds points in one colour; a series without a name is not in the legend.
    pub fn add(
        &mut self,
        name: impl Into<String>,
        style: SeriesStyle,
        colour: &'static str,
        points: impl IntoIterator<Item = (f64, f64)>,
    ) {
        let is_finite = |point: &(f64, f64)| point.0.is_finite() && point.1.is_finite();
        self.series.push(Series {
            name: name.into(),
            style,
            colour,
            points: points.into_iter().filter(is_finite).collect(),
        });
    }

    /// Returns the drawing: an `<svg>` element, on white, that is also a file.
    #[must_use]
    pub fn svg(&self) -> String {
        let legend = self.legend_rows();
        let height = HEIGHT + LEGEND_LINE * legend.len() as f64;
        let about = format!("{}: {} against {}", self.title, self.y.0, self.x.0);
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
             aria-label=\"{}\" font-family=\"system-ui, 'DejaVu Sans', sans-serif\" font-size=\"14\">\n\
             <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n",
            escape(&about)
        );
        // A long title begins further left.
        let title_width = 9.4 * self.title.chars().count() as f64;
        let title_x = (WIDTH - 6.0 - title_width).clamp(6.0, LEFT);
        let attributes = format!("x=\"{title_x:.1}\" y=\"18\" font-weight=\"600\"");
        text(&mut out, &attributes, Anchor::Start, DARK, &self.title);
        let points = || self.series.iter().flat_map(|series| &series.points);
        let y = Scale::covering(self.y.1, points().map(|point| point.1));
        let x = Scale::covering(self.x.1, points().map(|point| point.0));
        for (value, name) in y.ticks(5) {
            let tick_y = y_at(&y, value);
            line(&mut out, &format!("M{LEFT} {tick_y:.1}H{RIGHT}"), GRID, 1.0);
            let attributes = format!("x=\"{:.1}\" y=\"{:.1}\"", LEFT - 6.0, tick_y + 4.0);
            text(&mut out, &attributes, Anchor::End, SOFT, &name);
        }
        line(&mut out, &format!("M{LEFT} {BASE}H{RIGHT}"), SOFT, 1.0);
        let below = BASE + 18.0;
        let mut tick = |tick_x: f64, name: &str| {
            let attributes = format!("x=\"{tick_x:.1}\" y=\"{below}\"");
            text(&mut out, &attributes, Anchor::Middle, SOFT, name);
        };
        for (index, name) in self.groups.iter().enumerate() {
            tick(LEFT + (index as f64 + 0.5) * self.group_width(), name);
        }
        if self.groups.is_empty() {
            for (value, name) in x.ticks(6) {
                tick(x_at(&x, value), &name);
            }
        }
        let attributes = format!("x=\"{:.1}\" y=\"{}\"", (LEFT + RIGHT) / 2.0, HEIGHT - 8.0);
        text(&mut out, &attributes, Anchor::Middle, SOFT, &self.x.0);
        let middle = (TOP + BASE) / 2.0;
        let attributes = format!("transform=\"translate(13 {middle}) rotate(-90)\"");
        text(&mut out, &attributes, Anchor::Middle, SOFT, &self.y.0);
        for (index, series) in self.series.iter().enumerate() {
            match series.style {
                SeriesStyle::Bar => self.draw_bars(&mut out, index, series, &y),
                _ => series.draw(&mut out, &x, &y),
            }
        }
        for (i, row) in legend.iter().enumerate() {
            let (mut x, y) = (LEFT, HEIGHT + 8.0 + LEGEND_LINE * i as f64);
            for series in row {
                series.draw_legend_entry(&mut out, x, y);
                x += series.legend_width();
            }
        }
        out + "</svg>\n"
    }

    fn group_width(&self) -> f64 {
        (RIGHT - LEFT) / self.groups.len().max(1) as f64
    }

    /// Draws the bars of a series; `index` is the position of the series in each group.
    fn draw_bars(&self, out: &mut String, index: usize, series: &Series, y: &Scale) {
        let width = self.group_width() * 0.76 / self.series.len() as f64;
        for point in &series.points {
            let left = LEFT + (point.0 + 0.12) * self.group_width() + index as f64 * width;
            let top = y_at(y, point.1);
            let _ = writeln!(
                out,
                "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\">\
                 <title>{}: {}</title></rect>",
                (width - 1.0).max(1.0),
                (BASE - top).max(0.0),
                series.colour,
                escape(&series.name),
                tick_label(point.1)
            );
        }
    }

    /// Returns the series, split into lines of the legend that fit the width.
    fn legend_rows(&self) -> Vec<Vec<&Series>> {
        let mut rows: Vec<Vec<&Series>> = Vec::new();
        let mut used = f64::INFINITY;
        for series in self.series.iter().filter(|series| !series.name.is_empty()) {
            used += series.legend_width();
            match rows.last_mut() {
                Some(row) if used <= WIDTH - LEFT => row.push(series),
                _ => {
                    rows.push(vec![series]);
                    used = series.legend_width();
                }
            }
        }
        rows
    }
}

impl Series {
    fn draw(&self, out: &mut String, x: &Scale, y: &Scale) {
        let position = |point: &(f64, f64)| (x_at(x, point.0), y_at(y, point.1));
        let mut path = String::new();
        for (i, (px, py)) in self.points.iter().map(position).enumerate() {
            let _ = write!(path, "{}{px:.1} {py:.1}", if i == 0 { 'M' } else { 'L' });
        }
        if !path.is_empty() {
            self.stroke(out, &path);
        }
        if matches!(self.style, SeriesStyle::Line | SeriesStyle::Dashed) {
            for (point, (px, py)) in self.points.iter().zip(self.points.iter().map(position)) {
                let _ = writeln!(
                    out,
                    "<circle cx=\"{px:.1}\" cy=\"{py:.1}\" r=\"3.2\" fill=\"{}\"><title>{}: {} at {}</title></circle>",
                    self.colour,
                    escape(&self.name),
                    tick_label(point.1),
                    tick_label(point.0)
                );
            }
        }
    }

    fn stroke(&self, out: &mut String, path: &str) {
        let is_dashed = matches!(self.style, SeriesStyle::Dashed | SeriesStyle::DashedCurve);
        let dash = if is_dashed {
            "\" stroke-dasharray=\"6 4"
        } else {
            ""
        };
        line(out, &format!("{path}{dash}"), self.colour, 2.2);
    }

    fn draw_legend_entry(&self, out: &mut String, x: f64, y: f64) {
        match self.style {
            SeriesStyle::Bar => {
                let (top, colour) = (y - 6.0, self.colour);
                let _ = writeln!(
                    out,
                    "<rect x=\"{x:.1}\" y=\"{top:.1}\" width=\"12\" height=\"12\" fill=\"{colour}\"/>"
                );
            }
            _ => self.stroke(out, &format!("M{x:.1} {y:.1}h20")),
        }
        let attributes = format!("x=\"{:.1}\" y=\"{:.1}\"", x + 25.0, y + 4.0);
        text(out, &attributes, Anchor::Start, SOFT, &self.name);
    }

    fn legend_width(&self) -> f64 {
        44.0 + 7.2 * self.name.chars().count() as f64
    }
}

fn text(out: &mut String, attributes: &str, anchor: Anchor, colour: &str, text: &str) {
    let anchor = match anchor {
        Anchor::Start => "start",
        Anchor::Middle => "middle",
        Anchor::End => "end",
    };
    let text = escape(text);
    let _ = writeln!(
        out,
        "<text {attributes} text-anchor=\"{anchor}\" fill=\"{colour}\">{text}</text>"
    );
}

fn line(out: &mut String, path: &str, colour: &str, width: f64) {
    let _ = writeln!(
        out,
        "<path d=\"{path}\" stroke=\"{colour}\" stroke-width=\"{width}\" fill=\"none\" stroke-linejoin=\"round\"/>"
    );
}

fn x_at(x: &Scale, value: f64) -> f64 {
    LEFT + 6.0 + x.place(value) * (RIGHT - LEFT - 12.0)
}

fn y_at(y: &Scale, value: f64) -> f64 {
    BASE - y.place(value) * (BASE - TOP)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::tests::assert_well_formed;

    fn plot(style: SeriesStyle, points: &[(f64, f64)]) -> Plot {
        let (x, y) = (("connections", Kind::Log2), ("ms", Kind::Log10));
        let mut plot = match style {
            SeriesStyle::Bar => Plot::bars("a < b & \"c\"", x.0, y, [0, 8]),
            _ => Plot::new("a < b & \"c\"", x, y),
        };
        plot.add("coroutines", style, COLOURS[0], points.iter().copied());
        plot
    }

    #[test]
    fn drawings_are_labelled_and_well_formed_for_any_points() {
        for style in [
            SeriesStyle::Line,
            SeriesStyle::Dashed,
            SeriesStyle::Curve,
            SeriesStyle::DashedCurve,
            SeriesStyle::Bar,
        ] {
            for points in [
                &[][..],
                &[(0.0, 0.0)],
                &[(1.0, f64::NAN), (f64::INFINITY, 2.0)],
                &[(1.0, 5.0), (1.0, 5.0)],
                &[(1.0, 0.001), (512.0, 90_000.0)],
            ] {
                let svg = plot(style, points).svg();
                assert_well_formed(&svg);
                let labels = [">a &lt; b &amp; &quot;c&quot;<", ">connections<", ">ms<"];
                for label in labels.into_iter().chain([">coroutines<"]) {
                    assert!(svg.contains(label), "{label} is missing in {svg}");
                }
            }
        }
    }

    #[test]
    fn a_long_legend_wraps_and_leaves_out_series_without_a_name() {
        let mut plot = plot(SeriesStyle::Curve, &[]);
        for (level, colour) in LEVELS.into_iter().enumerate() {
            plot.add(format!("level {level}"), SeriesStyle::Curve, colour, []);
        }
        plot.add("", SeriesStyle::Curve, SOFT, [(1.0, 1.0)]);
        let rows = plot.legend_rows();
        assert!(rows.len() >= 2);
        assert_eq!(rows.iter().map(Vec::len).sum::<usize>(), 9);
    }
}
