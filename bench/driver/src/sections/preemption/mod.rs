//! The section `preemption`: measures long requests among short ones, with and without preemption,
//! and with and without privileges. Other servers for comparison are one in C, one in Go, and the
//! published technique (`peers/trick`).
//!
//! The server is on CPU 0 and the client on CPU 1; a server with two vCPUs uses both CPUs. Cells
//! are named after a server and a class of requests: `SERVER: short`, `SERVER: long`. A ratio is
//! that of the medians over the rounds in which both servers were measured.

mod cases;
mod cell;
mod table;
mod targets;

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::check::{same_body, same_bytes, same_spin};
use crate::options::Options;
use crate::peers::{BuiltPrograms, Program, Programs, SPIN};
use crate::results::{Run, SectionResults};
use crate::rounds::{self, Entry};
use crate::sections::closed::admit;
use crate::server::Server as Started;

use cases::{CASES, CONNECTION_LEVEL, Case, FILE, Server};
use cell::Cell;
pub(crate) use table::tables;
pub(crate) use targets::goals;

/// Upshift without preemption, run by an ordinary user.
const PREEMPT_OFF: &str = "off";
/// The server of [`PREEMPT_OFF`] once more. The ratio of the two shows by how much equal servers
/// differ.
const PREEMPT_OFF_AGAIN: &str = "off again";
/// Upshift with preemption, run by an ordinary user.
const PREEMPT_ON: &str = "on";
/// Upshift with preemption and permission for a real-time watcher.
const PREEMPT_AS_ROOT: &str = "on as root";
const C_SERVER: &str = "c";
const GO: &str = "go";
/// The published technique of preemption, `peers/trick`.
const TRICK: &str = "trick";

/// User id of `nobody`.
const NOBODY: u32 = 65_534;

type Quantile = fn(&Run) -> f64;

pub(crate) fn run(results: &mut SectionResults, options: &Options, built: &BuiltPrograms) {
    for name in &options.rows {
        if !CASES.iter().any(|case| case.name == name) {
            let names = CASES.map(|case| case.name).join(", ");
            results.note(format!("there is no row {name}; the rows are {names}"));
        }
    }
    let folder = std::env::temp_dir().join(format!("upshift-bench-{}", std::process::id()));
    if let Err(why) = measure(results, options, built, &folder) {
        results.note(why);
    }
    let _ = fs::remove_dir_all(folder);
}

fn selected_cases(options: &Options) -> impl Iterator<Item = &'static Case> {
    let is_selected =
        |case: &&Case| options.rows.is_empty() || options.rows.iter().any(|name| name == case.name);
    CASES.iter().filter(is_selected)
}

fn measure(
    results: &mut SectionResults,
    options: &Options,
    built: &BuiltPrograms,
    folder: &Path,
) -> Result<(), String> {
    let fleet = Fleet::new(results, built, folder)?;
    let mut others = built.programs(SPIN);
    others.retain(|(name, program)| admit(results, name, program, same_spin(program, Some(0))));
    let mut ours: HashMap<Server, Programs> = HashMap::new();
    for case in selected_cases(options) {
        let servers = ours
            .entry(case.server)
            .or_insert_with(|| fleet.checked_servers(results, case.server));
        let others = others
            .iter()
            .filter(|(name, _)| case.others.contains(&name.as_str()));
        let entries: Vec<_> = servers
            .iter()
            .chain(others)
            .map(|(name, program)| Entry {
                name: name.clone(),
                program,
                load: Cell {
                    case,
                    time: options.time,
                },
            })
            .collect();
        rounds::run(results, case.title, &entries, options);
    }
    Ok(())
}

fn is_root() -> bool {
    // SAFETY: `geteuid` takes no arguments and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Programs and files to run Upshift without preemption, with preemption, and with preemption as
/// root.
struct Fleet {
    /// Program for the driver's own user.
    program: Program,
    /// Copy of the program that every user may run.
    copy: PathBuf,
    is_root: bool,
    /// Folder that `upshift serve` serves.
    folder: String,
}

impl Fleet {
    fn new(
        results: &mut SectionResults,
        built: &BuiltPrograms,
        folder: &Path,
    ) -> Result<Fleet, String> {
        let is_root = is_root();
        if !is_root {
            results.note(format!("{PREEMPT_AS_ROOT} and {TRICK} need root"));
        }
        let program = built.upshift(&[]).ok_or("upshift was not built")?;
        let copy = folder.join("upshift");
        let open = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o755));
        fs::create_dir_all(folder)
            .and_then(|()| open(folder))
            .and_then(|()| fs::write(folder.join(FILE.trim_start_matches('/')), "123456"))
            .and_then(|()| fs::copy(&program.file, &copy))
            .and_then(|_| open(&copy))
            .map_err(|e| format!("cannot prepare {}: {e}", folder.display()))?;
        Ok(Fleet {
            program,
            copy,
            is_root,
            folder: folder.to_string_lossy().into_owned(),
        })
    }

    /// Returns the working servers of a kind.
    fn checked_servers(&self, results: &mut SectionResults, server: Server) -> Programs {
        let mut servers = self.servers(server);
        let cpu = (server != Server::TwoVcpus).then_some(0);
        servers.retain(|(name, program)| {
            let outcome = match server {
                Server::Plaintext => same_bytes(name, program, false),
                Server::Files => {
                    let started = Started::start(program, &["127.0.0.1:0".into()], cpu);
                    let mut content = Some(b"123456".to_vec());
                    started.and_then(|it| same_body(it.addresses[0], FILE, "", &mut content))
                }
                _ => same_spin(program, cpu),
            };
            admit(results, name, program, outcome)
        });
        servers
    }

    fn servers(&self, server: Server) -> Programs {
        let level = CONNECTION_LEVEL.to_string();
        let mut args = match server {
            Server::Plaintext => vec!["plaintext-server"],
            Server::Files => vec!["serve", &self.folder, "--connections-per-peer", "1000"],
            Server::Urgent => vec!["spin-server", "--level", "0"],
            _ => vec!["spin-server", "--level", &level],
        };
        args.extend(match server {
            Server::TwoVcpus => ["--vcpus", "2", "--pin", "0,1"],
            Server::Files => ["--vcpus", "1", "--cpu", "0"],
            _ => ["--vcpus", "1", "--pin", "0"],
        });
        if server == Server::Readiness {
            args.extend(["--driver", "readiness"]);
        }
        let program = |file: &Path, preempt, user| Program {
            user,
            ..Program::new(
                file.to_owned(),
                &[&args[..], &["--preempt", preempt]].concat(),
            )
        };
        let user = self.is_root.then_some(NOBODY);
        let file = &self.program.file;
        let mut servers = vec![
            (PREEMPT_OFF.to_owned(), program(&self.copy, "off", user)),
            (
                PREEMPT_OFF_AGAIN.to_owned(),
                program(&self.copy, "off", user),
            ),
            (PREEMPT_ON.to_owned(), program(&self.copy, "on", user)),
        ];
        if self.is_root {
            servers.push((PREEMPT_AS_ROOT.to_owned(), program(file, "on", None)));
        }
        servers
    }
}
