//! What is run in each section of the page.

use upshift_load::Work;

use crate::check::same_bytes;
use crate::measure::Load;
use crate::options::Options;
use crate::peers::{Built, Peer, Program, UPSHIFT};
use crate::results::SectionResults;
use crate::rounds::{self, Entry};
use crate::{
    assign, conserve, cpp, files, machine, micro, multi, preemption, processes, sched, serve,
};

/// A part of the page that can be measured by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Section {
    /// HTTP/1.1 keep-alive, one request at a time per connection.
    Plaintext,
    /// The same, 16 requests in flight per connection.
    Pipelined,
    /// Matrices in a closed loop.
    Matrix,
    /// One connection: coroutines against threads.
    Single,
    /// More vCPUs than CPUs.
    Vcpus,
    /// Eight levels at overload.
    Levels,
    /// Long requests among short ones, with and without preemption.
    Preemption,
    /// An urgent server beside a batch process, without and with the daemon.
    Processes,
    /// Unmodified servers beside a batch process, under what the kernel and the daemon can do for them.
    Assign,
    /// Processes under policies in user space.
    Sched,
    /// axum, mixed load at overload, and files.
    Serve,
    /// Files, by blocking calls and without.
    Files,
    /// Servers in C++, beside the runtime in Rust and other libraries of C++.
    Cpp,
    /// Microbenchmarks.
    Micro,
    /// What is ready beside a worker that computes and one that idles.
    Conserve,
    /// Microbenchmarks on two workers.
    Multi,
}

/// Connections of the plaintext section.
pub(crate) const PLAINTEXT: [usize; 4] = [16, 64, 256, 1000];
/// Orders of the matrices.
pub(crate) const ORDERS: [usize; 3] = [8, 12, 20];
/// Connections of the matrix section.
pub(crate) const MATRIX: [usize; 5] = [8, 32, 64, 128, 512];
/// The levels of the overload: 0, 8, … 56.
pub(crate) const LEVELS: [u8; 8] = [0, 8, 16, 24, 32, 40, 48, 56];
/// Overload, as a multiple of what the server can do.
const OVERLOAD: f64 = 1.3;

/// The name of a plaintext load.
pub(crate) fn plaintext_case(connections: usize) -> String {
    format!("{connections} connections")
}

/// The name of a matrix load.
pub(crate) fn matrix_case(n: usize, connections: usize) -> String {
    format!("n = {n}, {connections} connections")
}

/// The name of the load of one connection.
pub(crate) fn single_case(n: usize) -> String {
    format!("n = {n}, 1 connection")
}

/// The load of the section `vcpus`.
pub(crate) const VCPUS_CASE: &str = "n = 20, 64 connections, unpinned";
/// The loads of the section `levels`, in the order they are measured.
pub(crate) const CLOSED_CASE: &str = "closed loop at one level";
/// What the server can do with full queues, which is more than in a closed loop: replies that wait leave together.
pub(crate) const CAPACITY_CASE: &str = "capacity: twice the closed loop offered, one level";
/// See [`CAPACITY_CASE`].
pub(crate) const ALONE_CASE: &str = "level 0 alone, its share of the load";
/// See [`CAPACITY_CASE`].
pub(crate) const OVERLOAD_CASE: &str = "8 levels, 130 % of capacity";
/// See [`CAPACITY_CASE`].
pub(crate) const ONE_LEVEL_CASE: &str = "the same load at one level";

/// The name of the row of a level.
pub(crate) fn level_row(level: u8) -> String {
    format!("level {level}")
}

impl Section {
    /// All, in the order of the page.
    pub(crate) const ALL: [Section; 16] = [
        Section::Plaintext,
        Section::Pipelined,
        Section::Matrix,
        Section::Single,
        Section::Vcpus,
        Section::Levels,
        Section::Preemption,
        Section::Processes,
        Section::Assign,
        Section::Sched,
        Section::Serve,
        Section::Files,
        Section::Cpp,
        Section::Micro,
        Section::Conserve,
        Section::Multi,
    ];

    /// Its name on the command line, and that of its file in `results/`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Section::Plaintext => "plaintext",
            Section::Pipelined => "pipelined",
            Section::Matrix => "matrix",
            Section::Single => "single",
            Section::Vcpus => "vcpus",
            Section::Levels => "levels",
            Section::Preemption => "preemption",
            Section::Processes => "processes",
            Section::Assign => "assign",
            Section::Sched => "sched",
            Section::Serve => "serve",
            Section::Files => "files",
            Section::Cpp => "cpp",
            Section::Micro => "micro",
            Section::Conserve => "conserve",
            Section::Multi => "multi",
        }
    }

    /// It measures the servers of plaintext or matrices of everybody.
    pub(crate) fn needs_peers(self) -> bool {
        matches!(
            self,
            Section::Plaintext | Section::Pipelined | Section::Matrix | Section::Single
        )
    }

    /// It measures Upshift, whatever peers are asked for.
    pub(crate) fn needs_upshift(self) -> bool {
        matches!(
            self,
            Section::Vcpus
                | Section::Levels
                | Section::Preemption
                | Section::Processes
                | Section::Assign
                | Section::Serve
        )
    }
}

/// Measures one section; `None` if nothing that it measures could be built.
pub(crate) fn run(section: Section, options: &Options, built: &Built) -> Option<SectionResults> {
    eprintln!("\n== {} ==", section.name());
    let mut results = SectionResults {
        commit: machine::commit(),
        machine: machine::describe(),
        versions: machine::versions(),
        ..SectionResults::default()
    };
    for (id, why) in &built.skipped {
        results.notes.push(format!("{id} was not built: {why}"));
    }
    results.commands.push(format!(
        "cargo xtask bench --only {} --rounds {} --seconds {}",
        section.name(),
        options.rounds_of(section),
        options.time_of(section).as_secs_f64()
    ));
    match section {
        Section::Plaintext => {
            let connections: &[usize] = if options.quick { &[64] } else { &PLAINTEXT };
            plaintext(&mut results, options, built, connections, 1);
        }
        Section::Pipelined => plaintext(&mut results, options, built, &[64], 16),
        Section::Matrix => {
            let (orders, connections): (&[usize], &[usize]) = if options.quick {
                (&[8], &[8, 64])
            } else {
                (&ORDERS, &MATRIX)
            };
            let servers = checked(&mut results, built, true);
            for &n in orders {
                for &c in connections {
                    let work = Work::Matrix { n };
                    closed(&mut results, options, &servers, &matrix_case(n, c), work, c);
                }
            }
        }
        Section::Single => {
            let mut servers = checked(&mut results, built, true);
            servers.retain(|(peer, _)| [UPSHIFT, "threads", "tokio-ct"].contains(&peer.id));
            for n in ORDERS {
                let work = Work::Matrix { n };
                closed(&mut results, options, &servers, &single_case(n), work, 1);
            }
        }
        Section::Vcpus => vcpus(&mut results, options, built),
        Section::Levels => levels(&mut results, options, built),
        Section::Preemption => {
            let mut options = options.clone();
            options.rounds = options.rounds_of(section);
            options.time = options.time_of(section);
            preemption::run(&mut results, &options, built);
        }
        Section::Processes => processes::run(&mut results, options, built),
        Section::Assign => assign::run(&mut results, options, built),
        Section::Sched => sched::run(&mut results, options, built),
        Section::Serve => serve::run(&mut results, options, built),
        Section::Files => files::run(&mut results, options, built),
        Section::Cpp => cpp::run(&mut results, options, built),
        Section::Micro => micro::run(&mut results, built),
        Section::Conserve => conserve::run(&mut results, options, built),
        Section::Multi => multi::run(&mut results, options, built),
    }
    if results.cells.is_empty() && results.figures.is_empty() {
        eprintln!("nothing measured in {}", section.name());
        return None;
    }
    results.when = machine::now();
    Some(results)
}

/// Servers that were built.
pub(crate) type Servers = Vec<(&'static Peer, Program)>;

/// The servers that can be built and give the expected bytes.
pub(crate) fn checked(results: &mut SectionResults, built: &Built, is_matrix: bool) -> Servers {
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
pub(crate) fn closed(
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

fn plaintext(
    results: &mut SectionResults,
    options: &Options,
    built: &Built,
    connections: &[usize],
    pipeline: usize,
) {
    let servers = checked(results, built, false);
    for &c in connections {
        let path = "/".to_owned();
        let work = Work::Http {
            path,
            headers: Vec::new(),
            pipeline,
        };
        closed(results, options, &servers, &plaintext_case(c), work, c);
    }
}

/// The name of the row of a number of vCPUs.
pub(crate) fn vcpus_row(vcpus: usize) -> String {
    format!("upshift --vcpus {vcpus}")
}

fn vcpus(results: &mut SectionResults, options: &Options, built: &Built) {
    let programs = ["2", "5"].map(|n| built.upshift(&["matrix-server", "--vcpus", n]));
    let entries: Vec<Entry<'_, Load>> = [2, 5]
        .into_iter()
        .zip(&programs)
        .filter_map(|(n, program)| {
            let mut load = Load::closed(Work::Matrix { n: 20 }, 64, options);
            load.pinned = false;
            Some(Entry {
                name: vcpus_row(n),
                program: program.as_ref()?,
                load,
            })
        })
        .collect();
    rounds::run(results, VCPUS_CASE, &entries, options.rounds);
}

/// Order of the matrices at overload: the largest of the matrix section, so that the server, not the client, is at its
/// limit.
const LEVELS_N: usize = 20;

fn levels(results: &mut SectionResults, options: &Options, built: &Built) {
    let args = ["matrix-server", "--vcpus", "1", "--pin", "0"];
    let Some(program) = built.upshift(&args) else {
        return;
    };
    let at = |levels: [u8; 8]| levels.map(|l| format!("127.0.0.1:0@{l}")).to_vec();
    let mut load = Load::closed(Work::Matrix { n: LEVELS_N }, 16, options);
    load.listen = at([LEVELS[4]; 8]);
    load.loaded = LEVELS.len();
    let entry = |load: &Load| Entry {
        name: "total".to_owned(),
        program: &program,
        load: load.clone(),
    };
    let rounds = options.rounds;
    let mut total = |case: &str, load: &Load| {
        rounds::run(results, case, &[entry(load)], rounds);
        results.cell(case, "total")?.median(|r| r.per_second)
    };
    let groups = LEVELS.len() as f64;
    let Some(closed) = total(CLOSED_CASE, &load) else {
        return;
    };
    load.rate = Some(2.0 * closed / groups);
    let Some(capacity) = total(CAPACITY_CASE, &load) else {
        return;
    };
    load.rate = Some(OVERLOAD * capacity / groups);
    let mut one_level = load.clone();
    one_level.per_address = Some(|i| format!("group {}", i + 1));
    load.listen = at(LEVELS);
    load.per_address = Some(|i| level_row(LEVELS[i]));
    let mut alone = load.clone();
    alone.loaded = 1;
    // Interleaved by hand: the three have rows of different names.
    for _ in 0..rounds {
        rounds::run(results, ALONE_CASE, &[entry(&alone)], 1);
        rounds::run(results, OVERLOAD_CASE, &[entry(&load)], 1);
        rounds::run(results, ONE_LEVEL_CASE, &[entry(&one_level)], 1);
    }
}
