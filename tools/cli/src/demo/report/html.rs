//! The report as one HTML file.

use upshift_load::machine::Machine;
use upshift_report::Page;

use super::{Finding, Section};

/// What the file says besides the sections.
#[derive(Debug)]
pub(crate) struct Content<'a> {
    pub(crate) machine: &'a Machine,
    /// The command that made the report.
    pub(crate) command: &'a str,
    /// Where server and client ran.
    pub(crate) placement: &'a str,
    /// Seconds the whole demo took.
    pub(crate) seconds: f64,
    pub(crate) sections: &'a [Section],
}

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
pub(crate) fn page(content: &Content<'_>) -> String {
    let mut page = Page::new("Upshift demo report");
    page.paragraph(
        "Coroutines with 64 priority levels, measured against threads with the matrix web server of the papers on \
         SharedScheduler, a research scheduler for coroutines across kernel and processes: a request carries n × n \
         numbers, the reply is their square; receive, compute and send are three coroutines (or three threads) per \
         connection. Experiments 4 to 6 use a server that burns as much CPU time as a request asks for.",
    );
    page.facts(&[
        ("Machine", content.machine.line()),
        ("Placement", content.placement.to_owned()),
        ("Command", content.command.to_owned()),
        ("Version", format!("upshift {}", env!("CARGO_PKG_VERSION"))),
        ("Took", format!("{:.0} s", content.seconds)),
    ]);
    if let Some(headline) = content.sections.iter().find_map(|s| s.headline.as_ref()) {
        headline.show(&mut page);
    }
    page.heading(2, "In short");
    for section in content.sections {
        page.heading(3, &section.title);
        let line = |finding: &Finding| format!("{} {}", finding.mark(), finding.text);
        page.list(section.findings.iter().map(line));
    }
    for section in content.sections {
        page.heading(2, &section.title);
        page.paragraph(&section.intro);
        page.plots(&section.plots);
        for svg in &section.timelines {
            page.figure(svg);
        }
        for table in &section.tables {
            page.table(table);
        }
        if !section.commands.is_empty() {
            page.heading(3, "Repeat it");
            page.code(&section.commands.join("\n"));
        }
    }
    page.heading(2, "Limits");
    page.list(LIMITS);
    page.html()
}
