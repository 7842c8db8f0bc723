//! Builds the measured programs, called *peers*, which `table.rs` lists.
//!
//! Each peer is built on its own, so that a peer that fails to build is skipped and reported, and
//! the others are measured.

mod table;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use crate::build::{self, Source};
use crate::options::Options;
use crate::section::Section;
pub(crate) use table::{
    ALTERNATIVES, AXUM_TOKIO, AXUM_TOKIO_MT, AXUM_UPSHIFT, CONSERVE_ONLY, FILES, GO_HTTP,
    HAPROXY_NICE, HAPROXY_QUEUE, HAPROXY_WEIGHT, KURO, MICRO, RAW_C, READINESS, SCHED, SMOL, SPIN,
    THREADS, TOKIO, TOKIO_MT, TWO_WORKERS, UPSHIFT, UPSHIFT_CPP, WEB, WITHOUT_RUNTIME,
};
use table::{CLI, CPP, PAPERS, Peer, SERVERS, SINGLE, WITHOUT_MATRIX};

/// A built program: its file and its first arguments.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) file: PathBuf,
    /// Arguments that select the server.
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    /// Unprivileged user and group of the program; those of the driver if `None`.
    pub(crate) user: Option<u32>,
}

impl Program {
    /// Creates a program with these arguments, with the driver's environment and privileges.
    pub(crate) fn new(file: PathBuf, args: &[&str]) -> Program {
        Program {
            file,
            args: args.iter().map(|&arg| arg.to_owned()).collect(),
            env: Vec::new(),
            user: None,
        }
    }
}

pub(crate) type Programs = Vec<(String, Program)>;

/// Returns the source and the arguments of Upshift's plaintext server, or of its matrix server if
/// `is_matrix`.
pub(crate) fn upshift_server(is_matrix: bool) -> (Source, Vec<&'static str>) {
    (SERVERS[0].source, server_args(&SERVERS[0], is_matrix))
}

/// Returns the source and the arguments of Upshift's microbenchmarks.
pub(crate) fn upshift_micro() -> (Source, Vec<&'static str>) {
    (MICRO[0].source, MICRO[0].args.to_vec())
}

fn server_args(peer: &Peer, is_matrix: bool) -> Vec<&'static str> {
    let command = match (peer.source, is_matrix) {
        (Source::Root(_), false) => "plaintext-server",
        (Source::Root(_), true) => "matrix-server",
        (_, false) => "plaintext",
        (_, true) => "matrix",
    };
    [&[command], peer.args].concat()
}

/// The built programs, and the reasons why other programs were not built.
#[derive(Default)]
pub(crate) struct BuiltPrograms {
    files: HashMap<Source, PathBuf>,
    selected_ids: Vec<String>,
    /// Reason why a program was not built, by its name.
    pub(crate) skipped: BTreeMap<&'static str, String>,
}

impl BuiltPrograms {
    /// Returns the selected programs of a list that were built.
    pub(crate) fn programs(&self, list: &[Peer]) -> Programs {
        let peers = self.selected(list);
        peers
            .filter_map(|peer| self.program(peer, peer.args))
            .collect()
    }

    /// Returns the built servers of a section that serve pages, or matrices if `is_matrix`.
    pub(crate) fn servers(&self, section: Section, is_matrix: bool) -> Programs {
        self.selected(SERVERS)
            .filter(|peer| {
                is_part(section, peer) && !(is_matrix && WITHOUT_MATRIX.contains(&peer.id))
            })
            .filter_map(|peer| self.program(peer, &server_args(peer, is_matrix)))
            .collect()
    }

    /// Returns the peers of a section that are not selected or were not built.
    pub(crate) fn missing(&self, section: Section) -> Vec<String> {
        let lists = lists(section).iter();
        let peers = lists.flat_map(|list| list.iter().map(move |peer| (list, peer)));
        peers
            .filter(|(_, peer)| is_part(section, peer))
            .filter(|(list, peer)| {
                let is_selected = self.selected(list).any(|selected| selected.id == peer.id);
                !is_selected || !self.files.contains_key(&peer.source)
            })
            .map(|(_, peer)| peer.id.to_owned())
            .collect()
    }

    /// Returns the command `upshift` with these arguments, if it was built.
    pub(crate) fn upshift(&self, args: &[&str]) -> Option<Program> {
        Some(Program::new(self.files.get(&CLI)?.clone(), args))
    }

    /// Returns the selected peers of a list. `--peers` names runtimes, so it does not filter lists
    /// of web servers, which are not named after their runtime.
    fn selected<'a>(&'a self, list: &'a [Peer]) -> impl Iterator<Item = &'a Peer> {
        let is_whole =
            self.selected_ids.is_empty() || list.iter().any(|peer| peer.id == AXUM_TOKIO);
        let is_named = |id: &str| self.selected_ids.iter().any(|name| name == id);
        list.iter()
            .filter(move |peer| is_whole || is_named(peer.id))
    }

    /// Returns the name and the program of a peer that was built.
    fn program(&self, peer: &Peer, args: &[&str]) -> Option<(String, Program)> {
        let file = self.files.get(&peer.source)?.clone();
        Some((peer.id.to_owned(), Program::new(file, args)))
    }
}

/// Returns the lists of programs of a section that `--peers` selects from.
fn lists(section: Section) -> &'static [&'static [Peer]] {
    match section {
        Section::Plaintext | Section::Pipelined | Section::Matrix | Section::Single => &[SERVERS],
        Section::Cpp | Section::Papers => &[SERVERS],
        Section::Preemption => &[SPIN],
        Section::Sched => &[SCHED],
        Section::Serve => &[WEB],
        Section::Files => &[FILES],
        Section::Micro => &[MICRO],
        Section::Conserve | Section::Multi => &[TWO_WORKERS],
        Section::Vcpus | Section::Levels | Section::Processes | Section::Assign => &[],
    }
}

/// Whether a section measures a peer of its lists.
fn is_part(section: Section, peer: &Peer) -> bool {
    match section {
        Section::Matrix => !WITHOUT_MATRIX.contains(&peer.id),
        Section::Single => SINGLE.contains(&peer.id),
        Section::Cpp => CPP.contains(&peer.id),
        Section::Papers => PAPERS.contains(&peer.id),
        Section::Multi => !CONSERVE_ONLY.contains(&peer.id),
        _ => true,
    }
}

/// Whether a section measures the command `upshift`, whatever `--peers` selects.
fn needs_upshift(section: Section) -> bool {
    use Section::{Assign, Levels, Papers, Preemption, Processes, Serve, Vcpus};
    [Vcpus, Levels, Papers, Preemption, Processes, Assign, Serve].contains(&section)
}

pub(crate) fn build(options: &Options) -> BuiltPrograms {
    let mut built = BuiltPrograms {
        selected_ids: options.peers.clone(),
        ..BuiltPrograms::default()
    };
    let mut sources: Vec<(&'static str, Source)> = Vec::new();
    for &section in &options.sections {
        if needs_upshift(section) {
            sources.push((UPSHIFT, CLI));
        }
        for list in lists(section) {
            let peers = built.selected(list).filter(|peer| is_part(section, peer));
            sources.extend(peers.map(|peer| (peer.id, peer.source)));
        }
    }
    let mut outcomes: HashMap<Source, Result<PathBuf, String>> = HashMap::new();
    for (id, source) in sources {
        let outcome = outcomes.entry(source).or_insert_with(|| {
            eprintln!("building {id}");
            build::build(source).inspect_err(|error| eprintln!("  not built: {error}"))
        });
        match outcome {
            Ok(file) => {
                built.files.insert(source, file.clone());
            }
            Err(error) => {
                built.skipped.insert(id, error.clone());
            }
        }
    }
    built
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_is_not_selected_or_not_built_is_missing() {
        let mut built = BuiltPrograms::default();
        assert_eq!(built.missing(Section::Single), SINGLE);
        assert!(built.missing(Section::Levels).is_empty());
        let all = SERVERS.iter().map(|peer| (peer.source, PathBuf::new()));
        built.files = all.collect();
        assert!(built.missing(Section::Plaintext).is_empty());
        built.selected_ids = vec![UPSHIFT.to_owned(), TOKIO.to_owned()];
        assert_eq!(built.missing(Section::Single), [THREADS]);
        assert!(
            built
                .missing(Section::Matrix)
                .contains(&"go-net".to_owned())
        );
        assert!(!built.missing(Section::Matrix).contains(&KURO.to_owned()));
    }
}
