//! Formats the Markdown tables of `RESULTS.md`: servers under a load, or figures by row and column.
//!
//! A header that begins with `<` aligns its column to the left.

use upshift_load::Spread;
use upshift_report::Table;

use crate::peers::UPSHIFT;
use crate::results::{Cell, Figure, Run, SectionResults, distinct};

/// Formats a spread as "median (smallest–largest)"; a dash without values.
pub(crate) fn format_spread(spread: Option<Spread>, digits: usize) -> String {
    let show = |s: Spread| {
        let Spread {
            median, min, max, ..
        } = s;
        format!("{median:.digits$} ({min:.digits$}–{max:.digits$})")
    };
    spread.map_or("–".into(), show)
}

/// Formats a value with `digits` digits; a dash without a value.
pub(crate) fn format_value(value: Option<f64>, digits: usize) -> String {
    value.map_or("–".into(), |value| format!("{value:.digits$}"))
}

/// A column of a table of cells: its head, and the function that formats a cell.
pub(crate) struct Column<'a> {
    head: &'a str,
    show: Box<dyn Fn(&Cell) -> String + 'a>,
}

/// Creates a column with the spread of a quantity over the runs.
pub(crate) fn spread(head: &str, digits: usize, quantity: fn(&Run) -> f64) -> Column<'_> {
    text(head, move |cell| {
        format_spread(cell.spread(quantity), digits)
    })
}

/// Creates a column with the mean of a quantity over the runs.
pub(crate) fn mean(head: &str, digits: usize, quantity: fn(&Run) -> f64) -> Column<'_> {
    text(head, move |cell| format_value(cell.mean(quantity), digits))
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
    first_head: &str,
    cells: impl IntoIterator<Item = &'a Cell>,
    columns: &[Column<'_>],
) -> String {
    let first_head = format!("<{first_head}");
    let heads = columns.iter().map(|column| column.head).chain(["runs"]);
    let heads: Vec<&str> = std::iter::once(first_head.as_str()).chain(heads).collect();
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
    first_head: &str,
    rows: &[&str],
    columns: &[&str],
    cell: impl Fn(&str, &str) -> Option<String>,
) -> String {
    let first_head = format!("<{first_head}");
    let heads: Vec<&str> = std::iter::once(first_head.as_str())
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

/// Returns the names of all quantities and of all runtimes, in the order of the figures.
pub(crate) fn quantities_and_runtimes(section_results: &SectionResults) -> [Vec<&str>; 2] {
    let names = |name: fn(&Figure) -> &str| distinct(section_results.figures.iter().map(name));
    [names(|figure| &figure.bench), names(|figure| &figure.peer)]
}
