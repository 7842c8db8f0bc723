//! The section `assign`: measures nginx, redis and postgres, as Debian packages them, beside a
//! batch process with two threads per CPU. The server is preferred by means of the kernel, by an
//! `[[assign]]` rule of the daemon, or by `upshift sched`.
//!
//! 1,000 requests per second over four connections, due at fixed times regardless of answers. The
//! client runs in SCHED_FIFO, above the batch and below a server that is itself in SCHED_FIFO.
//! Server and batch run on all CPUs. The work of the batch is a second row, `NAME: the batch`, in
//! ms of CPU time per second. In the last case redis and the batch each have their own cgroup, as
//! services do; a nice value then counts only within the cgroup.
//!
//! | file | concern |
//! |---|---|
//! | `server_kind` | the measured servers |
//! | `servers` | a running server: start, address, processes |
//! | `remedies` | the means of preferring the server |
//! | `client` | requests at fixed times, latencies |

mod client;
mod remedies;
mod server_kind;
mod servers;

use std::time::Duration;

use upshift_load::Awake;
use upshift_load::cpu::Reading;
use upshift_report::plot::COLOURS;
use upshift_report::{Kind, Plot, SeriesStyle};

use crate::goal::{Goal, at_most};
use crate::machine::{LoadMonitor, Usage};
use crate::measure::{Drive, Measured};
use crate::options::Options;
use crate::peers::{BuiltPrograms, Program};
use crate::results::{Cell, Run, SectionResults};
use crate::rounds::{self, Entry};
use crate::sections::processes::Batch;
use crate::table::{cells, format_spread, format_value, spread, text};

pub(super) use remedies::Cgroup;
use remedies::Remedy;
use server_kind::ServerKind;
use servers::Server;

const ALONE: &str = "alone";
/// Row of the server without a batch, with CPUs that halt when they are idle.
const HALTING: &str = "alone, CPUs halt";

/// A case: a server, and whether server and batch have their own cgroups.
#[derive(Clone, Copy)]
struct Case(ServerKind, bool);

impl Case {
    const ALL: [Case; 4] = [
        Case(ServerKind::Nginx, false),
        Case(ServerKind::Redis, false),
        Case(ServerKind::Postgres, false),
        Case(ServerKind::Redis, true),
    ];

    fn name(self) -> String {
        let groups = if self.1 {
            ", each in a cgroup of its own"
        } else {
            ""
        };
        let server = self.0.name();
        format!("{server}, 1 k/s, beside 2 × CPUs burning{groups}")
    }

    /// Returns the rows, each with its remedy; `None` means alone.
    fn rows(self) -> Vec<(&'static str, Option<Remedy>)> {
        use Remedy::{Daemon, Nice, Nothing, Weight};
        let named = |it: Remedy| (it.name(), Some(it));
        if self.1 {
            return [Nothing, Nice, Weight, Daemon].map(named).into();
        }
        let alone = [(ALONE, None), (HALTING, None)].into_iter();
        alone.chain(Remedy::ALL.map(named)).collect()
    }
}

/// Draws the p99 of each server, from the cases without cgroups.
pub(super) fn plot(section: &SectionResults) -> Plot {
    let cases: Vec<Case> = Case::ALL.into_iter().filter(|case| !case.1).collect();
    let names = cases.iter().map(|case| case.0.name());
    let mut plot = Plot::bars(
        "p99 beside a batch process",
        "server",
        ("µs", Kind::Linear),
        names,
    );
    let rows = [
        ("alone", ALONE),
        ("unassisted", Remedy::Nothing.name()),
        ("nice −20", Remedy::Nice.name()),
        ("daemon", Remedy::Daemon.name()),
    ];
    for ((name, row), colour) in rows.into_iter().zip(COLOURS) {
        let p99 = |(group, case): (usize, &Case)| {
            Some((group as f64, section.median(&case.name(), row, Run::p99)?))
        };
        plot.add(
            name,
            SeriesStyle::Bar,
            colour,
            cases.iter().enumerate().filter_map(p99),
        );
    }
    plot
}

/// Suffix that the name of a batch's row has.
const BATCH: &str = ": the batch";

fn batch_row(name: &str) -> String {
    format!("{name}{BATCH}")
}

#[derive(Clone)]
struct Load {
    case: Case,
    remedy: Option<Remedy>,
    /// Set if CPUs are kept from halting.
    awake: bool,
    time: Duration,
}

/// Measures all cases once, and notes the servers that are not installed.
pub(crate) fn run(results: &mut SectionResults, options: &Options, built: &BuiltPrograms) {
    let Some(upshift) = built.upshift(&[]) else {
        return;
    };
    let wanted = |case: &Case| {
        options.peers.is_empty() || options.peers.iter().any(|it| it == case.0.name())
    };
    for case in Case::ALL.into_iter().filter(wanted) {
        match case.0.version() {
            Ok(version) if !results.versions.contains(&version) => results.versions.push(version),
            Ok(_) => {}
            Err(why) => {
                results.note(format!("{}: {why}", case.name()));
                continue;
            }
        }
        let entry = |(name, remedy): (&'static str, _)| Entry {
            name: name.to_owned(),
            program: &upshift,
            load: Load {
                case,
                remedy,
                awake: name == ALONE,
                time: options.time,
            },
        };
        let entries: Vec<_> = case.rows().into_iter().map(entry).collect();
        rounds::run(results, &case.name(), &entries, options);
    }
}

impl Drive for Load {
    fn measure(&self, upshift: &Program, _round: usize) -> Result<Measured, String> {
        let remedy = self.remedy.unwrap_or(Remedy::Nothing);
        let daemon = remedy.daemon(upshift, self.case.0)?;
        let groups = if self.case.1 || remedy == Remedy::Weight {
            Some([Cgroup::new("server", true)?, Cgroup::new("batch", false)?])
        } else {
            None
        };
        let server = Server::start(self.case.0, remedy.prefix())?;
        let batch = match self.remedy {
            Some(_) => Some(Batch::start(upshift, &["--model", "thread"])?),
            None => None,
        };
        let awake: Vec<Awake> = if self.awake {
            // As in the other sections, CPUs do not halt, because the wake-up of a halted virtual
            // CPU would hide all other effects.
            (0..2).filter_map(|cpu| Awake::on(cpu).ok()).collect()
        } else {
            Vec::new()
        };
        if let Some([of_server, of_batch]) = &groups {
            server
                .processes()
                .into_iter()
                .try_for_each(|pid| of_server.add(pid))?;
            batch.iter().try_for_each(|it| of_batch.add(it.pid()))?;
            if remedy == Remedy::Weight {
                of_server.set_heaviest()?;
            }
        }
        let connections = client::connect(self.case.0, server.address)?;
        let applied = remedy.apply(upshift, &server)?;
        let serving = server.serving_processes();
        let (monitor, before) = (LoadMonitor::start(), readings(&serving));
        let mut all = client::drive(connections, self.time)?;
        let after = readings(&serving);
        let Usage { time, steal, .. } = monitor.stop();
        all.steal = steal;
        let pairs = before.iter().zip(&after);
        let used: Duration = pairs
            .filter_map(|(before, after)| {
                Some(before.as_ref()?.used_until(after.as_ref()?).total())
            })
            .sum();
        all.server_busy = used.as_secs_f64() / time.as_secs_f64();
        drop((awake, applied, daemon));
        let mut batch_runs = vec![];
        if let Some(batch) = batch {
            batch_runs.push(batch.end()?);
        }
        drop(server);
        drop(groups);
        Ok(Measured {
            all,
            groups: batch_runs,
        })
    }

    fn rows(&self, name: &str, measured: Measured) -> Vec<(String, Run)> {
        let batch = measured
            .groups
            .into_iter()
            .map(|run| (batch_row(name), run));
        std::iter::once((name.to_owned(), measured.all))
            .chain(batch)
            .collect()
    }
}

/// Returns the CPU use of each process; `None` if the process has ended.
fn readings(pids: &[u32]) -> Vec<Option<Reading>> {
    pids.iter()
        .map(|&pid| Reading::for_process(pid).ok())
        .collect()
}

/// Returns the cell and the value of the case's server without a batch. Of the rows with and
/// without halting CPUs, the smaller value counts, because the kernel shares CPUs among sessions:
/// the SCHED_IDLE threads that keep CPUs from halting compete with a server of another session. A
/// case with cgroups has no such rows and uses those of the same server without cgroups.
fn alone<'a>(
    section: &'a SectionResults,
    case: &str,
    quantity: fn(&Run) -> f64,
) -> Option<(&'a Cell, f64)> {
    let server = |case: &str| case.split(',').next().map(str::to_owned);
    let cells = section.cells.iter();
    let alone = cells.filter(|it| [ALONE, HALTING].contains(&it.peer.as_str()));
    let alone = alone.filter(|it| server(&it.case) == server(case));
    let timed = alone.filter_map(|it| Some((it, it.median(quantity)?)));
    timed.min_by(|a, b| a.1.total_cmp(&b.1))
}

/// Formats the table of a case: a row for each remedy, with the work of the batch beside it.
pub(crate) fn table(section: &SectionResults, case: &str) -> String {
    let times = |head, of: fn(&Run) -> f64| {
        text(head, move |cell| {
            let both = cell.median(of).zip(alone(section, case, of));
            format_value(both.map(|(own, (_, alone))| own / alone), 2)
        })
    };
    let batch = |cell: &Cell| {
        let batch = section.cell(case, &batch_row(&cell.peer));
        format_spread(batch.and_then(|it| it.spread(|r| r.per_second)), 0)
    };
    let columns = [
        spread("served /s", 0, |r| r.per_second),
        spread("p50 µs", 0, |r| r.p50),
        spread("p99 µs", 0, |r| r.p99),
        spread("p99.9 µs", 0, |r| r.p999),
        times("p99 × alone", |r| r.p99),
        spread("p99 of 0.1 s", 0, |r| r.p99_of_pieces),
        times("× alone", |r| r.p99_of_pieces),
        spread("server busy", 2, |r| r.server_busy),
        spread("client late µs", 0, |r| r.send_lag),
        text("batch ms/s", batch),
    ];
    let servers = section.cells_of_case(case, |peer| !peer.ends_with(BATCH));
    cells(case, "", servers, &columns)
}

/// Returns the goals: with the daemon, p99 is at most one and a half times the p99 alone.
pub(crate) fn goals(section: &SectionResults) -> Vec<Goal> {
    let goal = |case: Case, figure: &str, of: fn(&Run) -> f64| {
        let name = case.name();
        let own = section.values(&name, Remedy::Daemon.name(), of);
        let alone = alone(section, &name, of).and_then(|(cell, _)| cell.values(of));
        let title = format!("{name}: {figure} with the daemon ≤ 1.5 × alone");
        at_most(title, 1.5, "µs").cell("", own, alone)
    };
    let both = |case| {
        let pieces = goal(case, "p99 of 0.1 s", |run| run.p99_of_pieces);
        [goal(case, "p99", Run::p99), pieces]
    };
    Case::ALL.into_iter().flat_map(both).collect()
}
