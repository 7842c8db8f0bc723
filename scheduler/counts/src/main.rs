//! Counts the instructions that operations of the runtime, such as a spawn or a wake, execute.
//! Unlike times, these figures do not depend on the load of the machine.
//!
//! Each operation is run N times and 3 N times under callgrind. The difference between the two
//! counts contains neither the start nor the end of the process. User-space instructions of all
//! threads count; instructions of the kernel do not.
//!
//! `table.txt` contains the figures and the versions of the tools. Another compiler, C library or
//! valgrind changes the figures, so the program then prints a note instead of comparing.

mod callgrind;
mod operations;
mod table;

use std::process::ExitCode;

use clap::Parser;

use operations::OPERATIONS;
use table::Table;

/// Tolerated excess over the table, as a share. A change elsewhere in the binary may change
/// inlining, and most counts thereby change by no more than this share. The count of `timer`
/// includes a call of `Sleep::advance`, which is not inlined because `serve` calls it, too, as in a
/// program that sleeps in several places.
const TOLERANCE: f64 = 0.03;

/// Counts the instructions of operations under callgrind
#[derive(Parser)]
#[command(name = "upshift-counts")]
enum Task {
    /// Counts all operations and compares the counts with the table; fails above the tolerance
    Check,
    /// Counts all operations and writes the table
    Accept,
    /// Prints the operations
    List,
    /// Runs an operation N times, to be counted by callgrind
    Run { name: String, times: u32 },
}

fn main() -> ExitCode {
    let result = match Task::parse() {
        Task::Check => check(),
        Task::Accept => count_all().and_then(|table| table.write()),
        Task::List => {
            for operation in &OPERATIONS {
                println!("{:14} {}", operation.name, operation.description);
            }
            Ok(())
        }
        Task::Run { name, times } => run(&name, times),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(name: &str, times: u32) -> Result<(), String> {
    let operation = OPERATIONS.iter().find(|operation| operation.name == name);
    let operation = operation.ok_or_else(|| format!("{name}: there is no such operation"))?;
    (operation.run)(times).map_err(|error| format!("{name}: {error}"))
}

fn count_all() -> Result<Table, String> {
    let mut table = Table::empty();
    for operation in &OPERATIONS {
        let count = callgrind::count(operation.name, operation.times)?;
        table.counts.push((operation.name.into(), count));
    }
    Ok(table)
}

fn check() -> Result<(), String> {
    let stored = Table::read()?;
    let table = Table::empty();
    if stored.made_with != table.made_with {
        println!(
            "skipped: the table is from {}, but the tools here are {}; `accept` makes a new one",
            stored.made_with, table.made_with
        );
        return Ok(());
    }
    let table = count_all()?;
    let mut failures = Vec::new();
    println!("{:14} {:>12} {:>12}", "operation", "table", "now");
    for (name, count) in &table.counts {
        let Some(limit) = stored.get(name) else {
            failures.push(format!("{name} is not in the table"));
            continue;
        };
        let change = 100.0 * (count / limit - 1.0);
        println!("{name:14} {limit:12.1} {count:12.1} {change:+6.1} %");
        if *count > limit * (1.0 + TOLERANCE) {
            failures.push(format!("{name}: {limit:.1} to {count:.1}"));
        }
    }
    if failures.is_empty() {
        return Ok(());
    }
    Err(format!(
        "more instructions than in the table: {}. If that is worth it, say so in the commit, and run `cargo run --release -p upshift-counts -- accept`",
        failures.join("; ")
    ))
}
