//! The report as one HTML file: no scripts, no external resources, light and dark, any width.
//!
//! Everything that comes from a measurement passes [`escape`].

use std::fmt::Write as _;

use upshift_trace::{escape, plot};

use super::part::{Line, Part, Verdict};
use crate::table::{Align, Table};

const STYLE: &str = include_str!("page.css");

/// Limits of the figures; printed in every report.
const LIMITS: [&str; 3] = [
    "Client and server share one machine and talk over loopback: there is no network card, no wire and no interrupt \
     from one.",
    "Each measurement is short and made once, in contrast to those of the project's benchmarks (cargo xtask bench).",
    "On a virtual machine an idle CPU halts and its first wake-up costs up to some 35 µs. In parts 2 and 3 a thread that \
     runs only when nothing else wants to keeps the server's CPU from halting, unless the batch process does.",
];

/// Writes the whole file: the facts, then each part.
pub(crate) fn page(facts: &[(&str, String)], parts: &[Part]) -> String {
    let mut out = String::new();
    let _ = write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <meta name=\"color-scheme\" content=\"light dark\"/>\n\
         <title>Upshift demo report</title>\n<style>\n{STYLE}{}</style>\n</head>\n<body>\n<main>\n\
         <header><h1>Upshift demo report</h1>\n<p>Coroutines with 64 priority levels, in one process and across \
         processes. Latency counts from the time at which a request was meant to leave.</p>\n<dl>",
        plot::STYLE
    );
    for (name, value) in facts {
        let _ = write!(out, "<dt>{name}</dt><dd>{}</dd>", escape(value));
    }
    out.push_str("</dl>\n</header>\n");
    for part in parts {
        let [title, intro] = [&part.title, &part.intro].map(|text| escape(text));
        let _ = write!(out, "<section>\n<h2>{title}</h2>\n<p>{intro}</p>\n");
        lines(&mut out, &part.lines);
        if !part.rows.is_empty() {
            let _ = writeln!(out, "<figure>{}</figure>", part.plot().svg());
            table(&mut out, &part.table());
        }
        out.push_str("</section>\n");
    }
    out.push_str("<section>\n<h2>Limits</h2>\n<ul>\n");
    for limit in LIMITS {
        let _ = writeln!(out, "<li>{}</li>", escape(limit));
    }
    out.push_str("</ul>\n</section>\n</main>\n</body>\n</html>\n");
    out
}

fn lines(out: &mut String, lines: &[Line]) {
    out.push_str("<ul class=\"lines\">\n");
    for Line { verdict, text } in lines {
        let class = match verdict {
            Verdict::Better => "good",
            Verdict::Worse | Verdict::Missing => "bad",
            Verdict::CannotTell(_) | Verdict::Note => "open",
        };
        let _ = writeln!(
            out,
            "<li><b class=\"{class}\">{verdict}</b>{}</li>",
            escape(text)
        );
    }
    out.push_str("</ul>\n");
}

fn table(out: &mut String, table: &Table) {
    out.push_str("<div class=\"wide\"><table>\n");
    let heads = table.columns.iter().map(|(head, _)| *head).collect();
    let rows = table
        .rows
        .iter()
        .map(|row| ("td", row.iter().map(String::as_str).collect()));
    for (tag, cells) in std::iter::once(("th", heads)).chain(rows) {
        let cells: Vec<&str> = cells;
        out.push_str("<tr>");
        for (cell, (_, align)) in cells.into_iter().zip(&table.columns) {
            let class = if *align == Align::Left {
                " class=\"left\""
            } else {
                ""
            };
            let _ = write!(out, "<{tag}{class}>{}</{tag}>", escape(cell));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</table></div>\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::part::Row;
    use crate::demo::sample;

    #[test]
    fn the_page_is_self_contained_and_escaped() {
        let group = &sample(&[[30.0, 900.0, f64::NAN]]).groups[0];
        let part = Part {
            title: "One <part>".into(),
            intro: "What & why".into(),
            lines: vec![Line::missing("no \"reply\"")],
            rows: vec![Row::new("a & b", group, 0)],
            palette: 'c',
        };
        let text = page(&[("Machine", "2 CPUs".into())], &[part.clone(), part]);
        for outside in [
            "http://", "https://", "<script", "<link", "@import", "url(", "NaN",
        ] {
            assert!(!text.contains(outside), "the report has {outside}");
        }
        for inside in [
            "One &lt;part&gt;",
            "What &amp; why",
            "prefers-color-scheme: dark",
        ] {
            assert!(text.contains(inside), "{inside}");
        }
        for tag in ["section", "ul", "li", "table", "tr", "td", "figure", "svg"] {
            let [opened, closed] = [format!("<{tag}"), format!("</{tag}>")];
            assert!(text.matches(&opened).count() >= text.matches(&closed).count());
            assert!(text.contains(&closed), "{tag}");
        }
    }
}
