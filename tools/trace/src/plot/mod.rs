//! Figures as SVG: lines with markers over two axes, or groups of bars.
//!
//! Colours are CSS classes (`c0`, `c1`, … for the series), so one drawing serves light and dark
//! pages. Points that are not finite are left out; the text never holds `NaN` or `inf`.
//! The drawing is 460 units wide, about the width of a phone, so its text stays readable.
//!
//! ```
//! use upshift_trace::plot::{Kind, Look, Plot, Series};
//!
//! let plot = Plot {
//!     title: "Latency".into(),
//!     x_label: "connections".into(),
//!     y_label: "ms".into(),
//!     x: Kind::Log2,
//!     y: Kind::Linear,
//!     groups: Vec::new(),
//!     series: vec![Series {
//!         name: "coroutines".into(),
//!         points: vec![(1.0, 0.1), (64.0, 0.4)],
//!         colour: 0,
//!         look: Look::Line,
//!     }],
//!     palette: 'c',
//! };
//! assert!(plot.file().starts_with("<svg xmlns="));
//! ```

mod scale;

use std::fmt::Write as _;

use crate::escape;

pub use scale::Kind;
use scale::{Scale, short};

/// The classes of drawings, for a page that contains some. The page sets the colours, as variables: `--text`, `--soft`, `--line`, `--c0` to
/// `--c3`, `--p0` to `--p7`.
pub const STYLE: &str = include_str!("plot.css");

/// The colours of a drawing that is a file: those of a light page.
const LIGHT: &str = "svg { --text: #1b1f24; --soft: #57606a; --line: #d5dae0; --c0: #1f6feb; --c1: #d9730d; --c2: #1a7f37; --c3: #8250df; \
                     --p0: #b3123f; --p1: #d6452b; --p2: #e07b1a; --p3: #b8960c; --p4: #5f9c2e; --p5: #1f9a80; --p6: #2a7fc0; --p7: #5b5fc7; \
                     font-family: system-ui, sans-serif; background: #ffffff; }";

/// Width and height of a drawing in SVG units.
const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 26.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 48.0;
/// Height of a line of the legend, below the axis.
const LEGEND_LINE: f64 = 19.0;

/// How a series is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// A line with a dot on each point.
    Line,
    /// A dashed line with a dot on each point.
    Dashed,
    /// A line without dots, for many points.
    Curve,
    /// A dashed line without dots.
    DashedCurve,
    /// A bar per point; x counts the group.
    Bar,
}

/// Named points in one colour.
#[derive(Debug, Clone)]
pub struct Series {
    /// In the legend, unless it is empty.
    pub name: String,
    /// x and y.
    pub points: Vec<(f64, f64)>,
    /// Index of the colour class.
    pub colour: usize,
    /// How it is drawn.
    pub look: Look,
}

/// One figure.
#[derive(Debug, Clone)]
pub struct Plot {
    /// Above it.
    pub title: String,
    /// Below the horizontal axis.
    pub x_label: String,
    /// Beside the vertical axis.
    pub y_label: String,
    /// The horizontal axis.
    pub x: Kind,
    /// The vertical axis.
    pub y: Kind,
    /// Names of the groups of a bar plot, empty otherwise.
    pub groups: Vec<String>,
    /// What is drawn.
    pub series: Vec<Series>,
    /// Prefix of the colour classes: `c` for models, `p` for priorities.
    pub palette: char,
}

impl Plot {
    /// Latencies (µs, logarithmic) by percentile.
    #[must_use]
    pub fn latencies(title: String, series: Vec<Series>) -> Plot {
        Plot {
            title,
            x_label: "percentile of the replies".into(),
            y_label: "latency, µs".into(),
            x: Kind::Quantile,
            y: Kind::Log10,
            groups: Vec::new(),
            series,
            palette: 'c',
        }
    }

    /// The drawing as an `<svg>` element of a page that has [`STYLE`].
    #[must_use]
    pub fn svg(&self) -> String {
        self.element("", "")
    }

    /// The drawing as a file of its own, on white.
    #[must_use]
    pub fn file(&self) -> String {
        let style = format!("<style>\n{LIGHT}\n{STYLE}</style>");
        self.element(r#"xmlns="http://www.w3.org/2000/svg" "#, &style) + "\n"
    }

    fn element(&self, attributes: &str, style: &str) -> String {
        let legend = self.legend_rows();
        let height = HEIGHT + LEGEND_LINE * legend.len() as f64;
        let mut out = String::new();
        let _ = write!(
            out,
            r#"<svg {attributes}viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{}">{style}"#,
            escape(&format!(
                "{}: {} against {}",
                self.title, self.y_label, self.x_label
            ))
        );
        // A long one begins further left.
        let title_width = 9.4 * self.title.chars().count() as f64;
        let title_at = (WIDTH - 6.0 - title_width).clamp(6.0, LEFT);
        let _ = write!(
            out,
            r#"<text class="t" x="{title_at:.1}" y="18">{}</text>"#,
            escape(&self.title)
        );
        let points = || self.series.iter().flat_map(|s| &s.points).filter(finite);
        let y = Scale::covering(self.y, points().map(|p| p.1));
        self.y_axis(&mut out, &y);
        if self.groups.is_empty() {
            let x = Scale::covering(self.x, points().map(|p| p.0));
            self.x_axis(&mut out, &x);
            for series in &self.series {
                self.line(&mut out, series, &x, &y);
            }
        } else {
            self.group_names(&mut out);
            self.bars(&mut out, &y);
        }
        self.labels(&mut out);
        self.legend(&mut out, &legend);
        out.push_str("</svg>");
        out
    }

    fn y_axis(&self, out: &mut String, y: &Scale) {
        for (value, text) in y.ticks(5) {
            let at = y_at(y, value);
            let _ = write!(
                out,
                r#"<path class="g" d="M{LEFT} {at:.1}H{:.1}"/>"#,
                WIDTH - RIGHT
            );
            let _ = write!(
                out,
                r#"<text class="k e" x="{:.1}" y="{:.1}">{text}</text>"#,
                LEFT - 6.0,
                at + 4.0
            );
        }
    }

    fn x_axis(&self, out: &mut String, x: &Scale) {
        let base = HEIGHT - BOTTOM;
        let _ = write!(
            out,
            r#"<path class="a" d="M{LEFT} {base:.1}H{:.1}"/>"#,
            WIDTH - RIGHT
        );
        for (value, text) in x.ticks(6) {
            let at = x_at(x, value);
            let _ = write!(out, r#"<path class="a" d="M{at:.1} {base:.1}v4"/>"#);
            let _ = write!(
                out,
                r#"<text class="k m" x="{at:.1}" y="{:.1}">{text}</text>"#,
                base + 18.0
            );
        }
    }

    fn group_names(&self, out: &mut String) {
        let base = HEIGHT - BOTTOM;
        let _ = write!(
            out,
            r#"<path class="a" d="M{LEFT} {base:.1}H{:.1}"/>"#,
            WIDTH - RIGHT
        );
        for (i, name) in self.groups.iter().enumerate() {
            let at = LEFT + (i as f64 + 0.5) * self.group_width();
            let _ = write!(
                out,
                r#"<text class="k m" x="{at:.1}" y="{:.1}">{}</text>"#,
                base + 18.0,
                escape(name)
            );
        }
    }

    fn labels(&self, out: &mut String) {
        let middle = (LEFT + WIDTH - RIGHT) / 2.0;
        let _ = write!(
            out,
            r#"<text class="l m" x="{middle:.1}" y="{:.1}">{}</text>"#,
            HEIGHT - 8.0,
            escape(&self.x_label)
        );
        let half = (TOP + HEIGHT - BOTTOM) / 2.0;
        let _ = write!(
            out,
            r#"<text class="l m" transform="translate(13 {half:.1}) rotate(-90)">{}</text>"#,
            escape(&self.y_label)
        );
    }

    fn line(&self, out: &mut String, series: &Series, x: &Scale, y: &Scale) {
        let drawn: Vec<(f64, f64)> = series
            .points
            .iter()
            .filter(finite)
            .map(|p| (x_at(x, p.0), y_at(y, p.1)))
            .collect();
        let dash = if matches!(series.look, Look::Dashed | Look::DashedCurve) {
            " d"
        } else {
            ""
        };
        let class = format!("{}{}", self.palette, series.colour);
        let mut path = String::new();
        for (i, (px, py)) in drawn.iter().enumerate() {
            let _ = write!(path, "{}{px:.1} {py:.1}", if i == 0 { 'M' } else { 'L' });
        }
        if !path.is_empty() {
            let _ = write!(out, r#"<path class="s {class}{dash}" d="{path}"/>"#);
        }
        if matches!(series.look, Look::Line | Look::Dashed) {
            for ((px, py), point) in drawn.iter().zip(series.points.iter().filter(finite)) {
                let _ = write!(
                    out,
                    r#"<circle class="f {class}" cx="{px:.1}" cy="{py:.1}" r="3.2"><title>{}: {} at {}</title></circle>"#,
                    escape(&series.name),
                    short(point.1),
                    short(point.0)
                );
            }
        }
    }

    fn group_width(&self) -> f64 {
        (WIDTH - LEFT - RIGHT) / self.groups.len().max(1) as f64
    }

    fn bars(&self, out: &mut String, y: &Scale) {
        let base = HEIGHT - BOTTOM;
        let width = self.group_width() * 0.76 / self.series.len().max(1) as f64;
        for (s, series) in self.series.iter().enumerate() {
            for point in series.points.iter().filter(finite) {
                let left = LEFT + (point.0 + 0.12) * self.group_width() + s as f64 * width;
                let top = y_at(y, point.1);
                let _ = write!(
                    out,
                    r#"<rect class="f {}{}" x="{left:.1}" y="{top:.1}" width="{:.1}" height="{:.1}"><title>{}: {}</title></rect>"#,
                    self.palette,
                    series.colour,
                    (width - 1.0).max(1.0),
                    (base - top).max(0.0),
                    escape(&series.name),
                    short(point.1)
                );
            }
        }
    }

    /// The series, split into lines of the legend that fit the width.
    fn legend_rows(&self) -> Vec<Vec<&Series>> {
        let mut rows: Vec<Vec<&Series>> = Vec::new();
        let mut used = f64::INFINITY;
        for series in self.series.iter().filter(|series| !series.name.is_empty()) {
            let width = legend_width(series);
            if used + width > WIDTH - LEFT {
                rows.push(Vec::new());
                used = 0.0;
            }
            used += width;
            if let Some(row) = rows.last_mut() {
                row.push(series);
            }
        }
        rows
    }

    fn legend(&self, out: &mut String, rows: &[Vec<&Series>]) {
        for (i, row) in rows.iter().enumerate() {
            let y = HEIGHT + 8.0 + LEGEND_LINE * i as f64;
            let mut x = LEFT;
            for series in row {
                let class = format!("{}{}", self.palette, series.colour);
                let _ = match series.look {
                    Look::Bar => write!(
                        out,
                        r#"<rect class="f {class}" x="{x:.1}" y="{:.1}" width="12" height="12"/>"#,
                        y - 6.0
                    ),
                    look => {
                        let dash = if matches!(look, Look::Dashed | Look::DashedCurve) {
                            " d"
                        } else {
                            ""
                        };
                        write!(
                            out,
                            r#"<path class="s {class}{dash}" d="M{x:.1} {y:.1}h20"/>"#
                        )
                    }
                };
                let _ = write!(
                    out,
                    r#"<text class="k" x="{:.1}" y="{:.1}">{}</text>"#,
                    x + 25.0,
                    y + 4.0,
                    escape(&series.name)
                );
                x += legend_width(series);
            }
        }
    }
}

fn legend_width(series: &Series) -> f64 {
    44.0 + 7.2 * series.name.chars().count() as f64
}

fn finite(point: &&(f64, f64)) -> bool {
    point.0.is_finite() && point.1.is_finite()
}

fn x_at(x: &Scale, value: f64) -> f64 {
    LEFT + 6.0 + x.place(value) * (WIDTH - LEFT - RIGHT - 12.0)
}

fn y_at(y: &Scale, value: f64) -> f64 {
    let base = HEIGHT - BOTTOM;
    base - y.place(value) * (base - TOP)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(points: Vec<(f64, f64)>, look: Look) -> Plot {
        Plot {
            title: "a < b & \"c\"".into(),
            x_label: "connections".into(),
            y_label: "ms".into(),
            x: Kind::Log2,
            y: Kind::Log10,
            groups: if look == Look::Bar {
                vec!["0".into(), "8".into()]
            } else {
                Vec::new()
            },
            series: vec![Series {
                name: "coroutines".into(),
                points,
                colour: 0,
                look,
            }],
            palette: 'c',
        }
    }

    #[test]
    fn everything_is_labelled() {
        let svg = plot(vec![(1.0, 2.0), (8.0, 4.0)], Look::Line).svg();
        for text in [
            "a &lt; b &amp; &quot;c&quot;",
            ">connections<",
            ">ms<",
            ">coroutines<",
        ] {
            assert!(svg.contains(text), "{text} is missing in {svg}");
        }
    }

    #[test]
    fn a_long_legend_wraps() {
        let mut plot = plot(vec![(1.0, 2.0)], Look::Curve);
        plot.series = (0..9)
            .map(|i| Series {
                name: format!("level {i}"),
                colour: i,
                ..plot.series[0].clone()
            })
            .collect();
        assert!(plot.legend_rows().len() >= 2);
        assert_eq!(plot.legend_rows().iter().map(Vec::len).sum::<usize>(), 9);
    }
}
