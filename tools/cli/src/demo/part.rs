//! The result of a part of the demo: the latencies of its runs, and lines that compare two runs.

use std::fmt;
use std::io::{self, Write};

use upshift_load::GroupReport;
use upshift_report::number::{factor, integer, micros};
use upshift_report::plot::{COLOURS, DARK, LEVELS, SOFT};
use upshift_report::{Plot, SeriesStyle, Table, table};

use crate::load::latencies;
use crate::wrap::wrap;

/// Latencies of one kind of request in one run.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) group: GroupReport,
    /// Index of the colour in the palette of the plot. A row without a colour is left out of the
    /// plot.
    pub(crate) colour: Option<usize>,
}

impl Row {
    pub(crate) fn new(name: impl Into<String>, group: &GroupReport, colour: usize) -> Row {
        Row {
            name: name.into(),
            group: group.clone(),
            colour: Some(colour),
        }
    }
}

/// Outcome of comparing a figure with that of a reference run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Verdict {
    Better,
    Worse,
    /// The client's lateness, in µs, is at least the difference of the two figures.
    Inconclusive(f64),
    /// A run has no replies, or could not be made.
    Missing,
    /// The line compares nothing.
    Note,
}

impl Verdict {
    /// Compares a latency with the latency of another run, both in µs; `lag` is the client's
    /// lateness in µs.
    fn of(this: f64, other: f64, lag: f64) -> Verdict {
        if !(this.is_finite() && other.is_finite()) {
            Verdict::Missing
        } else if (this - other).abs() <= lag {
            Verdict::Inconclusive(lag)
        } else if this < other {
            Verdict::Better
        } else {
            Verdict::Worse
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Verdict::Better => "better",
            Verdict::Worse => "worse",
            Verdict::Inconclusive(_) => "?",
            Verdict::Missing => "missing",
            Verdict::Note => "",
        })
    }
}

/// A sentence of the result, with its verdict.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    pub(crate) verdict: Verdict,
    pub(crate) text: String,
}

impl Line {
    /// Creates a sentence that compares nothing.
    pub(crate) fn note(text: impl Into<String>) -> Line {
        Line {
            verdict: Verdict::Note,
            text: text.into(),
        }
    }

    pub(crate) fn missing(text: impl Into<String>) -> Line {
        Line {
            verdict: Verdict::Missing,
            text: text.into(),
        }
    }

    /// Compares a figure of two runs, each with its name: `TITLE: 1 µs NAME, 2 µs NAME`.
    pub(crate) fn compare(
        title: &str,
        this: (&GroupReport, &str),
        other: (&GroupReport, &str),
        figure: fn(&GroupReport) -> f64,
    ) -> Line {
        let value_of = |group: &GroupReport| match group.requests {
            0 => f64::NAN,
            _ => figure(group),
        };
        let (a, b) = (value_of(this.0), value_of(other.0));
        let verdict = Verdict::of(a, b, this.0.send_lag_p99.max(other.0.send_lag_p99));
        let ratio = if a < b {
            format!("{} less", factor(b, a))
        } else {
            format!("{} more", factor(a, b))
        };
        let mut text = format!(
            "{title}: {} {}, {} {} ({ratio})",
            micros(a),
            this.1,
            micros(b),
            other.1,
        );
        if let Verdict::Inconclusive(lag) = verdict {
            text += &format!(
                "; inconclusive: the client was late by {}, more than the difference",
                micros(lag)
            );
        }
        Line { verdict, text }
    }
}

/// A part of the demo: title, description, verdicts and figures.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) title: String,
    /// Description of the measurement in a few sentences.
    pub(crate) intro: String,
    pub(crate) lines: Vec<Line>,
    pub(crate) rows: Vec<Row>,
    /// Colours of the plot: `c` for runs, `p` for levels.
    pub(crate) palette: char,
}

impl Part {
    /// Creates a part without results.
    pub(super) fn failed(title: &str, error: &anyhow::Error) -> Part {
        Part {
            title: title.to_owned(),
            intro: "This part could not be measured.".into(),
            lines: vec![Line::missing(format!("{error:#}"))],
            rows: Vec::new(),
            palette: 'c',
        }
    }

    pub(crate) fn table(&self) -> Table {
        let heads = [
            "<run", "served/s", "p50", "?p90", "p99", "?p99.9", "max", "waiting",
        ];
        let mut table = Table::new("", &heads);
        for Row { name, group, .. } in &self.rows {
            let cells = [name.clone(), integer(group.per_second)].into_iter();
            let cells = cells.chain(latencies(group));
            table.row(cells.chain([integer(group.unanswered as f64)]));
        }
        table
    }

    /// Plots the latencies by percentile. The reference run, whose colour is beyond the palette, is
    /// dashed.
    pub(crate) fn plot(&self) -> Plot {
        let palette: &[&str] = match self.palette {
            'p' => &LEVELS,
            _ => &COLOURS[..2],
        };
        let mut plot = Plot::latencies("Latency by percentile");
        for row in &self.rows {
            let Some(colour) = row.colour else { continue };
            let (style, colour) = match palette.get(colour) {
                Some(colour) => (SeriesStyle::Curve, *colour),
                None if colour == palette.len() => (SeriesStyle::DashedCurve, DARK),
                None => (SeriesStyle::DashedCurve, SOFT),
            };
            plot.add(&row.name, style, colour, row.group.curve.iter().copied());
        }
        plot
    }

    pub(crate) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let rule = "═".repeat(self.title.chars().count());
        writeln!(out, "\n{}\n{rule}\n", self.title)?;
        if !self.rows.is_empty() {
            writeln!(out, "{}", self.table())?;
        }
        for Line { verdict, text } in &self.lines {
            for (i, line) in wrap(text, table::terminal_width() - 9).iter().enumerate() {
                match i {
                    0 => writeln!(out, "{verdict:>7}  {line}")?,
                    _ => writeln!(out, "{:>7}  {line}", "")?,
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::sample;

    #[test]
    fn a_verdict_needs_a_difference_beyond_the_lateness_of_the_client() {
        let line = |a: f64, b: f64, lag: f64| {
            let mut groups = sample(&[[a; 3], [b; 3]]).groups;
            groups[1].send_lag_p99 = lag;
            let pair = ((&groups[0], "with"), (&groups[1], "without"));
            Line::compare("p99", pair.0, pair.1, GroupReport::p99_with_unanswered)
        };
        assert_eq!(line(100.0, 900.0, 5.0).verdict, Verdict::Better);
        assert_eq!(line(900.0, 100.0, 5.0).verdict, Verdict::Worse);
        let inconclusive = line(100.0, 90.0, 25.0);
        assert_eq!(inconclusive.verdict, Verdict::Inconclusive(25.0));
        assert!(
            inconclusive.text.contains("late by 25.0 µs"),
            "{}",
            inconclusive.text
        );
        let text = line(100.0, 900.0, 5.0).text;
        assert!(text.starts_with("p99: 100 µs with, 900 µs without (9.00× less)"));
    }

    #[test]
    fn a_run_without_replies_is_not_compared() {
        let mut groups = sample(&[[1.0; 3], [2.0; 3]]).groups;
        groups[0].requests = 0;
        let [none, some] = [&groups[0], &groups[1]].map(|group| (group, ""));
        let line = Line::compare("p50", none, some, |g| g.p50);
        assert_eq!(line.verdict, Verdict::Missing);
    }

    #[test]
    fn a_printed_part_fits_the_terminal() {
        let group = &sample(&[[1.0; 3]]).groups[0];
        let part = Part {
            title: "T".into(),
            intro: String::new(),
            lines: vec![Line::note("word ".repeat(60).trim_end())],
            rows: vec![Row::new("a run", group, 0)],
            palette: 'c',
        };
        let mut out = Vec::new();
        part.print(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let fits = |line: &str| line.chars().count() <= table::MAX_WIDTH;
        assert!(text.lines().all(fits), "{text}");
        assert_eq!(text.matches("word").count(), 60);
    }
}
