//! Formats the Markdown tables of `RESULTS.md`: servers under a load, or figures by row and column.
//!
//! A header that begins with `<` aligns its column to the left.

use upshift_load::Spread;
use upshift_report::Table;

use crate::peers::UPSHIFT;
use crate::results::{Cell, Figure, Run, SectionResults, distinct};

/// Formats a spread as "median (smallest–largest)"; a dash without values.
pub(crate) fn format_spread(of: Option<Spread>, digits: usize) -> String {
    let show = |s: Spread| {
        let Spread {
            median, min, max, ..
        } = s;
        format!("{median:.digits$} ({min:.digits$}–{max:.digits$})")
    };
    of.map_or("–".into(), show)
}

/// Formats a value with `digits` digits; a dash without a value.
pub(crate) fn format_value(value: Option<f64>, digits: usize) -> String {
    value.map_or("–".into(), |value| format!("{value:.digits$}"))
}

pub(crate) struct Column<'a> {
    head: &'a str,
    show: Box<dyn Fn(&Cell) -> String + 'a>,
}

pub(crate) fn spread(head: &str, digits: usize, of: fn(&Run) -> f64) -> Column<'_> {
    text(head, move |cell| format_spread(cell.spread(of), digits))
}

pub(crate) fn mean(head: &str, digits: usize, of: fn(&Run) -> f64) -> Column<'_> {
    text(head, move |cell| format_value(cell.mean(of), digits))
}

/// Creates a column whose cells `show` formats.
pub(crate) fn text<'a>(head: &'a str, show: impl Fn(&Cell) -> String + 'a) -> Column<'a> {
    Column {
        head,
        show: Box::new(show),
    }
}

/// Formats the table of a load: for each cell a row with the server, the columns, and the number of
/// runs.
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

/// Formats a table with a row for each of `rows` and a column for each of `columns`; a dash where
/// `cell` returns `None`.
pub(crate) fn cross_table(
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

pub(crate) fn quantities_and_runtimes(found: &SectionResults) -> [Vec<&str>; 2] {
    let name = |of: fn(&Figure) -> &str| distinct(found.figures.iter().map(of));
    [name(|figure| &figure.bench), name(|figure| &figure.peer)]
}
