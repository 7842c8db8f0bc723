//! The sections `plaintext`, `pipelined`, `matrix` and `single`: every server under the same closed loops.

use upshift_load::Work;

use crate::check::same_bytes;
use crate::measure::Load;
use crate::options::Options;
use crate::peers::{Built, Peer, Program, RAW_C, UPSHIFT};
use crate::results::{Run, SectionResults};
use crate::rounds::{self, Entry};
use crate::section::Section;
use crate::verdict::{Row, at_most, best_peer, row};

/// Connections of the plaintext section.
const PLAINTEXT: [usize; 4] = [16, 64, 256, 1000];
/// Orders of the matrices.
const ORDERS: [usize; 3] = [8, 12, 20];
/// Connections of the matrix section.
const MATRIX: [usize; 5] = [8, 32, 64, 128, 512];
/// The name of a plaintext load.
fn plaintext_case(connections: usize) -> String {
    format!("{connections} connections")
}

/// The name of a matrix load.
fn matrix_case(n: usize, connections: usize) -> String {
    format!("n = {n}, {connections} connections")
}

/// The name of the load of one connection.
fn single_case(n: usize) -> String {
    format!("n = {n}, 1 connection")
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
        servers.retain(|(peer, _)| [UPSHIFT, "threads", "tokio-ct"].contains(&peer.id));
    }
    for (case, work, connections) in loads(section, options) {
        closed(results, options, &servers, &case, work, connections);
    }
}

/// The loads of a section: name, what is asked, connections. None of a section of other files.
pub(crate) fn loads(section: Section, options: &Options) -> Vec<(String, Work, usize)> {
    let page = |connections, pipeline| {
        let work = Work::Http {
            path: "/".to_owned(),
            headers: Vec::new(),
            pipeline,
        };
        (plaintext_case(connections), work, connections)
    };
    let product = |n, c| (matrix_case(n, c), Work::Matrix { n }, c);
    match section {
        Section::Plaintext if !options.quick => PLAINTEXT.map(|c| page(c, 1)).into(),
        Section::Plaintext => vec![page(64, 1)],
        Section::Pipelined => vec![page(64, 16)],
        Section::Matrix if !options.quick => ORDERS
            .into_iter()
            .flat_map(|n| MATRIX.map(|c| product(n, c)))
            .collect(),
        Section::Matrix => [8, 64].map(|c| product(8, c)).into(),
        Section::Single => ORDERS
            .map(|n| (single_case(n), Work::Matrix { n }, 1))
            .into(),
        _ => Vec::new(),
    }
}

/// Servers that were built.
pub(super) type Servers = Vec<(&'static Peer, Program)>;

/// The servers that can be built and give the expected bytes.
pub(super) fn checked(results: &mut SectionResults, built: &Built, is_matrix: bool) -> Servers {
    let mut servers = built.servers(is_matrix);
    servers.retain(
        |(peer, program)| match same_bytes(peer, program, is_matrix) {
            Ok(()) => {
                let file = program.file.file_name().unwrap_or_default();
                let words = format!("{} {}", file.display(), program.args.join(" "));
                results.commands.push(format!("{}: `{words}`", peer.id));
                true
            }
            Err(why) => {
                eprintln!("  {} is left out: {why}", peer.id);
                let note = format!("{} is left out: {why}", peer.id);
                results.notes.push(note);
                false
            }
        },
    );
    servers
}

/// One load on every server.
pub(super) fn closed(
    results: &mut SectionResults,
    options: &Options,
    servers: &Servers,
    case: &str,
    work: Work,
    connections: usize,
) {
    let entries: Vec<Entry<'_, Load>> = servers
        .iter()
        .map(|(peer, program)| Entry {
            name: peer.id.to_owned(),
            program,
            load: Load::closed(work.clone(), connections, options),
        })
        .collect();
    rounds::run(results, case, &entries, options.rounds);
}

/// What the section `plaintext` was to reach.
pub(super) fn plaintext_rows(section: &SectionResults, rows: &mut Vec<Row>) {
    for connections in PLAINTEXT {
        let case = plaintext_case(connections);
        let ours = section.cell(&case, UPSHIFT);
        let cpu = ours.and_then(|c| c.median(Run::cpu));
        let best = best_peer(section, &case, Run::cpu);
        let raw = section.cell(&case, RAW_C).and_then(|c| c.median(Run::cpu));
        let at = format!("plaintext, {case}:");
        rows.push(row(
            format!("{at} no runtime below us (CPU/request)"),
            cpu.zip(best).map(|(us, (peer, best))| {
                let text = format!("{us:.2} µs; best peer {} {best:.2}", peer.peer);
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
        rows.push(row(
            format!("{at} user part ≤ 0.25 µs"),
            ours.and_then(|c| c.mean(|r| r.user))
                .map(|user| (format!("{user:.2} µs"), at_most(user, 0.25))),
        ));
    }
}

/// What the section `pipelined` was to reach.
pub(super) fn pipelined_rows(section: &SectionResults, rows: &mut Vec<Row>) {
    let cell = section.cell(&plaintext_case(64), UPSHIFT);
    let cpu = cell.and_then(|c| c.median(Run::cpu));
    rows.push(row(
        "pipelined × 16, 64 connections: ≤ 0.32 µs CPU/request",
        cpu.map(|us| (format!("{us:.3} µs"), at_most(us, 0.32))),
    ));
}

/// What the section `matrix` was to reach.
pub(super) fn matrix_rows(section: &SectionResults, rows: &mut Vec<Row>) {
    for n in ORDERS {
        for connections in MATRIX {
            let case = matrix_case(n, connections);
            let ours = section.cell(&case, UPSHIFT);
            let rate = ours.and_then(|c| c.median(|r| r.per_second));
            let best = best_peer(section, &case, |r| -r.per_second);
            rows.push(row(
                format!("matrix, {case}: ≥ best peer"),
                rate.zip(best).map(|(us, (peer, best))| {
                    let best = -best;
                    let text = format!("{:.1} k/s; {} {:.1}", us / 1e3, peer.peer, best / 1e3);
                    (text, at_most(best, us))
                }),
            ));
            let p99 = ours.and_then(|c| c.median(|r| r.p99));
            let theirs = best.and_then(|(c, _)| Some((c, c.median(|r| r.p99)?)));
            rows.push(row(
                format!("matrix, {case}: p99 ≤ that of the best peer"),
                p99.zip(theirs).map(|(us, (peer, p99))| {
                    let text = format!("{us:.0} µs; {} {p99:.0}", peer.peer);
                    (text, at_most(us, p99))
                }),
            ));
        }
    }
    let case = matrix_case(8, 512);
    let rate = |peer| {
        let cell = section.cell(&case, peer)?;
        cell.median(|r| r.per_second)
    };
    rows.push(row(
        format!("matrix, {case}: ≥ 3.5 × threads"),
        rate(UPSHIFT)
            .zip(rate("threads"))
            .map(|(us, threads)| (format!("{:.2} ×", us / threads), at_most(3.5, us / threads))),
    ));
}

/// What the section `single` was to reach.
pub(super) fn single_rows(section: &SectionResults, rows: &mut Vec<Row>) {
    for n in ORDERS {
        let case = single_case(n);
        let rate = |peer| {
            let cell = section.cell(&case, peer)?;
            cell.median(|r| r.per_second)
        };
        rows.push(row(
            format!("closed loop, {case}: not slower than threads"),
            rate(UPSHIFT).zip(rate("threads")).map(|(us, threads)| {
                let text = format!("{us:.0} against {threads:.0} per s");
                (text, at_most(threads, us))
            }),
        ));
    }
}
