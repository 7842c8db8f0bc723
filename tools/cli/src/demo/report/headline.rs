//! The one thing to remember of a demo: a few bars of one scale, and a sentence. The same on the terminal and in the report.
//!
//! The scale is linear from 0, so a bar that cannot be seen is as short as it looks.

use std::io::{self, Write};

use upshift_report::number::micros;
use upshift_report::plot::COLOURS;
use upshift_report::{Kind, Look, Page, Plot, table};

use super::wrap;

/// Eighths of a character cell, for bars that end inside one.
const EIGHTHS: [char; 8] = ['▏', '▎', '▍', '▌', '▋', '▊', '▉', '█'];

/// A bar chart of times, and the verdict.
#[derive(Debug, Clone)]
pub(crate) struct Headline {
    pub(crate) title: String,
    /// Name and microseconds.
    pub(crate) bars: Vec<(String, f64)>,
    /// One sentence.
    pub(crate) verdict: String,
}

impl Headline {
    /// Length of each bar, 0 to 1.
    fn shares(&self) -> impl Iterator<Item = f64> {
        let longest = self.bars.iter().map(|bar| bar.1).fold(0.0, f64::max);
        self.bars.iter().map(move |bar| {
            let share = bar.1 / longest;
            if share.is_finite() { share } else { 0.0 }
        })
    }

    /// Writes chart and verdict for the terminal.
    pub(crate) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        self.print_to(out, table::width())
    }

    fn print_to(&self, out: &mut impl Write, width: usize) -> io::Result<()> {
        let rule = "═".repeat(self.title.chars().count());
        writeln!(out, "\n{}\n{rule}\n", self.title)?;
        let longest = |length: &dyn Fn(&(String, f64)) -> usize| {
            self.bars.iter().map(length).max().unwrap_or(0)
        };
        let names = longest(&|bar| bar.0.chars().count());
        let values = longest(&|bar| micros(bar.1).chars().count());
        let room = width.saturating_sub(names + values + 4);
        for ((name, value), share) in self.bars.iter().zip(self.shares()) {
            let value = micros(*value);
            writeln!(
                out,
                "{name:<names$}  {value:>values$}  {}",
                bar(share, room)
            )?;
        }
        writeln!(out)?;
        for line in wrap(&self.verdict, width) {
            writeln!(out, "{line}")?;
        }
        Ok(())
    }

    /// Adds chart and verdict to the report.
    pub(crate) fn show(&self, page: &mut Page) {
        let mut plot = Plot::bars(&self.title, "", ("µs", Kind::Linear), [""]);
        for ((name, us), colour) in self.bars.iter().zip(COLOURS) {
            let name = format!("{name}: {}", micros(*us));
            plot.add(name, Look::Bar, colour, [(0.0, *us)]);
        }
        page.heading(2, &self.title);
        page.plots(&[plot]);
        page.verdict(&self.verdict);
    }
}

/// A bar of `share` of `room` cells; the thinnest there is for everything that is not nothing.
fn bar(share: f64, room: usize) -> String {
    if share <= 0.0 {
        return String::new();
    }
    let eighths = ((share.min(1.0) * (room * 8) as f64).round() as usize).max(1);
    let mut text = "█".repeat(eighths / 8);
    if !eighths.is_multiple_of(8) {
        text.push(EIGHTHS[eighths % 8 - 1]);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(values: [f64; 2]) -> Headline {
        Headline {
            title: "Median <wait>".into(),
            bars: vec![
                ("level 0".into(), values[0]),
                ("one queue".into(), values[1]),
            ],
            verdict: "Level 0 keeps its median & more. ".repeat(5),
        }
    }

    #[test]
    fn bars_are_in_proportion_and_fit_the_terminal() {
        assert_eq!(bar(1.0, 10), "██████████");
        assert_eq!(bar(0.5, 3), "█▌");
        assert_eq!(bar(0.000_1, 10), "▏");
        assert_eq!(bar(0.0, 10), "");
        for values in [[35.0, 312_000.0], [0.0, 0.0], [f64::NAN, 1.0]] {
            let mut out = Vec::new();
            sample(values).print_to(&mut out, 80).unwrap();
            let text = String::from_utf8(out).unwrap();
            assert!(
                text.lines().all(|line| line.chars().count() <= 80),
                "{text}"
            );
        }
    }
}
