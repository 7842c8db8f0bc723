//! The section `assign`: nginx, redis and postgres as Debian packages them, beside a batch process with two threads per CPU, under what the
//! kernel can do for them and under an `[[assign]]` rule of the daemon.
//!
//! 1,000 requests per second over four connections, at their times whether answers have come or not; the client runs in SCHED_FIFO above everything.
//! Server and batch run on all CPUs. For each run a second row, `NAME: the batch`, gives in ms per second how much CPU time's worth of
//! work the batch got done. The last case has redis and the batch each in a cgroup of its own, as services are: there a nice value
//! counts within the cgroup only.
//!
//! | file | concern |
//! |---|---|
//! | `servers` | the three programs: start, address, processes |
//! | `remedies` | what is done for them |
//! | `client` | requests at their times, latencies |

mod client;
mod remedies;
mod servers;

use std::time::Duration;

use upshift_load::Awake;

use crate::measure::{Drive, Measured};
use crate::options::Options;
use crate::peers::{Built, Program};
use crate::results::{Run, SectionResults};
use crate::rounds::{self, Entry};
use crate::sections::processes::Batch;
use crate::verdict::{Row, at_most, row};

use remedies::{Cgroup, Remedy};
use servers::{Kind, Server};

/// The row without a batch.
const ALONE: &str = "alone";

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

    /// `None`: alone.
    fn remedies(self) -> Vec<Option<Remedy>> {
        let all: &[Remedy] = match self.grouped {
            true => &[Remedy::Nothing, Remedy::Nice, Remedy::Daemon],
            false => &Remedy::ALL,
        };
        let alone = (!self.grouped).then_some(None);
        alone
            .into_iter()
            .chain(all.iter().map(|&it| Some(it)))
            .collect()
    }
}

fn row_of(remedy: Option<Remedy>) -> &'static str {
    remedy.map_or(ALONE, Remedy::name)
}

fn batch_row(name: &str) -> String {
    format!("{name}: the batch")
}

/// One run.
#[derive(Clone)]
struct Load {
    case: Case,
    remedy: Option<Remedy>,
    time: Duration,
}

/// Measures the section; names what is not installed.
pub(crate) fn run(results: &mut SectionResults, options: &Options, built: &Built) {
    let Some(upshift) = built.upshift(&[]) else {
        return;
    };
    for case in Case::ALL {
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
            .remedies()
            .into_iter()
            .map(|remedy| Entry {
                name: row_of(remedy).to_owned(),
                program: &upshift,
                load: Load {
                    case,
                    remedy,
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
            true => Some([Cgroup::new("server")?, Cgroup::new("batch")?]),
            false => None,
        };
        let server = Server::start(self.case.kind, remedy.prefix())?;
        let batch = match self.remedy {
            Some(_) => Some(Batch::start(upshift, &["--model", "thread"])?),
            None => None,
        };
        let awake: Vec<Awake> = match batch {
            // As in the other sections: a halted virtual CPU would hide everything else.
            None => (0..2).filter_map(|cpu| Awake::on(cpu).ok()).collect(),
            Some(_) => Vec::new(),
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
        let connections = client::connect(&server)?;
        remedy.apply(&server)?;
        let all = client::drive(connections, self.time);
        drop((awake, daemon));
        let mut groups_of = vec![];
        if let Some(batch) = batch {
            groups_of.push(batch.end()?);
        }
        drop(server);
        drop(groups);
        Ok(Measured {
            all: all?,
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

/// What was to be reached: with the daemon, p99 at most half again as long as alone.
pub(crate) fn rows(section: &SectionResults, rows: &mut Vec<Row>) {
    for case in Case::ALL {
        let p99 = |case: Case, remedy| {
            section
                .cell(&case.name(), row_of(remedy))?
                .median(|run: &Run| run.honest(run.p99, 0.99))
        };
        let plain = Case {
            grouped: false,
            ..case
        };
        let found = p99(case, Some(Remedy::Daemon)).zip(p99(plain, None));
        let found = found.map(|(ours, alone)| {
            let others = case.remedies().into_iter().flatten();
            let others: Vec<String> = others
                .filter(|&it| it != Remedy::Daemon)
                .map(|it| {
                    let value = p99(case, Some(it)).map_or("–".into(), |us| format!("{us:.0}"));
                    format!("{} {value}", it.name())
                })
                .collect();
            let text = format!(
                "{:.2} × ({ours:.0} against {alone:.0} µs; {})",
                ours / alone,
                others.join(", ")
            );
            (text, at_most(ours / alone, 1.5))
        });
        rows.push(row(
            format!("assign, {}: p99 with the daemon ≤ 1.5 × alone", case.name()),
            found,
        ));
    }
}
