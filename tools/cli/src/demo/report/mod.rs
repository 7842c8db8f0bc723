//! The report: what the demo measured, as data, and its two forms (terminal tables, HTML file).
//!
//! The experiments fill [`Section`]s; [`html`] writes them as one file, [`headline`] says the one
//! thing to remember. No part of the result refers to anything outside the file.

pub(crate) mod headline;
pub(crate) mod html;

use std::io::{self, Write};

use headline::Headline;
use upshift_report::{Plot, Table, table};

/// One sentence of the summary. It gives both sides of a comparison and judges none: aims belong to the benchmarks, which
/// repeat their measurements.
#[derive(Debug, Clone)]
pub(crate) struct Finding {
    /// Something could not be measured, or an answer was wrong.
    pub(crate) failed: bool,
    pub(crate) text: String,
}

impl Finding {
    /// What was measured.
    pub(crate) fn new(text: impl Into<String>) -> Finding {
        Finding {
            failed: false,
            text: text.into(),
        }
    }

    /// Something that went wrong.
    pub(crate) fn failed(text: impl Into<String>) -> Finding {
        Finding {
            failed: true,
            text: text.into(),
        }
    }

    /// The mark in front of the sentence.
    pub(crate) fn mark(&self) -> char {
        if self.failed { '!' } else { '·' }
    }
}

/// One experiment: question, findings, plots, numbers, how to repeat it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Section {
    pub(crate) title: String,
    /// What was done, in a few sentences.
    pub(crate) intro: String,
    pub(crate) findings: Vec<Finding>,
    /// What the whole report is to be remembered for, if this experiment says that.
    pub(crate) headline: Option<Headline>,
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
            write!(out, "\n{table}")?;
        }
        writeln!(out)?;
        for finding in &self.findings {
            for (i, line) in wrap(&finding.text, table::width() - 3).iter().enumerate() {
                let mark = if i == 0 { finding.mark() } else { ' ' };
                writeln!(out, " {mark} {line}")?;
            }
        }
        Ok(())
    }
}

/// Breaks text at spaces into lines of at most `width` characters.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
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
            findings: vec![Finding::new("word ".repeat(60).trim_end())],
            ..Section::default()
        };
        let mut out = Vec::new();
        section.print(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(
            text.lines()
                .all(|line| line.chars().count() <= table::MAX_WIDTH),
            "{text}"
        );
        assert_eq!(text.matches("word").count(), 60);
    }
}
