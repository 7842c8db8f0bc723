//! The section `preemption`: long requests among short ones, with preemption and without, with rights and without, next to others.
//!
//! Server on CPU 0, client on CPU 1; with two vCPUs the server has both, and the client what it needs of CPU 1. Rows are classes of
//! requests: `SERVER: short`, `SERVER: long`. What is measured is a list of [`Batch`]es, so that the time it takes is known before.

pub(crate) mod cases;
mod spin;
pub(crate) mod summary;
pub(crate) mod targets;
mod web;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use upshift_load::scenario::{self, BATCH_LEVEL, LONG_SHARE, MIXED_RATE, NOWHERE};
use upshift_load::{Distribution, Hog, Plan};

use crate::check::same_spin;
use crate::measure::{Drive, Load, Measured};
use crate::options::Options;
use crate::peers::{APPLICATION, Built, Program, Programs, SPIN};
use crate::results::{Run, SectionResults};
use crate::rounds::{self, Entry};
use crate::sections::closed::{keep, page};

use cases::{CONNECTION, Kind, MILLIS, Mix};
use spin::Spin;
pub(crate) use spin::class_row;
use web::{Tool, Web};

/// Upshift without preemption.
pub(crate) const OFF: &str = "upshift off";
/// With it, and with the right to a real-time watcher.
pub(crate) const ON: &str = "upshift on";
/// With it, run by an ordinary user.
pub(crate) const PLAIN: &str = "upshift on, no rights";
/// The published technique.
pub(crate) const TRICK: &str = "trick";
/// The same load without its long requests.
pub(crate) const NO_LONG: &str = "no long requests, upshift off";
/// The row of pings that nothing disturbs, on a CPU that is kept awake.
pub(crate) const ALONE: &str = "no level 40, upshift off";

/// The ordinary user: `nobody`.
const NOBODY: u32 = 65_534;
/// Time under load before measuring.
const WARM_UP: Duration = Duration::from_millis(250);
/// Starting a server, connecting, the last replies, and its end.
const AROUND: Duration = Duration::from_millis(400);
/// Rounds of what is not among the mixes on one vCPU, so that all stays within the time.
const FEWER_ROUNDS: usize = 3;

/// What is run against one server.
enum Way {
    Spin(Spin),
    Pages(Load),
    Web(Web),
}

impl Way {
    /// How long it takes from one server to the next.
    fn takes(&self) -> Duration {
        AROUND
            + match self {
                Way::Spin(spin) => spin.plan.warmup + spin.plan.duration,
                Way::Pages(load) => WARM_UP + load.time,
                Way::Web(web) => web.takes(),
            }
    }

    fn drive(&self) -> &dyn Drive {
        match self {
            Way::Spin(spin) => spin,
            Way::Pages(load) => load,
            Way::Web(web) => web,
        }
    }
}

impl Drive for Way {
    fn measure(&self, program: &Program, round: usize) -> Result<Measured, String> {
        self.drive().measure(program, round)
    }

    fn keep_disturbed(&self) -> bool {
        self.drive().keep_disturbed()
    }

    fn rows(&self, name: &str, measured: Measured) -> Vec<(String, Run)> {
        self.drive().rows(name, measured)
    }
}

/// Servers that are compared under a load: interleaved, round by round.
struct Batch<'a> {
    case: String,
    rounds: usize,
    entries: Vec<Entry<'a, Way>>,
}

impl Batch<'_> {
    fn takes(&self) -> Duration {
        let round: Duration = self.entries.iter().map(|entry| entry.load.takes()).sum();
        round * self.rounds as u32
    }
}

/// All that is measured.
#[derive(Default)]
struct Fleet {
    /// Off, on, on without rights.
    ours: Programs,
    /// The same with two vCPUs.
    two: Programs,
    /// The same, receiving at level 0.
    urgent: Programs,
    /// Spin servers of others.
    others: Programs,
    /// The same as `ours`, answering with pages.
    pages: Programs,
    /// Web servers.
    web: Programs,
}

/// Measures the section.
pub(crate) fn run(results: &mut SectionResults, options: &Options, built: &Built) {
    let folder = std::env::temp_dir().join(format!("upshift-bench-{}", std::process::id()));
    let fleet = fleet(results, built, &folder);
    let batches = batches(&fleet, options);
    let runs: usize = batches.iter().map(|b| b.rounds * b.entries.len()).sum();
    let takes: Duration = batches.iter().map(Batch::takes).sum();
    let estimate = format!(
        "{runs} runs, some {:.1} minutes unless runs are disturbed",
        takes.as_secs_f64() / 60.0
    );
    eprintln!("{estimate}");
    results.commands.push(estimate);
    for batch in batches {
        rounds::run(results, &batch.case, &batch.entries, batch.rounds);
    }
    let _ = fs::remove_dir_all(folder);
}

/// All servers that work, and the folder that they need.
fn fleet(results: &mut SectionResults, built: &Built, folder: &Path) -> Fleet {
    let with_rights = rights(results);
    let copy = built
        .upshift(&[])
        .and_then(|program| match for_everybody(&program.file, folder) {
            Ok(copy) => Some(copy),
            Err(why) => {
                results.note(format!("{PLAIN} is left out: {why}"));
                None
            }
        });
    let ours = |args: &[&str]| -> Programs {
        let program = |preempt| built.upshift(&[args, &["--preempt", preempt]].concat());
        let plain = program("on").zip(copy.clone());
        let plain = plain.map(|(program, file)| Program {
            file,
            user: with_rights.then_some(NOBODY),
            ..program
        });
        let on = program("on").filter(|_| with_rights);
        [(OFF, program("off")), (ON, on), (PLAIN, plain)]
            .into_iter()
            .filter_map(|(name, program)| Some((name.to_owned(), program?)))
            .collect()
    };
    let level = CONNECTION.to_string();
    let spin = |vcpus, cpus, level| {
        let server = ["spin-server", "--vcpus", vcpus, "--pin", cpus];
        ours(&[&server[..], &["--level", level]].concat())
    };
    let mut fleet = Fleet {
        ours: spin("1", "0", &level),
        two: spin("2", "0,1", &level),
        urgent: spin("1", "0", "0"),
        others: built.of(SPIN),
        pages: ours(&["plaintext-server", "--vcpus", "1", "--pin", "0"]),
        web: Programs::new(),
    };
    for (servers, cpu) in [
        (&mut fleet.ours, Some(0)),
        (&mut fleet.two, None),
        (&mut fleet.others, Some(0)),
    ] {
        servers.retain(|(name, program)| keep(results, name, program, same_spin(program, cpu)));
    }
    let root = folder.to_string_lossy();
    let serve = ["serve", &root, "--vcpus", "1", "--cpu", "0"];
    let serve = ours(&[&serve[..], &["--connections-per-peer", "1000"]].concat());
    fleet.web = serve
        .into_iter()
        .map(|(name, program)| (name.replace("upshift", "serve"), program))
        .chain(built.of(APPLICATION))
        .collect();
    fleet
}

/// Whether the driver can measure with rights, and without.
fn rights(results: &mut SectionResults) -> bool {
    // SAFETY: no arguments, and it cannot fail.
    let is_root = unsafe { libc::geteuid() } == 0;
    if !is_root {
        let note =
            format!("{ON} and {TRICK} need root: everything else was measured without rights");
        results.notes.push(note);
    }
    is_root
}

/// A copy of a program in a folder that all users can read.
fn for_everybody(program: &Path, folder: &Path) -> Result<PathBuf, String> {
    let name = program.file_name().unwrap_or_default();
    let copy = folder.join(name);
    let open = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o755));
    fs::create_dir_all(folder)
        .and_then(|()| open(folder))
        .and_then(|()| fs::copy(program, &copy))
        .and_then(|_| open(&copy))
        .map_err(|e| {
            format!(
                "cannot copy {} to {}: {e}",
                program.display(),
                copy.display()
            )
        })?;
    Ok(copy)
}

/// Everything that is run, in order.
fn batches<'a>(fleet: &'a Fleet, options: &Options) -> Vec<Batch<'a>> {
    let loads = Loads { options };
    let mut batches = Vec::new();
    let mut add = |case: String, rounds, entries| {
        batches.push(Batch {
            case,
            rounds,
            entries,
        });
    };
    let (rounds, fewer) = (options.rounds, options.rounds.min(FEWER_ROUNDS));
    for mix in Mix::ALL {
        let mut entries = spins(&fleet.ours, &loads.micros(mix, LONG_SHARE));
        if mix == Mix::Same {
            // They know no levels.
            entries.extend(spins(&fleet.others, &loads.micros(mix, LONG_SHARE)));
        }
        if mix == mix.without_long() {
            entries.extend(off(&fleet.ours, NO_LONG, loads.micros(mix, 0.0)));
        }
        add(cases::micros(mix), rounds, entries);
    }
    let awake = |share| Spin {
        awake: true,
        ..loads.micros(Mix::Same, share)
    };
    let mut entries = spins(&fleet.ours, &awake(LONG_SHARE));
    entries.extend(off(&fleet.ours, NO_LONG, awake(0.0)));
    add(cases::awake(), fewer, entries);
    for (load, mix) in MILLIS {
        let spin = loads.mixed(load / Kind::Millis.mean(), mix, Kind::Millis, LONG_SHARE);
        let mut entries = spins(&fleet.ours, &spin);
        if mix == Mix::Same {
            let others = spins(&fleet.others, &spin).into_iter();
            // What it does here is what we do without preemption.
            entries.extend(others.filter(|entry| entry.name != "tokio-ct"));
        }
        add(cases::millis(load, mix), rounds, entries);
    }
    for mix in Mix::TWO {
        let two = |share: f64| Spin {
            two: true,
            ..loads.mixed(
                cases::RATE_OF_TWO * if share == 0.0 { 1.0 - LONG_SHARE } else { 1.0 },
                mix,
                Kind::Micros,
                share,
            )
        };
        let mut entries = spins(&fleet.two, &two(LONG_SHARE));
        entries.extend(off(&fleet.two, NO_LONG, two(0.0)));
        add(cases::two(mix), fewer, entries);
    }
    let exponential = |load: f64| {
        let per_second = load / cases::EXPONENTIAL_MEAN.as_secs_f64();
        let mut spin = loads.spin(per_second);
        spin.plan.classes[0].service = cases::EXPONENTIAL_MEAN;
        spin.plan.classes[0].distribution = Distribution::Exponential;
        spin
    };
    let entries = spins(&fleet.ours, &exponential(0.7));
    add(cases::EXPONENTIAL.into(), fewer, entries);
    let mut flood = exponential(1.5);
    // From an empty server on: what it serves within the time is its throughput.
    flood.plan.warmup = Duration::ZERO;
    flood.plan.drain = Duration::ZERO;
    add(cases::FLOOD.into(), fewer, spins(&fleet.ours, &flood));
    let mut entries = spins(&fleet.urgent, &loads.pings(true));
    entries.extend(off(&fleet.urgent, ALONE, loads.pings(false)));
    add(cases::PINGS.into(), fewer, entries);
    let pages = Load::closed(page("/", &[], 1), 256, options);
    let entries = rounds::entries(&fleet.pages, |_| Some(Way::Pages(pages.clone())));
    add(cases::COST.into(), rounds, entries);
    for tool in Tool::ALL {
        let web = |_: &str| Some(Way::Web(Web::new(tool, options)));
        add(tool.case().into(), fewer, rounds::entries(&fleet.web, web));
    }
    batches
}

/// Each of some servers under a load.
fn spins<'a>(servers: &'a Programs, load: &Spin) -> Vec<Entry<'a, Way>> {
    rounds::entries(servers, |_| Some(Way::Spin(load.clone())))
}

/// The server without preemption, under another name and another load.
fn off<'a>(servers: &'a Programs, name: &str, load: Spin) -> Option<Entry<'a, Way>> {
    let (_, program) = servers.iter().find(|(name, _)| name == OFF)?;
    Some(Entry {
        name: name.to_owned(),
        program,
        load: Way::Spin(load),
    })
}

/// The loads, for the time and the haste that the options ask for.
struct Loads<'a> {
    options: &'a Options,
}

impl Loads<'_> {
    fn spin(&self, per_second: f64) -> Spin {
        let mut plan = Plan::spin(NOWHERE, per_second, Duration::ZERO, self.options.time);
        plan.warmup = WARM_UP.min(self.options.time / 2);
        plan.classes[0].level = CONNECTION;
        Spin {
            plan,
            awake: false,
            two: false,
            keep_disturbed: self.options.quick,
        }
    }

    fn mixed(&self, per_second: f64, mix: Mix, kind: Kind, share: f64) -> Spin {
        let mut spin = self.spin(per_second);
        spin.plan.classes = mix.classes(kind, share);
        spin
    }

    /// The load of microseconds, or what is left of it without long requests.
    fn micros(&self, mix: Mix, share: f64) -> Spin {
        let per_second = match share {
            0.0 => (1.0 - LONG_SHARE) * MIXED_RATE,
            _ => MIXED_RATE,
        };
        self.mixed(per_second, mix, Kind::Micros, share)
    }

    fn pings(&self, hog: bool) -> Spin {
        let mut spin = self.spin(1000.0);
        let plan = &mut spin.plan;
        *plan = Plan {
            warmup: plan.warmup,
            ..scenario::pings(plan.duration)
        };
        // It ends some time after the run, so that a server that it hangs can be ended without force.
        plan.hog = hog.then_some(Hog {
            service: plan.warmup + plan.duration + plan.drain + Duration::from_millis(500),
            level: BATCH_LEVEL,
        });
        spin.awake = !hog;
        spin
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With every peer there, in the time that the page says.
    #[test]
    fn the_section_takes_twenty_minutes_at_most() {
        let program = Program::new(PathBuf::new(), &[]);
        let named = |names: &[&str]| -> Programs {
            let server = |name: &&str| ((*name).to_owned(), program.clone());
            names.iter().map(server).collect()
        };
        let ours = named(&[OFF, ON, PLAIN]);
        let fleet = Fleet {
            ours: ours.clone(),
            two: ours.clone(),
            urgent: ours.clone(),
            pages: ours,
            others: named(&[TRICK, "go", "tokio-ct", "tokio-mt2"]),
            web: named(&["1", "2", "3", "4", "5", "6"]),
        };
        let options = Options::for_tests(Duration::from_secs(3), 5);
        let takes: Duration = batches(&fleet, &options).iter().map(Batch::takes).sum();
        assert!(takes < Duration::from_secs(20 * 60), "{takes:?}");
        assert!(takes > Duration::from_secs(15 * 60), "{takes:?}");
    }
}
