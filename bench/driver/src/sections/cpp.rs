//! The section `cpp`: measures the same two servers on Upshift's C++ headers, on the Rust runtime
//! below these headers, and on other C++20 libraries.

use upshift_load::Work;

use super::closed::{checked_servers, page, run_load};
use crate::goal::{Goal, at_least, at_most};
use crate::options::Options;
use crate::peers::{BuiltPrograms, UPSHIFT, UPSHIFT_CPP};
use crate::results::{Run, SectionResults};
use crate::section::Section;

/// Other libraries with C++20 coroutines.
const OTHER_LIBRARIES: [&str; 3] = ["asio", "asio-uring", "kuro-design"];
const CONNECTIONS: usize = 64;
/// Permitted cost of C++ relative to Rust. Every excess is a miss, never noise.
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

pub(crate) fn run(results: &mut SectionResults, options: &Options, built: &BuiltPrograms) {
    let servers =
        [false, true].map(|is_matrix| checked_servers(results, built, Section::Cpp, is_matrix));
    for (case, work, is_matrix) in cases() {
        let servers = &servers[usize::from(is_matrix)];
        run_load(results, options, servers, &case, &work, CONNECTIONS);
    }
}

pub(crate) fn goals(section: &SectionResults) -> Vec<Goal> {
    let mut goals = Vec::new();
    for (case, ..) in cases() {
        let cpu = |peer: &str| section.values(&case, peer, Run::cpu);
        let rate = |peer: &str| section.values(&case, peer, |run| run.per_second / 1e3);
        let best = section.lowest_median(&case, |peer| OTHER_LIBRARIES.contains(&peer), Run::cpu);
        goals.push(
            at_most(
                format!("{case}: CPU per request ≤ 1.05 × Rust"),
                MARGIN,
                "µs",
            )
            .cell("", cpu(UPSHIFT_CPP), cpu(UPSHIFT))
            .margin(),
        );
        goals.push(
            at_least(format!("{case}: rate ≥ Rust / 1.05"), 1.0 / MARGIN, "k/s")
                .cell("", rate(UPSHIFT_CPP), rate(UPSHIFT))
                .margin(),
        );
        goals.push(
            at_most(
                format!("{case}: CPU per request ≤ best library of C++"),
                1.0,
                "µs",
            )
            .cell("", cpu(UPSHIFT_CPP), best.and_then(|(peer, _)| cpu(peer))),
        );
    }
    goals
}
