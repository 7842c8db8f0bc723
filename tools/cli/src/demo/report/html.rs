//! The report as one HTML file: no scripts, no external resources, light and dark, any width.
//!
//! Everything that comes from a measurement passes [`escape`]. Cost: one pass over the report,
//! a few hundred KiB of text at most.

use std::fmt::Write as _;

use upshift_trace::{escape, plot};

use super::{Finding, Section};
use crate::table::{Align, Table};
use upshift_load::machine::Machine;

/// What the file says besides the sections.
#[derive(Debug)]
pub(crate) struct Page<'a> {
    pub(crate) machine: &'a Machine,
    /// The command that made the report.
    pub(crate) command: &'a str,
    /// Where server and client ran.
    pub(crate) placement: &'a str,
    /// Seconds the whole demo took.
    pub(crate) seconds: f64,
    pub(crate) sections: &'a [Section],
}

const STYLE: &str = include_str!("report.css");

/// What the figures cannot show; printed in every report.
const LIMITS: [&str; 4] = [
    "Client and server share one machine and talk over loopback: there is no network card, no wire and no \
     interrupt from one. What is compared is the cost of the server's concurrency, not of a network.",
    "The client takes CPU time too. With two or more CPUs it has its own; an experiment that gives the server \
     all CPUs makes both share, and its figures are lower bounds.",
    "Each measurement is short and made once: differences of a few per cent are noise. The benchmarks of the project \
     (cargo xtask bench) repeat in interleaved rounds and print the spread.",
    "On a virtual machine an idle CPU halts and its first wake-up costs up to some 35 µs; that shows in the \
     latency at few connections, for coroutines and threads alike. In the experiments on preemption the server's \
     CPU is kept awake by a thread that runs only when nothing else wants it.",
];

/// Writes the whole file.
pub(crate) fn page(page: &Page<'_>) -> String {
    let mut out = String::new();
    let _ = write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <meta name=\"color-scheme\" content=\"light dark\"/>\n\
         <title>Upshift demo report</title>\n<style>\n{STYLE}{}</style>\n</head>\n<body>\n<main>\n",
        plot::STYLE
    );
    let _ = write!(
        out,
        "<header><h1>Upshift demo report</h1>\n<p>Coroutines with 64 priority levels, measured against threads \
         with the matrix web server of the papers on SharedScheduler, a research scheduler for coroutines across kernel and \
         processes: a request carries n × n numbers, the reply is their square; receive, compute and send are three \
         coroutines (or three threads) per connection. Experiments 4 to 6 use a server that burns as much CPU time as a \
         request asks for.</p>\n"
    );
    let facts = [
        ("Machine", page.machine.line()),
        ("Placement", page.placement.to_owned()),
        ("Command", page.command.to_owned()),
        ("Version", format!("upshift {}", env!("CARGO_PKG_VERSION"))),
        ("Took", format!("{:.0} s", page.seconds)),
    ];
    out.push_str("<dl>");
    for (name, value) in facts {
        let _ = write!(out, "<dt>{name}</dt><dd>{}</dd>", escape(&value));
    }
    out.push_str("</dl>\n</header>\n");
    if let Some(headline) = page.sections.iter().find_map(|s| s.headline.as_ref()) {
        headline.html(&mut out);
    }
    out.push_str("<section>\n<h2>In short</h2>\n");
    for section in page.sections {
        let _ = write!(out, "<h3>{}</h3>", escape(&section.title));
        findings(&mut out, &section.findings);
    }
    out.push_str("</section>\n");
    for section in page.sections {
        write_section(&mut out, section);
    }
    out.push_str("<section>\n<h2>Limits</h2>\n<ul>\n");
    for limit in LIMITS {
        let _ = writeln!(out, "<li>{}</li>", escape(limit));
    }
    out.push_str("</ul>\n</section>\n</main>\n</body>\n</html>\n");
    out
}

fn write_section(out: &mut String, section: &Section) {
    let _ = write!(
        out,
        "<section>\n<h2>{}</h2>\n<p>{}</p>\n",
        escape(&section.title),
        escape(&section.intro)
    );
    if !section.plots.is_empty() {
        // Rows of three plots, one row per matrix size; others are drawn larger, two to a row.
        let class = if section.plots.len().is_multiple_of(3) {
            "plots"
        } else {
            "plots few"
        };
        let _ = writeln!(out, "<div class=\"{class}\">");
        for plot in &section.plots {
            let _ = writeln!(out, "<figure>{}</figure>", plot.svg());
        }
        out.push_str("</div>\n");
    }
    for svg in &section.timelines {
        let _ = writeln!(out, "<figure class=\"timeline\">{svg}</figure>");
    }
    for table in &section.tables {
        write_table(out, table);
    }
    if !section.commands.is_empty() {
        out.push_str("<h3>Repeat it</h3>\n<pre>");
        out.push_str(&escape(&section.commands.join("\n")));
        out.push_str("</pre>\n");
    }
    out.push_str("</section>\n");
}

fn findings(out: &mut String, findings: &[Finding]) {
    out.push_str("<ul class=\"findings\">\n");
    for finding in findings {
        let class = if finding.failed { "b" } else { "n" };
        let _ = writeln!(
            out,
            "<li class=\"{class}\"><b>{}</b>{}</li>",
            finding.mark(),
            escape(&finding.text)
        );
    }
    out.push_str("</ul>\n");
}

fn write_table(out: &mut String, table: &Table) {
    let class = |align: Align| {
        if align == Align::Left {
            " class=\"left\""
        } else {
            ""
        }
    };
    let _ = write!(
        out,
        "<h3>{}</h3>\n<div class=\"wide\"><table>\n<thead><tr>",
        escape(&table.title)
    );
    for (head, align) in &table.columns {
        let _ = write!(out, "<th{}>{}</th>", class(*align), escape(head));
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for row in &table.rows {
        out.push_str("<tr>");
        for (cell, (_, align)) in row.iter().zip(&table.columns) {
            let _ = write!(out, "<td{}>{}</td>", class(*align), escape(cell));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody>\n</table></div>\n");
}

#[cfg(test)]
pub(crate) mod tests {
    use upshift_trace::plot::{Kind, Look, Plot, Series};

    use super::*;

    /// Tags balance, attributes are quoted, and no number went wrong.
    pub(crate) fn assert_well_formed(text: &str) {
        for bad in ["NaN", "inf ", "\"inf", "-inf"] {
            assert!(!text.contains(bad), "`{bad}` in {text}");
        }
        let mut open: Vec<&str> = Vec::new();
        let mut rest = text;
        while let Some(start) = rest.find('<') {
            rest = &rest[start + 1..];
            let end = rest.find('>').expect("a tag that never ends");
            let tag = &rest[..end];
            rest = &rest[end + 1..];
            assert_eq!(
                tag.matches('"').count() % 2,
                0,
                "unbalanced quotes in <{tag}>"
            );
            let name = tag
                .trim_start_matches('/')
                .split([' ', '/'])
                .next()
                .unwrap_or_default();
            if tag.starts_with('!') || tag.ends_with('/') {
                continue;
            }
            if tag.starts_with('/') {
                assert_eq!(open.pop(), Some(name), "</{name}> closes something else");
            } else {
                open.push(name);
            }
        }
        assert!(open.is_empty(), "never closed: {open:?}");
    }

    fn sample() -> Section {
        let mut table = Table::new("Numbers <raw>", &["<model", "req/s"]);
        table.row(["a & b".into(), "1".into()]);
        Section {
            timelines: vec!["<svg></svg>".into()],
            title: "One".into(),
            intro: "What & why".into(),
            findings: vec![
                Finding::new("threads win at 1"),
                Finding::failed("no reply"),
            ],
            plots: vec![Plot {
                title: "t".into(),
                x_label: "x".into(),
                y_label: "y".into(),
                x: Kind::Log2,
                y: Kind::Linear,
                groups: vec![],
                series: vec![Series {
                    name: "s".into(),
                    points: vec![(1.0, 1.0)],
                    colour: 0,
                    look: Look::Line,
                }],
                palette: 'c',
            }],
            tables: vec![table],
            commands: vec!["upshift load matrix --connect 127.0.0.1:1 && echo '<ok>'".into()],
            headline: None,
        }
    }

    #[test]
    fn the_page_is_well_formed_and_self_contained() {
        let machine = Machine::read();
        let sections = [sample(), sample()];
        let text = page(&Page {
            machine: &machine,
            command: "upshift demo --quick",
            placement: "server CPU 0, client CPU 1",
            seconds: 15.0,
            sections: &sections,
        });
        assert_well_formed(&text);
        for outside in ["http://", "https://", "<script", "<link", "@import", "url("] {
            assert!(!text.contains(outside), "the report refers to {outside}");
        }
        assert!(text.contains("prefers-color-scheme: dark"));
        assert!(text.contains("threads win at 1"), "losing cases are shown");
        assert!(text.contains("echo &#39;&lt;ok&gt;&#39;"));
    }
}
