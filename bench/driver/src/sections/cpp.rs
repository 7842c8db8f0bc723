//! The section of C++: the same two servers on Upshift's headers, on the runtime in Rust below them, and on other libraries of C++20.

use upshift_load::Work;

use super::closed::{Servers, checked, closed};
use crate::options::Options;
use crate::peers::{Built, CPP, UPSHIFT, UPSHIFT_CPP};
use crate::results::{Run, SectionResults};
use crate::verdict::{Row, Verdict, at_most, row};

/// Others with coroutines of C++20.
const OTHERS: [&str; 3] = ["asio", "asio-uring", "kuro-design"];

const CONNECTIONS: usize = 64;
const ORDERS: [usize; 2] = [8, 20];
/// What C++ may cost more than Rust. A margin, so noise is not added to it.
const MARGIN: f64 = 1.05;

fn plaintext_case() -> String {
    format!("plaintext, {CONNECTIONS} connections")
}

fn matrix_case(n: usize) -> String {
    format!("matrices, n = {n}, {CONNECTIONS} connections")
}

fn cases() -> impl Iterator<Item = String> {
    std::iter::once(plaintext_case()).chain(ORDERS.map(matrix_case))
}

pub(crate) fn run(results: &mut SectionResults, options: &Options, built: &Built) {
    let ours = |results: &mut SectionResults, is_matrix| -> Servers {
        let mut servers = checked(results, built, is_matrix);
        servers.retain(|(peer, _)| CPP.contains(&peer.id));
        servers
    };
    let servers = ours(results, false);
    let work = Work::Http {
        path: "/".to_owned(),
        headers: Vec::new(),
        pipeline: 1,
    };
    closed(
        results,
        options,
        &servers,
        &plaintext_case(),
        work,
        CONNECTIONS,
    );
    let servers = ours(results, true);
    for n in ORDERS {
        let (case, work) = (matrix_case(n), Work::Matrix { n });
        closed(results, options, &servers, &case, work, CONNECTIONS);
    }
}

pub(crate) fn rows(section: &SectionResults, rows: &mut Vec<Row>) {
    for case in cases() {
        let median = |peer: &str, of: fn(&Run) -> f64| section.cell(&case, peer)?.median(of);
        let cpu = median(UPSHIFT_CPP, Run::cpu);
        rows.push(row(
            format!("C++, {case}: CPU/request ≤ 1.05 × Rust"),
            cpu.zip(median(UPSHIFT, Run::cpu)).map(|(cpp, rust)| {
                let text = format!("{:.2} × ({cpp:.2} against {rust:.2} µs)", cpp / rust);
                (text, within(cpp / rust))
            }),
        ));
        let rate = |peer| median(peer, |run| run.per_second);
        rows.push(row(
            format!("C++, {case}: requests/s ≥ Rust / 1.05"),
            rate(UPSHIFT_CPP).zip(rate(UPSHIFT)).map(|(cpp, rust)| {
                let text = format!("{:.1} against {:.1} k/s", cpp / 1e3, rust / 1e3);
                (text, within(rust / cpp))
            }),
        ));
        let others = OTHERS.into_iter();
        let best = others
            .filter_map(|peer| Some((peer, median(peer, Run::cpu)?)))
            .min_by(|a, b| a.1.total_cmp(&b.1));
        rows.push(row(
            format!("C++, {case}: no other library of C++ below us (CPU/request)"),
            cpu.zip(best).map(|(cpp, (peer, best))| {
                let text = format!("{cpp:.2} µs; {peer} {best:.2}");
                (text, at_most(cpp, best))
            }),
        ));
    }
}

fn within(ratio: f64) -> Verdict {
    if ratio <= MARGIN {
        Verdict::Reached
    } else {
        Verdict::Missed
    }
}
