//! Tables for the terminal, as wide as it is and at most [`MAX_WIDTH`] columns; the report prints the same ones.
//!
//! A column that holds words is aligned left, one that holds figures right. Where the terminal is narrow, optional
//! columns are left out, the last first. Width counts characters: cells use only characters that take one column of a
//! terminal.

use std::fmt;
use std::io;

/// Widest line a table may print.
pub(crate) const MAX_WIDTH: usize = 100;
/// Narrowest terminal that lines are fitted to.
const MIN_WIDTH: usize = 60;

/// Columns of the terminal that standard output is, from [`MIN_WIDTH`] to [`MAX_WIDTH`]; [`MAX_WIDTH`] where it is none.
pub(crate) fn width() -> usize {
    match rustix::termios::tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 => usize::from(size.ws_col).clamp(MIN_WIDTH, MAX_WIDTH),
        _ => MAX_WIDTH,
    }
}

/// Side to which the cells of a column are aligned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

/// A titled table of text cells; every row has as many cells as there are columns.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    pub(crate) title: String,
    pub(crate) columns: Vec<(&'static str, Align)>,
    /// Indices of the columns that a narrow terminal does without, ascending.
    optional: Vec<usize>,
    pub(crate) rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table. A column head that starts with `<` makes its column align left, one that starts with `?` makes it
    /// optional.
    pub(crate) fn new(title: impl Into<String>, heads: &[&'static str]) -> Table {
        let mut optional = Vec::new();
        let columns = heads
            .iter()
            .enumerate()
            .map(
                |(i, &head)| match (head.strip_prefix('<'), head.strip_prefix('?')) {
                    (Some(head), _) => (head, Align::Left),
                    (_, Some(head)) => {
                        optional.push(i);
                        (head, Align::Right)
                    }
                    _ => (head, Align::Right),
                },
            )
            .collect();
        Table {
            title: title.into(),
            columns,
            optional,
            rows: Vec::new(),
        }
    }

    /// Adds a row; missing cells are left empty, surplus ones dropped.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let mut cells: Vec<String> = cells.into_iter().collect();
        cells.resize(self.columns.len(), String::new());
        self.rows.push(cells);
    }

    /// Width of each column of a table that is at most `limit` wide; none for a column that is left out.
    fn widths(&self, limit: usize) -> Vec<Option<usize>> {
        let mut widths: Vec<usize> = self
            .columns
            .iter()
            .map(|(head, _)| head.chars().count())
            .collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let mut widths: Vec<Option<usize>> = widths.into_iter().map(Some).collect();
        let total = |widths: &[Option<usize>]| {
            let shown = widths.iter().flatten();
            shown
                .map(|width| width + 2)
                .sum::<usize>()
                .saturating_sub(2)
        };
        for &column in self.optional.iter().rev() {
            if total(&widths) > limit {
                widths[column] = None;
            }
        }
        while total(&widths) > limit {
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
        let limit = f.width().unwrap_or_else(width);
        let widths = self.widths(limit);
        let line = |cells: &mut dyn Iterator<Item = &str>| {
            let mut text = String::new();
            for ((cell, width), (_, align)) in cells.zip(&widths).zip(&self.columns) {
                let &Some(width) = width else { continue };
                if !text.is_empty() {
                    text.push_str("  ");
                }
                let cell = shorten(cell, width);
                let gap = " ".repeat(width - cell.chars().count());
                match align {
                    Align::Left => text.extend([cell.as_str(), &gap]),
                    Align::Right => text.extend([gap.as_str(), &cell]),
                }
            }
            text.trim_end().to_owned()
        };
        if !self.title.is_empty() {
            writeln!(f, "{}", self.title)?;
        }
        writeln!(
            f,
            "{}",
            line(&mut self.columns.iter().map(|(head, _)| *head))
        )?;
        let rule = widths
            .iter()
            .map(|width| "─".repeat(width.unwrap_or(0)))
            .collect::<Vec<_>>();
        writeln!(f, "{}", line(&mut rule.iter().map(String::as_str)))?;
        for row in &self.rows {
            writeln!(f, "{}", line(&mut row.iter().map(String::as_str)))?;
        }
        Ok(())
    }
}

fn shorten(cell: &str, width: usize) -> String {
    if cell.chars().count() <= width {
        return cell.to_owned();
    }
    cell.chars()
        .take(width.saturating_sub(1))
        .chain(['…'])
        .collect()
}

/// A whole number with thin groups of three: `1234567` is `1,234,567`.
pub(crate) fn grouped(value: f64) -> String {
    if !value.is_finite() {
        return "–".into();
    }
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    if value <= -0.5 {
        text.push('-');
    }
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A time in microseconds with about three figures and its unit.
pub(crate) fn micros(us: f64) -> String {
    match us {
        us if !us.is_finite() => "–".into(),
        us if us < 10.0 => format!("{us:.2} µs"),
        us if us < 100.0 => format!("{us:.1} µs"),
        us if us < 1e3 => format!("{us:.0} µs"),
        us if us < 1e4 => format!("{:.2} ms", us / 1e3),
        us if us < 1e5 => format!("{:.1} ms", us / 1e3),
        us if us < 1e6 => format!("{:.0} ms", us / 1e3),
        us => format!("{:.2} s", us / 1e6),
    }
}

/// `a / b` as a factor, `–` where there is none.
pub(crate) fn factor(a: f64, b: f64) -> String {
    let ratio = a / b;
    match ratio {
        r if !r.is_finite() || b <= 0.0 => "–".into(),
        r if r < 10.0 => format!("{r:.2}×"),
        r => format!("{r:.0}×"),
    }
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
    }

    #[test]
    fn a_narrow_terminal_leaves_out_what_is_optional() {
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
        assert!(
            table
                .to_string()
                .lines()
                .all(|line| line.chars().count() <= MAX_WIDTH)
        );
    }

    #[test]
    fn numbers_read_well() {
        assert_eq!(grouped(1_234_567.4), "1,234,567");
        assert_eq!(grouped(999.0), "999");
        assert_eq!(grouped(-1234.0), "-1,234");
        assert_eq!(grouped(f64::NAN), "–");
        assert_eq!(micros(12.34), "12.3 µs");
        assert_eq!(micros(1234.0), "1.23 ms");
        assert_eq!(micros(2e6), "2.00 s");
        assert_eq!(factor(3.0, 2.0), "1.50×");
        assert_eq!(factor(3.0, 0.0), "–");
    }
}
