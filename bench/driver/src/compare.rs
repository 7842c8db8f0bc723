//! Compares two commits of Upshift: builds both, measures them in turn with this driver and its
//! client, and gives a verdict on each row of the result.
//!
//! The compared programs are `upshift-cli` and `micro-upshift`, each built in its own tree with its
//! own lock file. The order of the two commits alternates from round to round. A round in which
//! either commit lacks a figure counts for neither.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use upshift_load::{Spread, Work};
use upshift_report::Table;

use crate::build::{self, Source};
use crate::figures;
use crate::interval::{Change, Ratio};
use crate::machine;
use crate::measure::Load;
use crate::network::with_network;
use crate::options::{Options, bench_dir};
use crate::peers::{Program, upshift_micro, upshift_server};
use crate::results::{Figure, Run, SectionResults};
use crate::rounds::{self, Entry};
use crate::section::Section;
use crate::sections::closed;
use crate::sections::conserve::Samples;

const QUANTITIES: [Quantity; 4] = [
    ("CPU per request, µs", Run::cpu),
    ("time per request, µs", |run| 1e6 / run.per_second),
    ("p50, µs", |run| run.p50),
    ("p99, µs", |run| run.p99),
];
/// Name of a quantity, and the function that reads it from a run.
type Quantity = (&'static str, fn(&Run) -> f64);

/// A value for the old and a value for the new commit.
type Both<T> = [T; 2];

/// Values of the old and the new commit in each round, keyed by the position and the name of a row.
#[derive(Default)]
struct Rows {
    pairs: BTreeMap<(usize, String), Vec<(f64, f64)>>,
}

/// Builds `commit` and the tree of this driver, compares them, and prints a table.
pub(crate) fn run(options: &Options, commit: &str) -> Result<(), String> {
    let old = Tree::of_commit(commit)?;
    let new = Tree::here();
    println!(
        "# {} (new) beside {} (old)\n\n{}\n",
        machine::commit(),
        old.name,
        machine::describe().join("; "),
    );
    for &section in &options.sections {
        eprintln!("\n== {} ==", section.name());
        let both = [&old, &new].map(|tree| tree.build_program(section));
        let both = match both {
            [Ok(old), Ok(new)] => [old, new],
            [Err(error), _] => return Err(format!("{}: {error}", old.name)),
            [_, Err(error)] => return Err(format!("{}: {error}", new.name)),
        };
        let mut rows = Rows::default();
        let mut options = options.clone();
        options.time = options.time_of(section);
        let rounds = options.rounds_of(section);
        let (measured, network) = with_network(section, || {
            (0..rounds).try_for_each(|round| {
                options.round = round;
                measure(section, &options, &both, &mut rows)
            })
        });
        measured?;
        println!(
            "{rounds} rounds, runs of {} s; {network}\n",
            options.time.as_secs_f64()
        );
        print!("{}", rows.table(section));
    }
    println!(
        "The intervals have a confidence level of 95 %: of 20 rows without a change, expect about one to report a change."
    );
    Ok(())
}

/// Checked-out sources, and their build folder.
struct Tree {
    name: String,
    root: PathBuf,
    target: Option<PathBuf>,
}

impl Tree {
    fn here() -> Tree {
        let bench = bench_dir();
        Tree {
            name: machine::commit(),
            root: bench.parent().unwrap_or(&bench).to_owned(),
            target: None,
        }
    }

    /// Unpacks a commit into the build folder of the benchmarks; the checkout remains unchanged.
    fn of_commit(commit: &str) -> Result<Tree, String> {
        let here = Tree::here();
        let rev = git(
            &here.root,
            &["rev-parse", "--short=7", "--verify", "--end-of-options"],
        )
        .arg(format!("{commit}^{{commit}}"))
        .output()
        .map_err(|e| format!("cannot start git: {e}"))?;
        if !rev.status.success() {
            return Err(format!(
                "`{commit}` is no commit of this repository: {}",
                String::from_utf8_lossy(&rev.stderr).trim()
            ));
        }
        let name = String::from_utf8_lossy(&rev.stdout).trim().to_owned();
        let folder = build::target_dir().join("compare").join(&name);
        let root = folder.join("tree");
        if !root.join("Cargo.toml").exists() {
            unpack(&here.root, &name, &root)?;
        }
        Ok(Tree {
            name,
            root,
            target: Some(folder.join("target")),
        })
    }

    /// Builds the program that a section measures.
    fn build_program(&self, section: Section) -> Result<Program, String> {
        let source = match section {
            Section::Micro | Section::Multi | Section::Conserve => upshift_micro(),
            _ => upshift_server(section == Section::Matrix || section == Section::Single),
        };
        eprintln!("building {} of {}", section.name(), self.name);
        let (source, args) = source;
        let file = match source {
            Source::Root(package) => build::cargo(&self.root, package, self.target.as_deref()),
            Source::Bench(package) => {
                build::cargo(&self.root.join("bench"), package, self.target.as_deref())
            }
            _ => Err("not built by cargo".into()),
        }?;
        Ok(Program::new(file, &args))
    }
}

fn git(root: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("git");
    command.arg("-C").arg(root).args(args);
    command
}

fn unpack(repository: &Path, commit: &str, into: &Path) -> Result<(), String> {
    let failed = |reason: &dyn std::fmt::Display| format!("cannot unpack {commit}: {reason}");
    std::fs::create_dir_all(into).map_err(|e| failed(&e))?;
    let mut archive = git(repository, &["archive", "--format=tar", commit])
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| failed(&e))?;
    let tar = Command::new("tar")
        .args(["-x", "-C"])
        .arg(into)
        .stdin(archive.stdout.take().map_or(Stdio::null(), Stdio::from))
        .status();
    let archived = archive.wait().is_ok_and(|status| status.success());
    match tar {
        Ok(status) if status.success() && archived => Ok(()),
        outcome => {
            let _ = std::fs::remove_dir_all(into);
            Err(match outcome {
                Err(e) => failed(&e),
                Ok(_) => failed(&"git archive or tar failed"),
            })
        }
    }
}

fn measure(
    section: Section,
    options: &Options,
    both: &Both<Program>,
    rows: &mut Rows,
) -> Result<(), String> {
    let round = options.round;
    match section {
        Section::Micro => {
            for (part, cpu) in [("one-thread", Some(0)), ("two-threads", None)] {
                let figures =
                    in_turn(round, both, |program| printed::<Figure>(program, part, cpu))?;
                rows.add_figures(figures, "ns (bytes)");
            }
        }
        Section::Multi => {
            let figures = in_turn(round, both, |program| {
                printed::<Figure>(program, "multi", None)
            })?;
            rows.add_figures(figures, "ns");
        }
        Section::Conserve => {
            let figures = in_turn(round, both, |program| {
                let samples = printed::<Samples>(program, "conserve", None)?;
                Ok(samples.iter().flat_map(Samples::figures).collect())
            })?;
            rows.add_figures(figures, "ns");
        }
        _ => {
            for load in closed::loads(section, options) {
                measure_servers(options, both, &load, rows)?;
            }
        }
    }
    Ok(())
}

/// Measures the old and the new commit, in an order that alternates from round to round.
fn in_turn<T>(
    round: usize,
    both: &Both<Program>,
    mut measure: impl FnMut(&Program) -> Result<T, String>,
) -> Result<Both<T>, String> {
    let first = round % 2;
    let first_result = measure(&both[first])?;
    let second_result = measure(&both[1 - first])?;
    Ok(if first == 0 {
        [first_result, second_result]
    } else {
        [second_result, first_result]
    })
}

/// Returns the lines that a program prints, parsed.
fn printed<T: serde::de::DeserializeOwned>(
    program: &Program,
    part: &str,
    cpu: Option<usize>,
) -> Result<Vec<T>, String> {
    let mut lines = Vec::new();
    figures::read_lines(program, part, cpu, |line| lines.push(line)).map(|_| lines)
}

fn measure_servers(
    options: &Options,
    both: &Both<Program>,
    (case, work, connections): &(String, Work, usize),
    rows: &mut Rows,
) -> Result<(), String> {
    let entries = ["old", "new"]
        .iter()
        .zip(both)
        .map(|(name, program)| Entry {
            name: (*name).to_owned(),
            program,
            load: Load::closed(work.clone(), *connections, options),
        });
    let entries: Vec<Entry<'_, Load>> = entries.collect();
    let mut results = SectionResults::default();
    rounds::run(&mut results, case, &entries, options);
    let run = |name: &str| results.cell(case, name).and_then(|cell| cell.runs.first());
    if let (Some(old), Some(new)) = (run("old"), run("new")) {
        for (name, quantity) in QUANTITIES {
            rows.add(format!("{case}: {name}"), (quantity(old), quantity(new)));
        }
    }
    Ok(())
}

impl Rows {
    fn add(&mut self, name: String, pair: (f64, f64)) {
        let existing = self.pairs.keys().find(|(_, existing)| *existing == name);
        let position = existing.map_or(self.pairs.len(), |(position, _)| *position);
        self.pairs.entry((position, name)).or_default().push(pair);
    }

    /// Adds a row for each figure that both commits have.
    fn add_figures(&mut self, [old, new]: Both<Vec<Figure>>, unit: &str) {
        for figure in new {
            let same = |old: &&Figure| old.bench == figure.bench && old.peer == figure.peer;
            if let Some(old) = old.iter().find(same) {
                let name = match figure.peer.as_str() {
                    "upshift" => format!("{}, {unit}", figure.bench),
                    peer => format!("{} ({peer}), {unit}", figure.bench),
                };
                self.add(name, (old.ns, figure.ns));
            }
        }
    }

    fn table(&self, section: Section) -> String {
        let title = format!("## {}", section.name());
        let mut table = Table::new(title, &["<", "old", "new", "new / old", "<verdict"]);
        for ((_, name), pairs) in &self.pairs {
            let median = |side: fn(&(f64, f64)) -> f64| {
                Spread::of(pairs.iter().map(side)).map_or(0.0, |it| it.median)
            };
            let (ratio, verdict) = match Ratio::of(pairs) {
                None => ("–".to_owned(), "no figures"),
                Some(ratio) => (
                    ratio.format(3),
                    match ratio.change() {
                        Change::Better => "**better**",
                        Change::Worse => "**worse**",
                        Change::NotSeen => "no change seen",
                    },
                ),
            };
            table.row([
                name.clone(),
                format!("{:.2}", median(|pair| pair.0)),
                format!("{:.2}", median(|pair| pair.1)),
                ratio,
                verdict.to_owned(),
            ]);
        }
        table.markdown()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_keep_their_order_and_have_a_verdict() {
        let mut rows = Rows::default();
        for round in 0..3 {
            let drift = f64::from(round) * 10.0;
            rows.add("z".into(), (100.0 + drift, 50.0 + drift / 2.0));
            rows.add("a".into(), (100.0, 100.0 + drift - 10.0));
        }
        rows.add("alone".into(), (1.0, 1.0));
        let table = rows.table(Section::Micro);
        let lines: Vec<&str> = table.lines().skip(4).collect();
        assert!(
            lines[0].starts_with("| z | 110.00 | 55.00 | 0.500 (0.500–0.500) | **better** |"),
            "{table}"
        );
        assert!(
            lines[1].starts_with("| a |") && lines[1].ends_with("| no change seen |"),
            "{table}"
        );
        assert!(lines[2].ends_with("| 1.000 | no change seen |"), "{table}");
    }

    #[test]
    fn a_commit_is_unpacked_and_an_unknown_commit_is_named_in_the_error() {
        let folder = std::env::temp_dir().join(format!("upshift-compare-{}", std::process::id()));
        let here = Tree::here();
        if git(&here.root, &["rev-parse", "HEAD"])
            .output()
            .is_ok_and(|o| o.status.success())
        {
            unpack(&here.root, "HEAD", &folder).unwrap();
            assert!(folder.join("scheduler/core/Cargo.toml").exists());
            let missing = unpack(&here.root, "no-such-commit", &folder.join("missing"));
            assert!(missing.is_err() && !folder.join("missing").exists());
            std::fs::remove_dir_all(folder).unwrap();
        }
        let error = Tree::of_commit("no-such-commit").err().unwrap();
        assert!(error.contains("no-such-commit"), "{error}");
    }

    #[test]
    fn the_order_changes_from_round_to_round() {
        let both = ["old", "new"].map(|name| Program::new(name.into(), &[]));
        let mut order = Vec::new();
        for round in 0..2 {
            let files = in_turn(round, &both, |program| {
                order.push(program.file.clone());
                Ok(program.file.clone())
            });
            assert_eq!(files, Ok(["old", "new"].map(PathBuf::from)));
        }
        assert_eq!(order, ["old", "new", "new", "old"].map(PathBuf::from));
    }
}
