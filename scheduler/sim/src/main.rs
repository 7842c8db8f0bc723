//! The simulator's command-line program. It runs generated cases, checks the theorems on preemption
//! against generated loads, and makes the table of `docs/scale.md`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use upshift_sim::suspension::search_loads;
use upshift_sim::{Family, draw, points, search, table};

/// Families of cases, with their names on the command line.
const FAMILIES: [(&str, Family); 4] = [
    ("one", Family::ONE),
    ("one-preemptible", Family::ONE.preemptible()),
    ("several", Family::SEVERAL),
    ("several-preemptible", Family::SEVERAL.preemptible()),
];
/// Number of cases in a chunk. Each chunk has its own seed and prints a line of progress.
const CHUNK: u32 = 10_000;

/// Runs the core under a simulated host
#[derive(Parser)]
#[command(name = "upshift-sim")]
enum Task {
    /// Generates cases of all families; a case that breaks a law is shrunk, and drawn into
    /// violation-FAMILY-SEED.svg
    Soak {
        #[arg(default_value_t = 1_000_000)]
        cases: u64,
        #[arg(default_value_t = 1)]
        seed: u64,
    },
    /// Repeats the chunk of a run that found a violation
    Find {
        #[arg(value_parser = FAMILIES.map(|family| family.0))]
        family: String,
        seed: u64,
    },
    /// Generates loads and checks the theorems of preemption against each
    Rule {
        #[arg(default_value_t = 1_000_000)]
        loads: u64,
        #[arg(default_value_t = 1)]
        seed: u64,
    },
    /// Prints the table of docs/scale.md, and draws its plots into the folder
    Scale { folder: Option<PathBuf> },
}

fn main() -> ExitCode {
    match Task::parse() {
        Task::Soak { cases, seed } => soak(cases, seed),
        Task::Find { family, seed } => {
            let entry = FAMILIES.into_iter().find(|entry| entry.0 == family);
            let (name, family) = entry.expect("clap accepts no other family");
            find(name, family, seed)
        }
        Task::Rule { loads, seed } => rule(loads, seed),
        Task::Scale { folder } => scale(folder.as_deref()),
    }
}

fn soak(cases: u64, seed: u64) -> ExitCode {
    let mut cases_run = 0;
    for chunk in 0.. {
        for (name, family) in FAMILIES {
            if cases_run >= cases {
                println!("{cases_run} cases, no law broken");
                return ExitCode::SUCCESS;
            }
            if find(name, family, seed + chunk) == ExitCode::FAILURE {
                return ExitCode::FAILURE;
            }
            cases_run += u64::from(CHUNK);
            println!("{cases_run} cases");
        }
    }
    ExitCode::SUCCESS
}

fn rule(loads: u64, seed: u64) -> ExitCode {
    for chunk in 0..loads.div_ceil(u64::from(10 * CHUNK)) {
        if let Err(violation) = search_loads(10 * CHUNK, seed + chunk) {
            println!("seed {}: {violation}", seed + chunk);
            return ExitCode::FAILURE;
        }
        println!("{} loads", (chunk + 1) * u64::from(10 * CHUNK));
    }
    println!("no theorem broken");
    ExitCode::SUCCESS
}

/// Runs one chunk of a family. A violation is printed, and drawn into a file.
fn find(name: &str, family: Family, seed: u64) -> ExitCode {
    let Err(counterexample) = search(family, CHUNK, seed, &[]) else {
        return ExitCode::SUCCESS;
    };
    println!("{counterexample}");
    let command = format!("upshift-sim find {name} {seed}");
    println!("repeat with: {command}");
    let file = format!("violation-{name}-{seed}.svg");
    let title = format!(
        "{}; repeat with: {command}",
        counterexample.violation.description
    );
    let picture = counterexample.violation.timeline.recording(&title).to_svg();
    match std::fs::write(&file, picture) {
        Ok(()) => println!("drawn in {file}"),
        Err(error) => eprintln!("cannot write {file}: {error}"),
    }
    ExitCode::FAILURE
}

fn scale(folder: Option<&Path>) -> ExitCode {
    let points = points();
    println!("{}", table(&points));
    let Some(folder) = folder else {
        return ExitCode::SUCCESS;
    };
    let urgent = "median wait of level 0 (dashed: ideal)";
    let all = "mean wait of all jobs (dashed: ideal)";
    let drawn = draw(
        &points,
        urgent,
        |figures| figures.0,
        &folder.join("scale-level-0.svg"),
    )
    .and_then(|()| {
        draw(
            &points,
            all,
            |figures| figures.1,
            &folder.join("scale-all.svg"),
        )
    });
    match drawn {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cannot draw into {}: {error}", folder.display());
            ExitCode::FAILURE
        }
    }
}
