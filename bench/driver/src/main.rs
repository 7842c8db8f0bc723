//! `upshift-bench`: measures Upshift against other runtimes, and writes `bench/results/` and `bench/RESULTS.md`.
//!
//! One process and, while it measures, one client thread. The parts, from the command line to the page:
//!
//! | file | concern |
//! |---|---|
//! | `options` | the command line |
//! | `peers` | who is measured, and how each is built |
//! | `server` | one server process: start, address, end |
//! | `check` | the same bytes from everybody, before any timing |
//! | `measure` | one run: fresh server, load, CPU time, disturbance |
//! | `rounds` | interleaved rounds, repeats of disturbed runs |
//! | `sections` | what is run in each section |
//! | `preemption` | the section of long requests among short ones |
//! | `processes` | the section of an urgent server beside a batch process |
//! | `assign` | the section of unmodified servers beside a batch process |
//! | `sched` | the section of policies over processes |
//! | `serve` | the section of web servers |
//! | `files` | the section of files |
//! | `cpp` | the section of servers in C++ |
//! | `micro` | the microbenchmarks, which are programs of their own |
//! | `conserve`, `multi` | their sections of two workers |
//! | `results` | the data, a file for each section |
//! | `targets`, `preemption::targets`, `processes_targets`, `serve_targets` | what was to be reached, and whether it was |
//! | `render` | the page |
//! | `machine` | kernel, processor, versions, load of a CPU |

mod assign;
mod check;
mod conserve;
mod cpp;
mod files;
mod machine;
mod measure;
mod micro;
mod multi;
mod options;
mod peers;
mod preemption;
mod processes;
mod processes_targets;
mod render;
mod results;
mod rounds;
mod sched;
mod sections;
mod serve;
mod serve_targets;
mod server;
mod targets;

use std::process::ExitCode;

use options::{Command, Options};
use results::Results;

fn main() -> ExitCode {
    let outcome = match options::parse() {
        Ok(Command::Run(options)) => run(&options),
        Ok(Command::Drop(options)) => forget(&options),
        Ok(Command::Render(options)) => render_again(&options),
        Ok(Command::Help) => {
            print!("{}", options::HELP);
            Ok(())
        }
        Err(message) => {
            eprintln!("error: {message}\n\n{}", options::HELP);
            return ExitCode::from(2);
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
        if let Some(measured) = sections::run(section, options, &built) {
            need_commit(options, &measured.commit)?;
            // After each section, so that an interrupted run loses only the one it was in.
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

/// What is kept in `bench/` is of a commit that others can check out.
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
    Ok(())
}
