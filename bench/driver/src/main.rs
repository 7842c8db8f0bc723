//! `upshift-bench`: measures Upshift against other runtimes, and writes `bench/results/`,
//! `bench/RESULTS.md`, and the goals and plots of `docs/evaluation.md`.
//!
//! The driver is one process; in most sections one of its threads is the client. A *peer* is a
//! program that is measured beside the others. A *section* is a part of the results page. The
//! modules, from the command line to the page:
//!
//! | file | concern |
//! |---|---|
//! | `section` | the names, titles and time limits of the sections |
//! | `options` | the command line |
//! | `machine` | kernel, processor, versions, load of a CPU |
//! | `peers`, `build` | the measured programs, and their builds |
//! | `interval` | the ratio of two quantities, and its confidence interval |
//! | `results` | the data, with a file for each section |
//! | `table` | Markdown tables of the results |
//! | `goal`, `claim` | a goal or a published claim, and its verdict |
//! | `server` | one server process: start, address, end |
//! | `check` | a check, before any timing, that every server sends the same bytes |
//! | `network` | the network namespace of a section |
//! | `measure` | one run: fresh server, load, CPU time, and the load of other programs |
//! | `rounds` | interleaved rounds, repeats of runs that other programs disturbed |
//! | `figures` | programs that measure by themselves and print figures |
//! | `sections` | the runs, tables and goals of the sections |
//! | `compare` | the comparison of two commits |
//! | `render` | the pages |
//!
//! A module uses only modules in its own row or in rows above it, except that `results` uses a type
//! of `goal`.

mod build;
mod check;
mod claim;
mod compare;
mod figures;
mod goal;
mod interval;
mod machine;
mod measure;
mod network;
mod options;
mod peers;
mod render;
mod results;
mod rounds;
mod section;
mod sections;
mod server;
mod table;

use std::path::Path;
use std::process::ExitCode;

use options::{Command, MIN_ROUNDS, Options};
use peers::BuiltPrograms;
use results::{Results, SectionResults};
use section::Section;

fn main() -> ExitCode {
    let outcome = match options::parse() {
        Command::Run(options) => run(&options),
        Command::Drop(options) => drop_sections(&options),
        Command::Render(options) => render_again(&options),
        Command::Compare(options, commit) => {
            machine::need_two_cpus().and_then(|()| compare::run(&options, &commit))
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), String> {
    machine::need_two_cpus()?;
    let commit = machine::commit();
    need_commit(options, &commit)?;
    let mut results = Results::load(&options.out)?;
    let mut sections_to_measure = options.sections.clone();
    sections_to_measure.retain(|section| {
        let saved = results.sections.get(section.name());
        let is_kept = options.full && saved.is_some_and(|saved| is_complete(saved, &commit));
        println!("{}", plan(*section, options, saved, is_kept));
        !is_kept
    });
    let selected = options.sections.clone();
    let mut options = options.clone();
    options.sections = sections_to_measure;
    let built = peers::build(&options);
    need_peers(&options, &built)?;
    for &section in &options.sections {
        let (measured, network) =
            network::with_network(section, || sections::run(section, &options, &built));
        if let Some(mut measured) = measured {
            measured.machine.push(network);
            need_commit(&options, &measured.commit)?;
            if !(options.peers.is_empty() && options.rows.is_empty())
                && let Some(before) = results.sections.remove(section.name())
            {
                measured.take_over(before);
            }
            // Saved after each section, so that an interruption loses only the current one.
            measured.save(&options.out, section.name())?;
            results.sections.insert(section.name().to_owned(), measured);
            write_pages(&options, &results)?;
        }
    }
    for (id, why) in &built.skipped {
        eprintln!("skipped {id}: {why}");
    }
    let mut goals = sections::goals(&results);
    goals.retain(|it| selected.iter().any(|section| section.name() == it.name));
    println!(
        "\n{}\n\n{}",
        goal::verdict_counts(&goals),
        goal::table(&goals)
    );
    let open_goals = goals.iter().flat_map(|section| {
        let open_goals = section.goals.iter().filter(|goal| goal.is_open());
        open_goals.map(|goal| {
            format!(
                "  {}: {}: {}",
                section.name,
                goal.title,
                goal.verdict_text()
            )
        })
    });
    let open_goals: Vec<String> = open_goals.collect();
    if options.full && !open_goals.is_empty() {
        let count = open_goals.len();
        return Err(format!(
            "{count} goals have no figures:\n{}",
            open_goals.join("\n")
        ));
    }
    Ok(())
}

/// Whether a section needs no further run: all peers, all rows and enough rounds were measured at
/// this commit on this machine, and few enough of the runs were disturbed.
fn is_complete(saved: &SectionResults, commit: &str) -> bool {
    saved.commit == commit
        && saved.is_whole
        && saved.missing.is_empty()
        && saved.machine.starts_with(&machine::describe())
        && !saved.is_disturbed()
}

/// Formats the line of a section in the plan: its name and the expected time, or that it is kept.
fn plan(
    section: Section,
    options: &Options,
    saved: Option<&SectionResults>,
    is_kept: bool,
) -> String {
    let name = section.name();
    if is_kept {
        return format!("{name:<12} complete at this commit");
    }
    let rounds = options.rounds_of(section);
    let limit = section.limit().as_secs_f64() / 60.0;
    let minutes_per_round = match saved.filter(|saved| saved.is_whole) {
        Some(saved) => saved.seconds as f64 / 60.0 / saved.rounds as f64,
        None => limit / MIN_ROUNDS as f64,
    };
    let minutes = minutes_per_round * rounds as f64;
    if !options.has_limit() || rounds <= MIN_ROUNDS {
        return format!("{name:<12} {minutes:>4.1} minutes, {rounds} rounds");
    }
    let minutes = minutes.min(limit);
    format!("{name:<12} {minutes:>4.1} minutes, {MIN_ROUNDS} to {rounds} rounds")
}

/// Fails in a full run unless all peers were built.
fn need_peers(options: &Options, built: &BuiltPrograms) -> Result<(), String> {
    if !options.full || built.skipped.is_empty() {
        return Ok(());
    }
    let skipped = built.skipped.iter();
    let skipped: Vec<String> = skipped.map(|(id, why)| format!("  {id}: {why}")).collect();
    Err(format!(
        "a full run needs every peer:\n{}",
        skipped.join("\n")
    ))
}

/// Fails if results that are to be published (of a full run, or in `bench/`) would include
/// uncommitted changes, which others cannot check out.
fn need_commit(options: &Options, commit: &str) -> Result<(), String> {
    let is_published = options.full || options.out == options::bench_dir();
    if is_published && commit.ends_with(machine::DIRTY) {
        return Err(format!(
            "the tree has uncommitted changes ({commit}): commit them, or measure with --out DIR and without --full"
        ));
    }
    Ok(())
}

fn drop_sections(options: &Options) -> Result<(), String> {
    let mut results = Results::load(&options.out)?;
    for section in &options.sections {
        results.drop_section(&options.out, section.name())?;
    }
    write_pages(options, &results)
}

fn render_again(options: &Options) -> Result<(), String> {
    write_pages(options, &Results::load(&options.out)?)
}

fn write_pages(options: &Options, results: &Results) -> Result<(), String> {
    let page = options.out.join("RESULTS.md");
    std::fs::write(&page, render::page(results))
        .map_err(|e| format!("cannot write {}: {e}", page.display()))?;
    eprintln!("wrote {}", page.display());
    if options.out != options::bench_dir() {
        return Ok(());
    }
    let docs = options.out.join("../docs");
    let page = docs.join("evaluation.md");
    let failed = |e: std::io::Error| format!("{}: {e}", page.display());
    let text = std::fs::read_to_string(&page).map_err(failed)?;
    let text = render::with_goals(&text, results)?;
    std::fs::write(&page, text).map_err(failed)?;
    draw_plots(&docs.join("evaluation"), results)
}

/// Draws the plots of `docs/evaluation.md` from saved results.
fn draw_plots(folder: &Path, results: &Results) -> Result<(), String> {
    for (name, plot) in sections::plots(results) {
        let file = folder.join(name);
        std::fs::write(&file, plot.svg())
            .map_err(|e| format!("cannot write {}: {e}", file.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_run_skips_only_complete_sections_of_its_commit() {
        let complete = || SectionResults {
            commit: "abc".into(),
            machine: machine::describe(),
            is_whole: true,
            rounds: 4,
            seconds: 60,
            runs: 10,
            ..SectionResults::default()
        };
        assert!(is_complete(&complete(), "abc"));
        assert!(!is_complete(&complete(), "abd"));
        let changes: [fn(&mut SectionResults); 4] = [
            |saved| saved.is_whole = false,
            |saved| saved.missing.push("go".into()),
            |saved| saved.machine.clear(),
            |saved| saved.disturbed = 2,
        ];
        for change in changes {
            let mut saved = complete();
            change(&mut saved);
            assert!(!is_complete(&saved, "abc"));
        }
    }

    #[test]
    fn the_plan_names_the_expected_time() {
        let options = Options::for_tests(std::time::Duration::ZERO);
        let line = |saved, is_kept| plan(Section::Matrix, &options, saved, is_kept);
        assert_eq!(
            line(None, false),
            "matrix       18.0 minutes, 3 to 5 rounds"
        );
        let saved = SectionResults {
            is_whole: true,
            rounds: 4,
            seconds: 240,
            ..SectionResults::default()
        };
        assert_eq!(
            line(Some(&saved), false),
            "matrix        5.0 minutes, 3 to 5 rounds"
        );
        assert_eq!(
            line(Some(&saved), true),
            "matrix       complete at this commit"
        );
    }

    #[test]
    fn a_full_run_needs_every_peer() {
        let mut options = Options::for_tests(std::time::Duration::ZERO);
        let mut built = BuiltPrograms::default();
        assert_eq!(need_peers(&options, &built), Ok(()));
        built.skipped.insert("go", "install Go".into());
        assert_eq!(need_peers(&options, &built), Ok(()));
        options.full = true;
        let error = need_peers(&options, &built).unwrap_err();
        assert!(error.ends_with("\n  go: install Go"), "{error}");
    }
}
