//! Formats the demo's report as one HTML file.

use upshift_report::Page;

use super::part::{Line, Part, Verdict};

/// Limits of the figures, printed in every report.
const LIMITS: [&str; 3] = [
    "Client and server share one machine and talk over loopback: no network card, no wire and no network interrupt is \
     involved.",
    "Each measurement is short and made once, in contrast to those of the project's benchmarks (cargo xtask bench).",
    "On a virtual machine an idle CPU halts and its first wake-up costs up to some 35 µs. In parts 2 and 3 the server's \
     CPU never halts: the batch process, or a thread that runs only when nothing else does, keeps it busy.",
];

/// Formats the whole file: the facts, then each part.
pub(crate) fn page(facts: &[(&str, String)], parts: &[Part]) -> String {
    let mut page = Page::new("Upshift demo report");
    page.paragraph(
        "Coroutines with 64 priority levels, in one process and across processes. Latency counts \
         from the time at which a request was meant to leave.",
    );
    page.facts(facts);
    for part in parts {
        page.heading(2, &part.title);
        page.paragraph(&part.intro);
        page.list(part.lines.iter().map(format_line));
        if !part.rows.is_empty() {
            page.plots(&[part.plot()]);
            page.table(&part.table());
        }
    }
    page.heading(2, "Limits");
    page.list(LIMITS);
    page.html()
}

fn format_line(line: &Line) -> String {
    match line.verdict {
        // The text contains the verdict.
        Verdict::Note | Verdict::Inconclusive(_) => line.text.clone(),
        Verdict::Better => format!("Better. {}", line.text),
        Verdict::Worse => format!("Worse. {}", line.text),
        Verdict::Missing => format!("Missing. {}", line.text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::part::Row;
    use crate::demo::sample;

    #[test]
    fn a_part_has_its_verdicts_its_plot_and_its_table() {
        let group = &sample(&[[30.0, 900.0, f64::NAN]]).groups[0];
        let part = Part {
            title: "One <part>".into(),
            intro: "A & b".into(),
            lines: vec![Line::missing("no \"reply\"")],
            rows: vec![Row::new("a & b", group, 0)],
            palette: 'c',
        };
        let text = page(&[("Machine", "2 CPUs".into())], &[part]);
        for inside in [
            "One &lt;part&gt;",
            "<li>Missing. no ",
            "<svg",
            "<table",
            "2 CPUs",
        ] {
            assert!(text.contains(inside), "{inside}");
        }
        assert!(!text.contains("NaN"));
    }
}
