//! `upshift-bench`: measures Upshift against other runtimes, and writes `bench/RESULTS.md` and `bench/results.json`.
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
//! | `sched` | the section of policies over processes |
//! | `serve` | the section of web servers |
//! | `micro` | the microbenchmarks, which are programs of their own |
//! | `conserve`, `multi` | their sections of two workers |
//! | `results` | the data, kept section by section |
//! | `targets`, `preemption::targets`, `processes_targets`, `serve_targets` | what was to be reached, and whether it was |
//! | `render` | the page |
//! | `machine` | kernel, processor, versions, load of a CPU |

mod check;
mod conserve;
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
    let mut results = Results::load(&options.out)?;
    let built = peers::build(options);
    for &section in &options.only {
        if let Some(measured) = sections::run(section, options, &built) {
            results.sections.insert(section.name().to_owned(), measured);
            // After each section, so that an interrupted run loses only the one it was in.
            write(options, &results)?;
        }
    }
    for (id, why) in &built.skipped {
        eprintln!("skipped {id}: {why}");
    }
    Ok(())
}

fn render_again(options: &Options) -> Result<(), String> {
    write(options, &Results::load(&options.out)?)
}

fn write(options: &Options, results: &Results) -> Result<(), String> {
    results.save(&options.out)?;
    let page = options.out.join("RESULTS.md");
    std::fs::write(&page, render::page(results))
        .map_err(|e| format!("cannot write {}: {e}", page.display()))?;
    eprintln!("wrote {}", page.display());
    Ok(())
}
