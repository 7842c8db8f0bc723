//! What is measured: the peers of `table.rs`, built.
//!
//! Every peer is built on its own: one that fails is skipped and named, and the others are measured.

mod table;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use crate::build::{self, Source};
use crate::options::Options;
use crate::section::Section;
use table::{AXUM, FILES, NOT_MULTI, SCHED, SERVE, SPIN, TWO_WORKERS};
pub(crate) use table::{CPP, MICRO, Micro, NO_RUNTIME, PEERS, Peer, RAW_C, UPSHIFT, UPSHIFT_CPP};

/// A program that was built: its file and its first arguments.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// The executable.
    pub(crate) file: PathBuf,
    /// Arguments that pick the server.
    pub(crate) args: Vec<String>,
    /// Variables of its environment.
    pub(crate) env: Vec<(String, String)>,
    /// The user and group that it runs as, without rights; those of the driver if `None`.
    pub(crate) user: Option<u32>,
}

impl Program {
    /// With these arguments, in the environment and with the rights of the driver.
    pub(crate) fn new(file: PathBuf, args: &[&str]) -> Program {
        Program {
            file,
            args: args.iter().map(|&arg| arg.to_owned()).collect(),
            env: Vec::new(),
            user: None,
        }
    }
}

/// Upshift's server of plaintext or of matrices.
pub(crate) fn upshift_server(is_matrix: bool) -> (Source, &'static [&'static str]) {
    let Peer {
        source,
        plaintext,
        matrix,
        ..
    } = &PEERS[0];
    (
        *source,
        if is_matrix {
            matrix.unwrap_or(plaintext)
        } else {
            plaintext
        },
    )
}

/// Upshift's microbenchmarks.
pub(crate) fn upshift_micro() -> (Source, &'static [&'static str]) {
    (MICRO[0].source, MICRO[0].args)
}

/// What could be built, and why the rest could not.
#[derive(Default)]
pub(crate) struct Built {
    files: HashMap<Source, PathBuf>,
    wanted: Vec<String>,
    /// What was not built, and why.
    pub(crate) skipped: BTreeMap<&'static str, String>,
}

impl Built {
    /// The servers of plaintext (or matrix) that exist.
    pub(crate) fn servers(&self, matrix: bool) -> Vec<(&'static Peer, Program)> {
        PEERS
            .iter()
            .filter(|peer| self.is_wanted(peer.id))
            .filter_map(|peer| {
                let args = if matrix { peer.matrix? } else { peer.plaintext };
                Some((peer, self.program(peer.source, args)?))
            })
            .collect()
    }

    /// The microbenchmarks that exist.
    pub(crate) fn micro(&self) -> Vec<(&'static Micro, Program)> {
        MICRO
            .iter()
            .filter(|micro| self.is_wanted(micro.id))
            .filter_map(|micro| Some((micro, self.program(micro.source, micro.args)?)))
            .collect()
    }

    /// The programs of the section `conserve` that exist.
    pub(crate) fn conserve(&self) -> Vec<(&'static str, Program)> {
        TWO_WORKERS
            .iter()
            .filter(|(id, ..)| self.is_wanted(id))
            .filter_map(|&(id, source, args)| Some((id, self.program(source, args)?)))
            .collect()
    }

    /// The programs of the section `multi` that exist.
    pub(crate) fn multi(&self) -> Vec<(&'static str, Program)> {
        let mut programs = self.conserve();
        programs.retain(|(id, _)| !NOT_MULTI.contains(id));
        programs
    }

    /// The program that measures policies over processes.
    pub(crate) fn sched(&self) -> Option<Program> {
        self.program(SCHED, &[])
    }

    /// The programs of the section `files` that exist.
    pub(crate) fn files(&self) -> Vec<(&'static str, Program)> {
        FILES
            .iter()
            .filter(|(id, ..)| self.is_wanted(id))
            .filter_map(|&(id, source, args)| Some((id, self.program(source, args)?)))
            .collect()
    }

    /// The spin servers of others that exist.
    pub(crate) fn spin(&self) -> Vec<(String, Program)> {
        SPIN.iter()
            .filter(|(id, ..)| self.is_wanted(id))
            .filter_map(|&(id, source, args)| Some((id.to_owned(), self.program(source, args)?)))
            .collect()
    }

    /// The axum application with and without preemption, and on tokio, as far as it exists.
    pub(crate) fn axum(&self) -> Vec<(String, Program)> {
        AXUM.iter()
            .filter_map(|&(id, source, args)| Some((id.to_owned(), self.program(source, args)?)))
            .collect()
    }

    /// The web servers of others, and axum on our runtime, that exist.
    pub(crate) fn web(&self) -> Vec<(String, Program)> {
        SERVE
            .iter()
            .filter_map(|&(id, source, args)| Some((id.to_owned(), self.program(source, args)?)))
            .collect()
    }

    /// The command `upshift`, to be given arguments of the caller's.
    pub(crate) fn upshift(&self, args: &[&str]) -> Option<Program> {
        self.program(PEERS[0].source, args)
    }

    fn is_wanted(&self, id: &str) -> bool {
        self.wanted.is_empty() || self.wanted.iter().any(|w| w == id)
    }

    fn program(&self, source: Source, args: &[&str]) -> Option<Program> {
        Some(Program::new(self.files.get(&source)?.clone(), args))
    }
}

/// Builds everything that the options ask for.
pub(crate) fn build(options: &Options) -> Built {
    let mut built = Built {
        wanted: options.peers.clone(),
        ..Built::default()
    };
    let servers = options.only.iter().any(|s| s.needs_peers());
    let levels = options.only.iter().any(|s| s.needs_upshift());
    let mut sources: Vec<(&'static str, Source)> = Vec::new();
    if servers {
        let wanted = |p: &&Peer| built.is_wanted(p.id) || (levels && p.id == UPSHIFT);
        sources.extend(PEERS.iter().filter(wanted).map(|p| (p.id, p.source)));
    }
    if options.only.contains(&Section::Cpp) && !servers {
        let wanted = |p: &&Peer| CPP.contains(&p.id) && built.is_wanted(p.id);
        sources.extend(PEERS.iter().filter(wanted).map(|p| (p.id, p.source)));
    }
    if levels && !servers {
        sources.push((UPSHIFT, PEERS[0].source));
    }
    if options.only.contains(&Section::Preemption) {
        let wanted = SPIN.iter().filter(|(id, ..)| built.is_wanted(id));
        sources.extend(wanted.map(|&(id, source, _)| (id, source)));
        sources.extend(AXUM.iter().map(|&(id, source, _)| (id, source)));
    }
    if options.only.contains(&Section::Sched) {
        sources.push(("sched", SCHED));
    }
    if options.only.contains(&Section::Serve) {
        sources.extend(SERVE.iter().map(|&(id, source, _)| (id, source)));
    }
    if options.only.contains(&Section::Files) {
        let wanted = FILES.iter().filter(|(id, ..)| built.is_wanted(id));
        sources.extend(wanted.map(|&(id, source, _)| (id, source)));
    }
    if options.only.contains(&Section::Micro) {
        let wanted = MICRO.iter().filter(|m| built.is_wanted(m.id));
        sources.extend(wanted.map(|m| (m.id, m.source)));
    }
    let two = [Section::Conserve, Section::Multi];
    if two.iter().any(|section| options.only.contains(section)) {
        let wanted = TWO_WORKERS.iter().filter(|(id, ..)| built.is_wanted(id));
        sources.extend(wanted.map(|&(id, source, _)| (id, source)));
    }
    let mut tried: HashMap<Source, Result<PathBuf, String>> = HashMap::new();
    for (id, source) in sources {
        let outcome = tried.entry(source).or_insert_with(|| {
            eprintln!("building {id}");
            build::build(source).inspect_err(|why| eprintln!("  not built: {why}"))
        });
        match outcome {
            Ok(file) => {
                built.files.insert(source, file.clone());
            }
            Err(why) => {
                built.skipped.insert(id, why.clone());
            }
        }
    }
    built
}
