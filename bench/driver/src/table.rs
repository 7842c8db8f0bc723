//! The tables of the page: a row for each server of a load, or figures by two names.

use upshift_load::Spread;
use upshift_report::Table;

use crate::peers::UPSHIFT;
use crate::results::{Cell, Figure, Run, SectionResults, distinct};

/// Formats median, smallest and largest.
pub(crate) fn shown(of: Option<Spread>, digits: usize) -> String {
    let show = |s: Spread| {
        let Spread {
            median, min, max, ..
        } = s;
        format!("{median:.digits$} ({min:.digits$}–{max:.digits$})")
    };
    of.map_or("–".into(), show)
}

/// Formats a value with `digits` digits; a dash without a value.
pub(crate) fn plain(value: Option<f64>, digits: usize) -> String {
    value.map_or("–".into(), |value| format!("{value:.digits$}"))
}

/// A column of a table of cells.
pub(crate) struct Column<'a> {
    head: &'a str,
    show: Box<dyn Fn(&Cell) -> String + 'a>,
}

/// Creates a column of medians with their spread.
pub(crate) fn spread(head: &str, digits: usize, of: fn(&Run) -> f64) -> Column<'_> {
    text(head, move |cell| shown(cell.spread(of), digits))
}

/// Creates a column of means.
pub(crate) fn mean(head: &str, digits: usize, of: fn(&Run) -> f64) -> Column<'_> {
    text(head, move |cell| plain(cell.mean(of), digits))
}

/// Creates a column of text.
pub(crate) fn text<'a>(head: &'a str, show: impl Fn(&Cell) -> String + 'a) -> Column<'a> {
    Column {
        head,
        show: Box::new(show),
    }
}

/// Creates a table of a load: a row for each cell, which begins with the server and ends with the
/// number of runs.
pub(crate) fn cells<'a>(
    case: &str,
    first: &str,
    cells: impl IntoIterator<Item = &'a Cell>,
    columns: &[Column<'_>],
) -> String {
    let first = format!("<{first}");
    let heads = columns.iter().map(|column| column.head).chain(["runs"]);
    let heads: Vec<&str> = std::iter::once(first.as_str()).chain(heads).collect();
    let mut table = Table::new(format!("### {case}"), &heads);
    for cell in cells {
        let name = match cell.peer.as_str() {
            UPSHIFT => "**upshift**",
            other => other,
        };
        let values = columns.iter().map(|column| (column.show)(cell));
        let row = std::iter::once(name.to_owned()).chain(values);
        table.row(row.chain([cell.runs.len().to_string()]));
    }
    table.markdown()
}

/// Creates a table with a row for each of some names and a column for each of others.
pub(crate) fn cross(
    first: &str,
    rows: &[&str],
    columns: &[&str],
    cell: impl Fn(&str, &str) -> Option<String>,
) -> String {
    let first = format!("<{first}");
    let heads: Vec<&str> = std::iter::once(first.as_str())
        .chain(columns.iter().copied())
        .collect();
    let mut table = Table::new("", &heads);
    for row in rows {
        let cells = columns
            .iter()
            .map(|column| cell(row, column).unwrap_or("–".into()));
        table.row(std::iter::once((*row).to_owned()).chain(cells));
    }
    table.markdown()
}

/// Returns the quantities and the runtimes of the figures of a section.
pub(crate) fn names(found: &SectionResults) -> [Vec<&str>; 2] {
    let name = |of: fn(&Figure) -> &str| distinct(found.figures.iter().map(of));
    [name(|figure| &figure.bench), name(|figure| &figure.peer)]
}
