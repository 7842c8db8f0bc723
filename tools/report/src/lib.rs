//! Formats measurements for people: a [`Table`] as text, Markdown and HTML, a [`Plot`] as SVG, a
//! [`Page`] as one HTML file, and single [`number`]s.
//!
//! The results depend only on the arguments, except that a table as text is as wide as the
//! terminal. Text is escaped wherever it becomes markup, and plots leave out values that are not
//! finite, so the output is well-formed for every measurement.
//!
//! ```
//! use upshift_report::{Kind, SeriesStyle, Page, Plot, Table, number::micros, plot::COLOURS};
//!
//! let mut table = Table::new("Latency", &["<server", "p50", "p99"]);
//! table.row(["coroutines".into(), micros(12.0), micros(40.0)]);
//! assert!(table.markdown().contains("| coroutines | 12.0 µs | 40.0 µs |"));
//!
//! let mut plot = Plot::new("Latency", ("connections", Kind::Log2), ("ms", Kind::Linear));
//! plot.add("coroutines", SeriesStyle::Line, COLOURS[0], [(1.0, 0.1), (64.0, 0.4)]);
//! assert!(plot.svg().starts_with("<svg xmlns="));
//!
//! let mut page = Page::new("Report");
//! page.heading(2, "Latency");
//! page.plots(&[plot]);
//! page.table(&table);
//! assert!(page.html().starts_with("<!DOCTYPE html>"));
//! ```

#![forbid(unsafe_code)]

pub mod number;
mod page;
pub mod plot;
mod scale;
pub mod table;

pub use page::Page;
pub use plot::{Plot, SeriesStyle};
pub use scale::Kind;
pub use table::Table;
pub use upshift_trace::escape;
