//! The section `assign`: nginx, redis and postgres as Debian packages them, beside a batch process with two threads per CPU, under what the
//! kernel can do for them, under an `[[assign]]` rule of the daemon, and under `upshift sched`.
//!
//! 1,000 requests per second over four connections, at their times whether answers have come or not; the client runs in SCHED_FIFO, above the batch and below a server that is in SCHED_FIFO itself.
//! Server and batch run on all CPUs. What the batch did is kept as a second row, `NAME: the batch`, in ms of CPU time's worth of work per
//! second. The last case has redis and the batch each in a cgroup of its own, as services are: there a nice value
//! counts within the cgroup only.
//!
//! | file | concern |
//! |---|---|
//! | `kind` | which of the three programs |
//! | `servers` | one of them: start, address, processes |
//! | `remedies` | what is done for them |
//! | `client` | requests at their times, latencies |

mod client;
mod kind;
mod remedies;
mod servers;

use std::fmt::Write;
use std::time::{Duration, Instant};

use upshift_load::Awake;
use upshift_load::cpu::Reading;

use crate::measure::{Drive, Measured};
use crate::options::Options;
use crate::peers::{Built, Program};
use crate::results::{Cell, Run, SectionResults, shown};
use crate::rounds::{self, Entry};
use crate::sections::processes::Batch;
use crate::verdict::{Row, at_most, row};

use kind::Kind;
use remedies::{Cgroup, Remedy};
use servers::Server;

/// The row without a batch.
const ALONE: &str = "alone";
/// The same, with CPUs that halt when there is nothing to do.
const HALTING: &str = "alone, CPUs halt";

/// A case: a server, and whether server and batch are in cgroups of their own.
#[derive(Clone, Copy)]
struct Case {
    kind: Kind,
    grouped: bool,
}

impl Case {
    const ALL: [Case; 4] = [
        Case {
            kind: Kind::Nginx,
            grouped: false,
        },
        Case {
            kind: Kind::Redis,
            grouped: false,
        },
        Case {
            kind: Kind::Postgres,
            grouped: false,
        },
        Case {
            kind: Kind::Redis,
            grouped: true,
        },
    ];

    fn name(self) -> String {
        let groups = if self.grouped {
            ", each in a cgroup of its own"
        } else {
            ""
        };
        format!(
            "{}, 1 k/s, beside 2 × CPUs burning{groups}",
            self.kind.name()
        )
    }

    /// The rows, each with what is done; `None`: alone.
    fn rows(self) -> Vec<(&'static str, Option<Remedy>)> {
        let all: &[Remedy] = match self.grouped {
            true => &[
                Remedy::Nothing,
                Remedy::Nice,
                Remedy::Weight,
                Remedy::Daemon,
            ],
            false => &Remedy::ALL,
        };
        let mut rows = match self.grouped {
            true => vec![],
            false => vec![(ALONE, None), (HALTING, None)],
        };
        rows.extend(all.iter().map(|&it| (it.name(), Some(it))));
        rows
    }
}

/// What the name of a row of the batch ends with.
const BATCH: &str = ": the batch";

fn batch_row(name: &str) -> String {
    format!("{name}{BATCH}")
}

/// One run.
#[derive(Clone)]
struct Load {
    case: Case,
    remedy: Option<Remedy>,
    /// CPUs are kept from halting.
    awake: bool,
    time: Duration,
}

/// Measures the section; names what is not installed.
pub(crate) fn run(results: &mut SectionResults, options: &Options, built: &Built) {
    let Some(upshift) = built.upshift(&[]) else {
        return;
    };
    let wanted = |case: &Case| {
        options.peers.is_empty() || options.peers.iter().any(|it| it == case.kind.name())
    };
    for case in Case::ALL.into_iter().filter(wanted) {
        match case.kind.version() {
            Ok(version) if !results.versions.contains(&version) => results.versions.push(version),
            Ok(_) => {}
            Err(why) => {
                eprintln!("  {}: {why}", case.name());
                results.notes.push(format!("{}: {why}", case.name()));
                continue;
            }
        }
        let rows: Vec<_> = case
            .rows()
            .into_iter()
            .map(|(name, remedy)| Entry {
                name: name.to_owned(),
                program: &upshift,
                load: Load {
                    case,
                    remedy,
                    awake: name == ALONE,
                    time: options.time,
                },
            })
            .collect();
        rounds::run(results, &case.name(), &rows, options.rounds);
    }
}

impl Drive for Load {
    fn measure(&self, upshift: &Program, _round: usize) -> Result<Measured, String> {
        let remedy = self.remedy.unwrap_or(Remedy::Nothing);
        let daemon = remedy.daemon(upshift, self.case.kind)?;
        let groups = match self.case.grouped || remedy == Remedy::Weight {
            true => Some([Cgroup::new("server", true)?, Cgroup::new("batch", false)?]),
            false => None,
        };
        let server = Server::start(self.case.kind, remedy.prefix())?;
        let batch = match self.remedy {
            Some(_) => Some(Batch::start(upshift, &["--model", "thread"])?),
            None => None,
        };
        let awake: Vec<Awake> = match self.awake {
            // As in the other sections: a halted virtual CPU would hide everything else.
            true => (0..2).filter_map(|cpu| Awake::on(cpu).ok()).collect(),
            false => Vec::new(),
        };
        if let Some([of_server, of_batch]) = &groups {
            server
                .processes()
                .into_iter()
                .try_for_each(|pid| of_server.take(pid))?;
            batch.iter().try_for_each(|it| of_batch.take(it.pid()))?;
            if remedy == Remedy::Weight {
                of_server.set_heaviest()?;
            }
        }
        let connections = client::connect(self.case.kind, server.address)?;
        let applied = remedy.apply(upshift, &server)?;
        let serving = server.serving();
        let (began, before) = (Instant::now(), readings(&serving));
        let mut all = client::drive(connections, self.time)?;
        let after = readings(&serving);
        let each = before.iter().zip(&after);
        let used: Duration = each
            .filter_map(|(before, after)| Some(before.as_ref()?.until(after.as_ref()?).total()))
            .sum();
        all.server_busy = used.as_secs_f64() / began.elapsed().as_secs_f64();
        drop((awake, applied, daemon));
        let mut groups_of = vec![];
        if let Some(batch) = batch {
            groups_of.push(batch.end()?);
        }
        drop(server);
        drop(groups);
        Ok(Measured {
            all,
            groups: groups_of,
        })
    }

    fn keep_disturbed(&self) -> bool {
        true
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

/// What each has used; `None`: it has ended.
fn readings(pids: &[u32]) -> Vec<Option<Reading>> {
    pids.iter().map(|&pid| Reading::of(pid).ok()).collect()
}

/// The tables of the section: a row for each remedy, with what the batch did beside it.
pub(crate) fn table(section: &SectionResults) -> String {
    let mut page = String::new();
    for case in section.cases() {
        // The server is the first word; grouped cases have no row of their own.
        let server = case.split(',').next().unwrap_or_default();
        let alone = |of: fn(&Run) -> f64| {
            let cells = section.cells.iter();
            cells
                .filter(|it| [ALONE, HALTING].contains(&it.peer.as_str()))
                .filter(|it| it.case.split(',').next() == Some(server))
                .filter_map(|it| it.median(of))
                .min_by(f64::total_cmp)
        };
        let times = |cell: &Cell, of: fn(&Run) -> f64| {
            let both = cell.median(of).zip(alone(of));
            both.map_or("–".into(), |(own, alone)| format!("{:.2}", own / alone))
        };
        let _ = write!(
            page,
            "### {case}\n\n\
             | | served /s | p50 µs | p99 µs | p99.9 µs | p99 × alone | p99 of 0.1 s | × alone | server busy | client late µs | batch ms/s | runs |\n\
             |---|---|---|---|---|---|---|---|---|---|---|---|\n",
        );
        let servers = section.cells.iter().filter(|it| it.case == case);
        for cell in servers.filter(|it| !it.peer.ends_with(BATCH)) {
            let batch = section.cell(case, &batch_row(&cell.peer));
            let _ = writeln!(
                page,
                "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
                cell.peer,
                shown(cell.spread(|r| r.per_second), 0),
                shown(cell.spread(|r| r.p50), 0),
                shown(cell.spread(|r| r.p99), 0),
                shown(cell.spread(|r| r.p999), 0),
                times(cell, |r| r.p99),
                shown(cell.spread(|r| r.p99_of_pieces), 0),
                times(cell, |r| r.p99_of_pieces),
                shown(cell.spread(|r| r.server_busy), 2),
                shown(cell.spread(|r| r.send_lag), 0),
                shown(batch.and_then(|it| it.spread(|r| r.per_second)), 0),
                cell.runs.len(),
            );
        }
        page.push('\n');
    }
    page
}

/// What was to be reached: with the daemon, p99 at most half again as long as alone.
pub(crate) fn rows(section: &SectionResults, rows: &mut Vec<Row>) {
    let p99: fn(&Run) -> f64 = |run| run.honest(run.p99, 0.99);
    let pieces: fn(&Run) -> f64 = |run| run.p99_of_pieces;
    for (case, what, of) in Case::ALL
        .into_iter()
        .flat_map(|case| [(case, "p99", p99), (case, "p99 of 0.1 s", pieces)])
    {
        let p99 = |case: Case, row| section.cell(&case.name(), row)?.median(of);
        let plain = Case {
            grouped: false,
            ..case
        };
        let ours = Remedy::Daemon.name();
        // With SCHED_IDLE threads or without, whichever is better: these compete with a server of another session.
        let alone = [ALONE, HALTING].into_iter();
        let alone = alone.filter_map(|row| p99(plain, row));
        let found = p99(case, ours).zip(alone.min_by(f64::total_cmp));
        let found = found.map(|(own, alone)| {
            let others = case.rows().into_iter();
            let others: Vec<String> = others
                .filter(|&(row, remedy)| row != ours && remedy.is_some())
                .map(|(row, _)| {
                    let value = p99(case, row).map_or("–".into(), |us| format!("{us:.0}"));
                    format!("{row} {value}")
                })
                .collect();
            let text = format!(
                "{:.2} × ({own:.0} against {alone:.0} µs; {})",
                own / alone,
                others.join(", ")
            );
            (text, at_most(own / alone, 1.5))
        });
        rows.push(row(
            format!(
                "assign, {}: {what} with the daemon ≤ 1.5 × alone",
                case.name()
            ),
            found,
        ));
    }
}
