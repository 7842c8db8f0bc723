//! The section `processes`: measures an urgent server beside a batch process that burns the time of
//! every CPU, with and without the daemon.
//!
//! The server is Upshift's spin server at level 2 on CPU 0. It receives 1,000 requests per second,
//! of 100 µs each, from CPU 1. The batch has two workers per CPU, which never wait. The client runs
//! in SCHED_FIFO above everything else, so that the batch on its CPU does not delay it. A run
//! beside a batch has a second row, `NAME: the batch`, with the batch's work in ms of CPU time per
//! second.

use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use upshift_load::child::Child;
use upshift_load::scenario::{self, BATCH_LEVEL, BurnReport};
use upshift_load::{Awake, run as drive};

use crate::goal::{Goal, Values, at_least, at_most};
use crate::measure::{Drive, Measured, observe};
use crate::options::Options;
use crate::peers::{BuiltPrograms, Program};
use crate::results::{Run, SectionResults};
use crate::rounds::{self, Entry};
use crate::server::Server;

/// Time limit for the messages of the daemon and of the batch.
const LINE_TIMEOUT: Duration = Duration::from_secs(10);

const CASE: &str = "level 2, 1 k/s of 100 µs, beside 2 × CPUs burning";
const ALONE: &str = "alone";
/// Row without a remedy.
const PLAIN: &str = "beside the batch";
/// Row in which the batch has the smallest share that a nice value gives.
const NICE: &str = "beside the batch at nice 19";
/// Row in which server and batch have joined the daemon; the *board* is the memory that they share
/// with it.
const DAEMON: &str = "beside the batch, both on the board";
/// Row in which only the server has joined; the batch consists of ordinary threads.
const THREADS: &str = "beside threads that have not joined, the server on the board";

fn batch_row(name: &str) -> String {
    format!("{name}: the batch")
}

/// A load beside the server: the name of the row, the options of the batch (`None` without a
/// batch), and whether there is a daemon, which the server then joins.
#[derive(Clone, Copy)]
struct Neighbour {
    name: &'static str,
    batch: Option<&'static [&'static str]>,
    has_daemon: bool,
}

const fn neighbour(
    name: &'static str,
    batch: Option<&'static [&'static str]>,
    has_daemon: bool,
) -> Neighbour {
    Neighbour {
        name,
        batch,
        has_daemon,
    }
}

const RUNS: [Neighbour; 5] = [
    neighbour(ALONE, None, false),
    neighbour(PLAIN, Some(&[]), false),
    neighbour(NICE, Some(&["--nice", "19"]), false),
    neighbour(DAEMON, Some(&["--board", "required"]), true),
    neighbour(THREADS, Some(&["--model", "thread"]), true),
];

/// Configuration in which programs that have not joined count as level 32.
const BYSTANDERS: &str = "bystander_level = 32\n";

#[derive(Clone)]
struct Load {
    neighbour: Neighbour,
    time: Duration,
}

pub(crate) fn run(results: &mut SectionResults, options: &Options, built: &BuiltPrograms) {
    let server = |board| {
        let args = ["spin-server", "--vcpus", "1", "--pin", "0", "--level", "2"];
        built.upshift(&[&args[..], &["--board", board]].concat())
    };
    let (Some(without_board), Some(with_board)) = (server("off"), server("required")) else {
        return;
    };
    let rows: Vec<_> = RUNS
        .into_iter()
        .map(|neighbour| Entry {
            name: neighbour.name.to_owned(),
            program: if neighbour.has_daemon {
                &with_board
            } else {
                &without_board
            },
            load: Load {
                neighbour,
                time: options.time,
            },
        })
        .collect();
    rounds::run(results, CASE, &rows, options);
}

impl Drive for Load {
    fn measure(&self, program: &Program, _round: usize) -> Result<Measured, String> {
        let daemon = self
            .neighbour
            .has_daemon
            .then(|| Daemon::start(program, BYSTANDERS))
            .transpose()?;
        let mut program = program.clone();
        program.env = daemon.iter().map(Daemon::environment).collect();
        let server = Server::start(&program, &["127.0.0.1:0".into()], Some(0))?;
        let awake = match self.neighbour.batch {
            None => Some(Awake::on(0).map_err(|e| e.to_string())?),
            Some(_) => None,
        };
        let batch = self
            .neighbour
            .batch
            .map(|args| Batch::start(&program, args))
            .transpose()?;
        let mut plan = scenario::urgent(self.time).with_target(server.addresses[0]);
        plan.pin = Some(1);
        plan.server_pids = server.pids();
        plan.fifo = Some(scenario::CLIENT_PRIORITY);
        let mut measured = observe(&server, true, awake.as_ref(), || drive(&plan))?;
        // The CPU time of the batch is not a disturbance.
        measured.all.foreign = 0.0;
        if let Some(batch) = batch {
            measured.groups.push(batch.end()?);
        }
        Ok(measured)
    }

    fn rows(&self, name: &str, mut measured: Measured) -> Vec<(String, Run)> {
        let batch = (measured.groups.len() > 1).then(|| measured.groups.pop());
        let mut rows = vec![(name.to_owned(), measured.all)];
        rows.extend(batch.flatten().map(|run| (batch_row(name), run)));
        rows
    }
}

/// An `upshift daemon` on its own socket.
pub(crate) struct Daemon {
    child: Child,
    socket: PathBuf,
}

impl Daemon {
    pub(crate) fn start(upshift: &Program, config_text: &str) -> Result<Daemon, String> {
        // The folder is private, because the daemon refuses a socket that others could replace.
        let folder = std::env::temp_dir().join(format!("upshift-bench-{}", std::process::id()));
        let mut builder = std::fs::DirBuilder::new();
        let created = builder.recursive(true).mode(0o700).create(&folder);
        created.map_err(|e| e.to_string())?;
        let socket = folder.join("daemon.sock");
        let config = socket.with_extension("toml");
        std::fs::write(&config, config_text).map_err(|e| e.to_string())?;
        let mut command = Command::new(&upshift.file);
        command
            .arg("daemon")
            .arg("--config")
            .arg(&config)
            .arg("--socket")
            .arg(&socket);
        let child =
            Child::start(&mut command).map_err(|e| format!("cannot start the daemon: {e}"))?;
        let mut daemon = Daemon { child, socket };
        line(&mut daemon.child)?;
        Ok(daemon)
    }

    fn environment(&self) -> (String, String) {
        let socket = self.socket.display().to_string();
        ("UPSHIFT_DAEMON_SOCKET".into(), socket)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.child.end();
        if let Some(folder) = self.socket.parent() {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

/// A running `upshift burn`.
pub(crate) struct Batch(Child);

impl Batch {
    pub(crate) fn start(upshift: &Program, args: &[&str]) -> Result<Batch, String> {
        let mut command = Command::new(&upshift.file);
        command
            .args(["burn", "--json", "--level", &BATCH_LEVEL.to_string()])
            .args(args)
            .envs(upshift.env.iter().cloned());
        let child =
            Child::start(&mut command).map_err(|e| format!("cannot start the batch: {e}"))?;
        let mut batch = Batch(child);
        line(&mut batch.0)?;
        Ok(batch)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.pid()
    }

    /// Ends the batch. Returns its work, as the figures of a row.
    pub(crate) fn end(mut self) -> Result<Run, String> {
        self.0.end();
        let text = line(&mut self.0)?;
        let report: BurnReport =
            serde_json::from_str(&text).map_err(|e| format!("the batch printed `{text}`: {e}"))?;
        Ok(Run {
            per_second: 1e3 * report.work / report.seconds,
            ..Run::default()
        })
    }
}

/// Returns the next line of a child's output.
fn line(child: &mut Child) -> Result<String, String> {
    child
        .line(LINE_TIMEOUT)
        .map_err(|_| "the daemon or the batch printed no line".into())
}

/// Returns the goals of the section, which concern the rows with the daemon.
pub(super) fn goals(section: &SectionResults) -> Vec<Goal> {
    let p99 = |name| section.values(CASE, name, Run::p99);
    let beside = |name| {
        let title = format!("{name}: the server's p99 ≤ 2 × alone");
        at_most(title, 2.0, "µs").cell("", p99(name), p99(ALONE))
    };
    // The batch's share of the CPU time that server and client leave, in percent: `work` is in
    // percent of one CPU, and `available` is in CPUs.
    let available = section.values(CASE, DAEMON, |run| 2.0 - run.server_busy - run.client_busy);
    let work = section.values(CASE, &batch_row(DAEMON), |run| run.per_second / 10.0);
    let share = work
        .zip(available)
        .and_then(|(work, available)| work.combine(&available, |work, available| work / available));
    let title = "both on the board: the batch does ≥ 90 % of what server and client leave";
    vec![
        beside(DAEMON),
        beside(THREADS),
        at_least(title, 1.0, "%").cell("", share, Values::limit(90.0)),
    ]
}
