//! The sections `plaintext`, `pipelined`, `matrix` and `single`: every server under the same closed
//! loops.

use upshift_load::Work;

use crate::check::same_bytes;
use crate::measure::Load;
use crate::options::Options;
use crate::peers::{Built, Programs, RAW_C, UPSHIFT};
use crate::results::{Run, SectionResults};
use crate::rounds;
use crate::section::Section;
use crate::verdict::{Row, at_most, best_peer, row};

/// Numbers of connections in the plaintext section.
const PLAINTEXT: [usize; 4] = [16, 64, 256, 1000];
/// Orders of the matrices.
const ORDERS: [usize; 3] = [8, 12, 20];
/// Numbers of connections in the matrix section.
const MATRIX: [usize; 5] = [8, 32, 64, 128, 512];

/// Returns the name of a plaintext load.
fn plaintext_case(connections: usize) -> String {
    format!("{connections} connections")
}

/// Returns the name of a matrix load.
fn matrix_case(n: usize, connections: usize) -> String {
    let s = if connections == 1 { "" } else { "s" };
    format!("n = {n}, {connections} connection{s}")
}

/// Runs one of the sections of this file.
pub(super) fn run(
    section: Section,
    results: &mut SectionResults,
    options: &Options,
    built: &Built,
) {
    let is_matrix = matches!(section, Section::Matrix | Section::Single);
    let mut servers = checked(results, built, is_matrix);
    if section == Section::Single {
        servers.retain(|(id, _)| [UPSHIFT, "threads", "tokio-ct"].contains(&id.as_str()));
    }
    for (case, work, connections) in loads(section, options) {
        closed(results, options, &servers, &case, &work, connections);
    }
}

/// Returns requests for a page.
pub(crate) fn page(path: &str, headers: &[&str], pipeline: usize) -> Work {
    Work::Http {
        path: path.to_owned(),
        headers: headers.iter().map(|&line| line.to_owned()).collect(),
        pipeline,
    }
}

/// Returns the loads of a section: name, kind of request, connections. Empty for sections of other
/// files.
pub(crate) fn loads(section: Section, options: &Options) -> Vec<(String, Work, usize)> {
    let page = |c, pipeline| (plaintext_case(c), page("/", &[], pipeline), c);
    let product = |n, c| (matrix_case(n, c), Work::Matrix { n }, c);
    match section {
        Section::Plaintext if !options.quick => PLAINTEXT.map(|c| page(c, 1)).into(),
        Section::Plaintext => vec![page(64, 1)],
        Section::Pipelined => vec![page(64, 16)],
        Section::Matrix if options.quick => [8, 64].map(|c| product(8, c)).into(),
        Section::Matrix => {
            let orders = ORDERS.into_iter();
            orders.flat_map(|n| MATRIX.map(|c| product(n, c))).collect()
        }
        Section::Single => ORDERS.map(|n| product(n, 1)).into(),
        _ => Vec::new(),
    }
}

/// Returns the built servers that give the expected bytes.
pub(super) fn checked(results: &mut SectionResults, built: &Built, is_matrix: bool) -> Programs {
    let mut servers = built.servers(is_matrix);
    servers.retain(|(id, program)| {
        let same = same_bytes(id, program, is_matrix);
        keep(results, id, program, same)
    });
    servers
}

/// Notes the command of a server that answers correctly, or the reason for leaving it out.
pub(super) fn keep(
    results: &mut SectionResults,
    id: &str,
    program: &crate::peers::Program,
    checked: Result<(), String>,
) -> bool {
    match &checked {
        Ok(()) => results.command(id, program),
        Err(why) => results.note(format!("{id} is left out: {why}")),
    }
    checked.is_ok()
}

/// Runs one load on every server.
pub(super) fn closed(
    results: &mut SectionResults,
    options: &Options,
    servers: &Programs,
    case: &str,
    work: &Work,
    connections: usize,
) {
    let load = Load::closed(work.clone(), connections, options);
    let entries = rounds::entries(servers, |_| Some(load.clone()));
    rounds::run(results, case, &entries, options.rounds);
}

/// Returns the goals of the section `plaintext`.
pub(super) fn plaintext(section: &SectionResults) -> Vec<Row> {
    let mut rows = Vec::new();
    for case in PLAINTEXT.map(plaintext_case) {
        let cpu = section.median(&case, UPSHIFT, Run::cpu);
        let raw = section.median(&case, RAW_C, Run::cpu);
        let at = format!("plaintext, {case}:");
        rows.push(row(
            format!("{at} no runtime below us (CPU/request)"),
            cpu.zip(best_peer(section, &case, Run::cpu))
                .map(|(us, (peer, best))| {
                    let text = format!("{us:.2} µs; best peer {peer} {best:.2}");
                    (text, at_most(us, best))
                }),
        ));
        rows.push(row(
            format!("{at} ≤ 1.04 × raw C"),
            cpu.zip(raw).map(|(us, raw)| {
                let text = format!("{:.3} × ({us:.2} against {raw:.2} µs)", us / raw);
                (text, at_most(us / raw, 1.04))
            }),
        ));
        let ours = section.cell(&case, UPSHIFT);
        rows.push(row(
            format!("{at} user part ≤ 0.25 µs"),
            ours.and_then(|c| c.mean(|r| r.user))
                .map(|user| (format!("{user:.2} µs"), at_most(user, 0.25))),
        ));
    }
    rows
}

/// Returns the goals of the section `pipelined`.
pub(super) fn pipelined(section: &SectionResults) -> Vec<Row> {
    let cpu = section.median(&plaintext_case(64), UPSHIFT, Run::cpu);
    vec![row(
        "pipelined × 16, 64 connections: ≤ 0.32 µs CPU/request",
        cpu.map(|us| (format!("{us:.3} µs"), at_most(us, 0.32))),
    )]
}

/// Returns the goals of the section `matrix`.
pub(super) fn matrix(section: &SectionResults) -> Vec<Row> {
    let mut rows = Vec::new();
    let rate = |case: &str, peer: &str| section.median(case, peer, |r| r.per_second);
    for (n, connections) in ORDERS.into_iter().flat_map(|n| MATRIX.map(|c| (n, c))) {
        let case = matrix_case(n, connections);
        let best = best_peer(section, &case, |r| -r.per_second);
        rows.push(row(
            format!("matrix, {case}: ≥ best peer"),
            rate(&case, UPSHIFT).zip(best).map(|(us, (peer, best))| {
                let text = format!("{:.1} k/s; {peer} {:.1}", us / 1e3, -best / 1e3);
                (text, at_most(-best, us))
            }),
        ));
        let p99 = |peer: &str| section.median(&case, peer, |r| r.p99);
        let theirs = best.and_then(|(peer, _)| Some((peer, p99(peer)?)));
        rows.push(row(
            format!("matrix, {case}: p99 ≤ that of the best peer"),
            p99(UPSHIFT).zip(theirs).map(|(us, (peer, p99))| {
                (format!("{us:.0} µs; {peer} {p99:.0}"), at_most(us, p99))
            }),
        ));
    }
    let case = matrix_case(8, 512);
    let both = rate(&case, UPSHIFT).zip(rate(&case, "threads"));
    rows.push(row(
        format!("matrix, {case}: ≥ 3.5 × threads"),
        both.map(|(us, threads)| (format!("{:.2} ×", us / threads), at_most(3.5, us / threads))),
    ));
    rows
}

/// Returns the goals of the section `single`.
pub(super) fn single(section: &SectionResults) -> Vec<Row> {
    let goal = |n| {
        let case = matrix_case(n, 1);
        let rate = |peer| section.median(&case, peer, |r| r.per_second);
        let found = rate(UPSHIFT).zip(rate("threads")).map(|(us, threads)| {
            let text = format!("{us:.0} against {threads:.0} per s");
            (text, at_most(threads, us))
        });
        row(
            format!("closed loop, {case}: not slower than threads"),
            found,
        )
    };
    ORDERS.map(goal).into()
}
