//! `upshift-bench`: measures Upshift against other runtimes, and writes `bench/results/`,
//! `bench/RESULTS.md` and the figures of `docs/evaluation.md`.
//!
//! One process and, while it measures, one client thread. The parts, from the command line to the
//! page:
//!
//! | file | concern |
//! |---|---|
//! | `section` | the names of the sections |
//! | `options` | the command line |
//! | `machine` | kernel, processor, versions, load of a CPU |
//! | `peers`, `build` | the measured programs, and their builds |
//! | `results` | the data, a file for each section |
//! | `table` | the forms of its tables |
//! | `server` | one server process: start, address, end |
//! | `check` | the same bytes from every server, before any timing |
//! | `measure` | one run: fresh server, load, CPU time, disturbance |
//! | `rounds` | interleaved rounds, repeats of disturbed runs |
//! | `figures` | programs that measure by themselves and print figures |
//! | `verdict` | one target, and its verdict |
//! | `sections` | the runs and targets of each section: a file or a folder for each |
//! | `interval`, `compare` | two commits beside each other |
//! | `render` | the page |
//!
//! A file uses only files further up in this table.

mod build;
mod check;
mod compare;
mod figures;
mod interval;
mod machine;
mod measure;
mod options;
mod peers;
mod render;
mod results;
mod rounds;
mod section;
mod sections;
mod server;
mod table;
mod verdict;

use std::path::Path;
use std::process::ExitCode;

use options::{Command, Options};
use results::Results;

fn main() -> ExitCode {
    let outcome = match options::parse() {
        Command::Run(options) => run(&options),
        Command::Drop(options) => forget(&options),
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
    need_commit(options, &machine::commit())?;
    let mut results = Results::load(&options.out)?;
    let built = peers::build(options);
    for &section in &options.only {
        if let Some(mut measured) = sections::run(section, options, &built) {
            need_commit(options, &measured.commit)?;
            if !(options.peers.is_empty() && options.rows.is_empty())
                && let Some(before) = results.sections.remove(section.name())
            {
                measured.take_over(before);
            }
            // Saved after each section, so that an interruption loses only the current one.
            measured.save(&options.out, section.name())?;
            results.sections.insert(section.name().to_owned(), measured);
            write_page(options, &results)?;
        }
    }
    for (id, why) in &built.skipped {
        eprintln!("skipped {id}: {why}");
    }
    Ok(())
}

/// Fails unless results that go to `bench/` belong to a commit that others can check out.
fn need_commit(options: &Options, commit: &str) -> Result<(), String> {
    if options.out == options::bench_dir() && commit.ends_with(machine::DIRTY) {
        return Err(format!(
            "the tree differs from its commit ({commit}): commit first, or name another folder with --out DIR"
        ));
    }
    Ok(())
}

fn forget(options: &Options) -> Result<(), String> {
    let mut results = Results::load(&options.out)?;
    for section in &options.only {
        results.drop_section(&options.out, section.name())?;
    }
    write_page(options, &results)
}

fn render_again(options: &Options) -> Result<(), String> {
    write_page(options, &Results::load(&options.out)?)
}

fn write_page(options: &Options, results: &Results) -> Result<(), String> {
    let page = options.out.join("RESULTS.md");
    std::fs::write(&page, render::page(results))
        .map_err(|e| format!("cannot write {}: {e}", page.display()))?;
    eprintln!("wrote {}", page.display());
    if options.out == options::bench_dir() {
        draw_plots(&options.out.join("../docs/evaluation"), results)?;
    }
    Ok(())
}

/// Draws the figures of `docs/evaluation.md` from saved results.
fn draw_plots(folder: &Path, results: &Results) -> Result<(), String> {
    for (name, plot) in sections::plots(results) {
        let file = folder.join(name);
        std::fs::write(&file, plot.svg())
            .map_err(|e| format!("cannot write {}: {e}", file.display()))?;
    }
    Ok(())
}
