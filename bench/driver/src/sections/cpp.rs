//! The section `cpp`: the same two servers on Upshift's headers, on the Rust runtime below them,
//! and on other C++20 libraries.

use upshift_load::Work;

use super::closed::{checked, closed, page};
use crate::options::Options;
use crate::peers::{Built, CPP, UPSHIFT, UPSHIFT_CPP};
use crate::results::{Run, SectionResults};
use crate::verdict::{Row, at_most, row, within};

/// Other libraries with C++20 coroutines.
const OTHERS: [&str; 3] = ["asio", "asio-uring", "kuro-design"];
const CONNECTIONS: usize = 64;
/// Permitted cost of C++ relative to Rust. It is a margin, to which noise is not added.
const MARGIN: f64 = 1.05;

/// Returns the loads: name, requests, whether they are matrices.
fn cases() -> [(String, Work, bool); 3] {
    let plaintext = format!("plaintext, {CONNECTIONS} connections");
    let matrix = |n| format!("matrices, n = {n}, {CONNECTIONS} connections");
    [
        (plaintext, page("/", &[], 1), false),
        (matrix(8), Work::Matrix { n: 8 }, true),
        (matrix(20), Work::Matrix { n: 20 }, true),
    ]
}

pub(crate) fn run(results: &mut SectionResults, options: &Options, built: &Built) {
    let servers = [false, true].map(|is_matrix| {
        let mut servers = checked(results, built, is_matrix);
        servers.retain(|(id, _)| CPP.contains(&id.as_str()));
        servers
    });
    for (case, work, is_matrix) in cases() {
        let servers = &servers[usize::from(is_matrix)];
        closed(results, options, servers, &case, &work, CONNECTIONS);
    }
}

pub(crate) fn rows(section: &SectionResults) -> Vec<Row> {
    let mut rows = Vec::new();
    for (case, ..) in cases() {
        let cpu = |peer: &str| section.median(&case, peer, Run::cpu);
        rows.push(row(
            format!("C++, {case}: CPU/request ≤ 1.05 × Rust"),
            cpu(UPSHIFT_CPP).zip(cpu(UPSHIFT)).map(|(cpp, rust)| {
                let text = format!("{:.2} × ({cpp:.2} against {rust:.2} µs)", cpp / rust);
                (text, within(cpp / rust <= MARGIN))
            }),
        ));
        let rate = |peer| section.median(&case, peer, |run| run.per_second);
        rows.push(row(
            format!("C++, {case}: requests/s ≥ Rust / 1.05"),
            rate(UPSHIFT_CPP).zip(rate(UPSHIFT)).map(|(cpp, rust)| {
                let text = format!("{:.1} against {:.1} k/s", cpp / 1e3, rust / 1e3);
                (text, within(rust / cpp <= MARGIN))
            }),
        ));
        let best = section.least(&case, |peer| OTHERS.contains(&peer), Run::cpu);
        rows.push(row(
            format!("C++, {case}: no other library of C++ below us (CPU/request)"),
            cpu(UPSHIFT_CPP).zip(best).map(|(cpp, (peer, best))| {
                (format!("{cpp:.2} µs; {peer} {best:.2}"), at_most(cpp, best))
            }),
        ));
    }
    rows
}
