//! The sections `plaintext`, `pipelined`, `matrix` and `single`: measures every server under the
//! same closed loops, in which a connection sends its next request after the reply.

use upshift_load::Work;

use crate::check::same_bytes;
use crate::goal::{Goal, Values, at_least, at_most, best_peer};
use crate::measure::Load;
use crate::options::Options;
use crate::peers::{BuiltPrograms, Programs, RAW_C, UPSHIFT};
use crate::results::{Run, SectionResults};
use crate::rounds;
use crate::section::Section;

/// Numbers of connections in the section `plaintext`.
const PLAINTEXT: [usize; 4] = [16, 64, 256, 1000];
/// Orders of the matrices.
const ORDERS: [usize; 3] = [8, 12, 20];
/// Numbers of connections in the matrix section.
const MATRIX: [usize; 5] = [8, 32, 64, 128, 512];

fn plaintext_case(connections: usize) -> String {
    format!("{connections} connections")
}

fn matrix_case(n: usize, connections: usize) -> String {
    let s = if connections == 1 { "" } else { "s" };
    format!("n = {n}, {connections} connection{s}")
}

pub(super) fn run(
    section: Section,
    results: &mut SectionResults,
    options: &Options,
    built: &BuiltPrograms,
) {
    let is_matrix = matches!(section, Section::Matrix | Section::Single);
    let servers = checked_servers(results, built, section, is_matrix);
    for (case, work, connections) in loads(section, options) {
        run_load(results, options, &servers, &case, &work, connections);
    }
}

/// Returns requests for a page, `pipeline` of them in flight per connection.
pub(crate) fn page(path: &str, headers: &[&str], pipeline: usize) -> Work {
    Work::Http {
        path: path.to_owned(),
        headers: headers.iter().map(|&line| line.to_owned()).collect(),
        pipeline,
    }
}

/// Returns the loads of a section: name, kind of request, number of connections. There are none for
/// the sections of other modules.
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

/// Returns the built servers of a section that reply with the expected bytes.
pub(super) fn checked_servers(
    results: &mut SectionResults,
    built: &BuiltPrograms,
    section: Section,
    is_matrix: bool,
) -> Programs {
    let mut servers = built.servers(section, is_matrix);
    servers.retain(|(id, program)| {
        let outcome = same_bytes(id, program, is_matrix);
        admit(results, id, program, outcome)
    });
    servers
}

/// Notes the command of a program whose check has succeeded, or the reason for leaving the program
/// out. Returns whether the check has succeeded.
pub(super) fn admit(
    results: &mut SectionResults,
    id: &str,
    program: &crate::peers::Program,
    checked: Result<(), String>,
) -> bool {
    match &checked {
        Ok(()) => results.note_command(id, program),
        Err(why) => {
            results.note(format!("{id} is left out: {why}"));
            if !results.missing.iter().any(|missing| missing == id) {
                results.missing.push(id.to_owned());
            }
        }
    }
    checked.is_ok()
}

pub(super) fn run_load(
    results: &mut SectionResults,
    options: &Options,
    servers: &Programs,
    case: &str,
    work: &Work,
    connections: usize,
) {
    let load = Load::closed(work.clone(), connections, options);
    let entries = rounds::entries(servers, |_| Some(load.clone()));
    rounds::run(results, case, &entries, options);
}

pub(super) fn plaintext(section: &SectionResults) -> Vec<Goal> {
    let goals = |connections| {
        let case = plaintext_case(connections);
        let own = || section.values(&case, UPSHIFT, Run::cpu);
        let best = best_peer(section, &case, Run::cpu);
        let best = best.and_then(|(peer, _)| section.values(&case, peer, Run::cpu));
        let raw = section.values(&case, RAW_C, Run::cpu);
        let cause = if connections < 1000 {
            "not known"
        } else {
            "the kernel's work displaces futures, descriptors and slots from the cache"
        };
        [
            at_most(format!("{case}: CPU per request ≤ best runtime"), 1.0, "µs")
                .cell("", own(), best)
                .cause(cause),
            at_most(
                format!("{case}: CPU per request ≤ 1.04 × raw C"),
                1.04,
                "µs",
            )
            .cell("", own(), raw)
            .cause(cause),
            at_most(format!("{case}: user part ≤ 0.25 µs"), 1.0, "µs")
                .cell(
                    "",
                    section.values(&case, UPSHIFT, |run| run.user),
                    Values::limit(0.25),
                )
                .cause(cause),
        ]
    };
    PLAINTEXT.into_iter().flat_map(goals).collect()
}

pub(super) fn pipelined(section: &SectionResults) -> Vec<Goal> {
    let own = section.values(&plaintext_case(64), UPSHIFT, Run::cpu);
    let goal = at_most("64 connections: CPU per request ≤ 0.32 µs", 1.0, "µs");
    vec![
        goal.cell("", own, Values::limit(0.32))
            .cause("all but 0.05 µs is the kernel's"),
    ]
}

pub(super) fn matrix(section: &SectionResults) -> Vec<Goal> {
    let mut goals = Vec::new();
    let rate = |run: &Run| run.per_second / 1e3;
    for (n, connections) in ORDERS.into_iter().flat_map(|n| MATRIX.map(|c| (n, c))) {
        let case = matrix_case(n, connections);
        let best = best_peer(section, &case, |run| -run.per_second).map(|(peer, _)| peer);
        let both = |quantity: fn(&Run) -> f64| {
            let best = best.and_then(|peer| section.values(&case, peer, quantity));
            (section.values(&case, UPSHIFT, quantity), best)
        };
        let ((own, best), (own_p99, best_p99)) = (both(rate), both(|run| run.p99));
        goals.push(at_least(format!("{case}: rate ≥ best peer"), 1.0, "k/s").cell("", own, best));
        goals.push(
            at_most(format!("{case}: p99 ≤ that of the best peer"), 1.0, "µs")
                .cell("", own_p99, best_p99),
        );
    }
    let case = matrix_case(8, 512);
    let [own, threads] = [UPSHIFT, "threads"].map(|peer| section.values(&case, peer, rate));
    goals
        .push(at_least(format!("{case}: rate ≥ 3.5 × threads"), 3.5, "k/s").cell("", own, threads));
    goals
}

pub(super) fn single(section: &SectionResults) -> Vec<Goal> {
    let goal = |n| {
        let case = matrix_case(n, 1);
        let [own, threads] =
            [UPSHIFT, "threads"].map(|peer| section.values(&case, peer, |run| run.per_second));
        at_least(format!("{case}: rate ≥ threads"), 1.0, "/s").cell("", own, threads)
    };
    ORDERS.map(goal).into()
}
