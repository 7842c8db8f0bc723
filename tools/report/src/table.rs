//! Formats tables as text, as wide as the terminal and at most [`MAX_WIDTH`] columns, as Markdown,
//! and as HTML.
//!
//! A column of words is aligned left, a column of numbers right. If the terminal is narrow,
//! optional columns are left out, the last first. Width counts characters, because the cells
//! contain only characters that take one column of a terminal.

use std::fmt;
use std::io;

use crate::escape;

/// Widest line of a table as text.
pub const MAX_WIDTH: usize = 100;
/// Narrowest terminal that lines are fitted to.
const MIN_WIDTH: usize = 60;

/// Returns the width of the terminal in columns, at most [`MAX_WIDTH`]; [`MAX_WIDTH`] if standard
/// output is not a terminal.
#[must_use]
pub fn terminal_width() -> usize {
    match rustix::termios::tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 => usize::from(size.ws_col).clamp(MIN_WIDTH, MAX_WIDTH),
        _ => MAX_WIDTH,
    }
}

#[derive(Debug, Clone)]
struct Column {
    name: String,
    /// Set if the column contains words, which are aligned left.
    has_words: bool,
    /// Set if a narrow terminal leaves the column out.
    is_optional: bool,
}

/// A titled table of text cells; every row has as many cells as there are columns.
///
/// `Display` writes the table as text for the terminal; a width (`{table:80}`) replaces the width
/// of the terminal.
#[derive(Debug, Clone)]
pub struct Table {
    /// Line above the table, unless it is empty.
    pub title: String,
    columns: Vec<Column>,
    /// Cells by row.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates an empty table. A head that starts with `<` aligns its column left, a head that
    /// starts with `?` makes its column optional.
    #[must_use]
    pub fn new(title: impl Into<String>, heads: &[impl AsRef<str>]) -> Table {
        let column = |head: &str| Column {
            name: head.trim_start_matches(['<', '?']).to_owned(),
            has_words: head.starts_with('<'),
            is_optional: head.starts_with('?'),
        };
        Table {
            title: title.into(),
            columns: heads.iter().map(|head| column(head.as_ref())).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row; missing cells are left empty, surplus cells dropped.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let mut cells: Vec<String> = cells.into_iter().collect();
        cells.resize(self.columns.len(), String::new());
        self.rows.push(cells);
    }

    /// Returns the table in Markdown: the unchanged title, an empty line, the table, and another
    /// empty line.
    #[must_use]
    pub fn markdown(&self) -> String {
        let line = |cells: &mut dyn Iterator<Item = &str>| {
            let cells: Vec<String> = cells.map(|cell| cell.replace('|', "\\|")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let mut out = match self.title.as_str() {
            "" => String::new(),
            title => format!("{title}\n\n"),
        };
        out += &line(&mut self.columns.iter().map(|column| column.name.as_str()));
        for column in &self.columns {
            out += if column.has_words { "|---" } else { "|---:" };
        }
        out += "|\n";
        for row in &self.rows {
            out += &line(&mut row.iter().map(String::as_str));
        }
        out + "\n"
    }

    /// Returns the table as HTML, with its title as a heading.
    #[must_use]
    pub fn html(&self) -> String {
        let row = |tag: &str, cells: &mut dyn Iterator<Item = &str>| {
            let mut out = String::from("<tr>");
            for (cell, column) in cells.zip(&self.columns) {
                let class = if column.has_words {
                    " class=\"left\""
                } else {
                    ""
                };
                out += &format!("<{tag}{class}>{}</{tag}>", escape(cell));
            }
            out + "</tr>\n"
        };
        let mut out = match self.title.as_str() {
            "" => String::new(),
            title => format!("<h3>{}</h3>\n", escape(title)),
        };
        let heads = self.columns.iter().map(|column| column.name.as_str());
        out += "<div class=\"wide\"><table>\n<thead>";
        out += &row("th", &mut { heads });
        out += "</thead>\n<tbody>\n";
        for cells in &self.rows {
            out += &row("td", &mut cells.iter().map(String::as_str));
        }
        out + "</tbody>\n</table></div>\n"
    }

    /// Returns the width of each column in a table that is at most `limit` wide; `None` for a
    /// column that is left out.
    fn widths(&self, limit: usize) -> Vec<Option<usize>> {
        let width = |(index, column): (usize, &Column)| {
            let cells = self.rows.iter().map(|row| row[index].chars().count());
            Some(cells.fold(column.name.chars().count(), usize::max))
        };
        let mut widths: Vec<Option<usize>> = self.columns.iter().enumerate().map(width).collect();
        let is_wide = |widths: &[Option<usize>]| {
            let shown = widths.iter().flatten().map(|width| width + 2);
            shown.sum::<usize>() > limit + 2
        };
        for index in (0..widths.len()).rev() {
            if self.columns[index].is_optional && is_wide(&widths) {
                widths[index] = None;
            }
        }
        while is_wide(&widths) {
            match widths.iter_mut().flatten().max() {
                Some(widest) if *widest > 4 => *widest -= 1,
                _ => break,
            }
        }
        widths
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths(f.width().unwrap_or_else(terminal_width));
        if !self.title.is_empty() {
            writeln!(f, "{}", self.title)?;
        }
        let mut line = |cells: &mut dyn Iterator<Item = &str>| {
            let mut shown = Vec::new();
            for ((cell, width), column) in cells.zip(&widths).zip(&self.columns) {
                let &Some(width) = width else { continue };
                let cell = shorten(cell, width);
                shown.push(if column.has_words {
                    format!("{cell:<width$}")
                } else {
                    format!("{cell:>width$}")
                });
            }
            writeln!(f, "{}", shown.join("  ").trim_end())
        };
        line(&mut self.columns.iter().map(|column| column.name.as_str()))?;
        let rule: Vec<String> = widths
            .iter()
            .map(|it| "─".repeat(it.unwrap_or(0)))
            .collect();
        line(&mut rule.iter().map(String::as_str))?;
        for row in &self.rows {
            line(&mut row.iter().map(String::as_str))?;
        }
        Ok(())
    }
}

fn shorten(cell: &str, width: usize) -> String {
    if cell.chars().count() <= width {
        return cell.to_owned();
    }
    let kept = cell.chars().take(width.saturating_sub(1));
    kept.chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_align_right_and_words_left() {
        let mut table = Table::new("T", &["<model", "req/s"]);
        table.row(["a".into(), "1".into()]);
        table.row(["coroutine".into(), "123,456".into()]);
        let text = table.to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "T");
        assert_eq!(lines[3], "a                1");
        assert_eq!(lines[4], "coroutine  123,456");
        assert_eq!(
            table.markdown(),
            "T\n\n| model | req/s |\n|---|---:|\n| a | 1 |\n| coroutine | 123,456 |\n\n"
        );
    }

    #[test]
    fn a_narrow_terminal_leaves_out_optional_columns() {
        let mut table = Table::new("", &["<name", "p50", "?p90", "p99", "?p99.9"]);
        table.row(["a", "1111111111", "2222222222", "3333333333", "4444444444"].map(str::to_owned));
        let heads = |width: usize| {
            let text = format!("{table:width$}");
            let heads = text.lines().next().unwrap_or_default().to_owned();
            heads
                .split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(heads(100), ["name", "p50", "p90", "p99", "p99.9"]);
        assert_eq!(heads(50), ["name", "p50", "p90", "p99"]);
        assert_eq!(heads(30), ["name", "p50", "p99"]);
    }

    #[test]
    fn no_line_is_wider_than_the_limit() {
        let mut table = Table::new("", &["<a", "<b"]);
        table.row(["µ".repeat(90), "x".repeat(150)]);
        let text = table.to_string();
        assert!(text.lines().all(|line| line.chars().count() <= MAX_WIDTH));
    }
}
