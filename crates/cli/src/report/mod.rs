//! The report: what the demo measured, as data, and its two forms (terminal tables, HTML file).
//!
//! The experiments fill [`Section`]s; [`html`] writes them as one file, [`plot`] draws the
//! figures as SVG. No part of the result refers to anything outside the file.

pub(crate) mod html;
pub(crate) mod plot;
pub(crate) mod scale;

use std::io::{self, Write};

use crate::table::{MAX_WIDTH, Table};
use plot::Plot;

/// How a comparison came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Upshift, or the claim that is tested, did better.
    Better,
    /// Worse: shown as plainly as the rest.
    Worse,
    /// A statement without a winner.
    Neutral,
}

/// One sentence of the summary.
#[derive(Debug, Clone)]
pub(crate) struct Finding {
    pub(crate) verdict: Verdict,
    pub(crate) text: String,
}

impl Finding {
    /// A finding that is better when `good` holds and worse otherwise.
    pub(crate) fn judged(good: bool, text: impl Into<String>) -> Finding {
        let verdict = if good {
            Verdict::Better
        } else {
            Verdict::Worse
        };
        Finding {
            verdict,
            text: text.into(),
        }
    }

    /// A finding without a winner.
    pub(crate) fn neutral(text: impl Into<String>) -> Finding {
        Finding {
            verdict: Verdict::Neutral,
            text: text.into(),
        }
    }

    /// The mark in front of the sentence.
    pub(crate) fn mark(&self) -> char {
        match self.verdict {
            Verdict::Better => '+',
            Verdict::Worse => '-',
            Verdict::Neutral => '·',
        }
    }
}

/// One experiment: question, findings, plots, numbers, how to repeat it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Section {
    pub(crate) title: String,
    /// What was done, in a few sentences.
    pub(crate) intro: String,
    pub(crate) findings: Vec<Finding>,
    pub(crate) plots: Vec<Plot>,
    /// `<svg>` elements that take the whole width.
    pub(crate) timelines: Vec<String>,
    pub(crate) tables: Vec<Table>,
    /// Shell commands that repeat the measurements.
    pub(crate) commands: Vec<String>,
}

impl Section {
    /// Writes tables and findings for the terminal.
    pub(crate) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(
            out,
            "\n{}\n{}",
            self.title,
            "═".repeat(self.title.chars().count())
        )?;
        for table in &self.tables {
            writeln!(out, "\n{table}")?;
        }
        for finding in &self.findings {
            for (i, line) in wrap(&finding.text, MAX_WIDTH - 3).iter().enumerate() {
                let mark = if i == 0 { finding.mark() } else { ' ' };
                writeln!(out, " {mark} {line}")?;
            }
        }
        Ok(())
    }
}

/// Breaks text at spaces into lines of at most `width` characters.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let Some(line) = lines.last_mut() else { break };
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > width {
            lines.push(word.to_owned());
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_wrap_within_the_width_of_a_table() {
        let section = Section {
            title: "T".into(),
            findings: vec![Finding::neutral("word ".repeat(60).trim_end())],
            ..Section::default()
        };
        let mut out = Vec::new();
        section.print(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(
            text.lines().all(|line| line.chars().count() <= MAX_WIDTH),
            "{text}"
        );
        assert_eq!(text.matches("word").count(), 60);
    }
}
