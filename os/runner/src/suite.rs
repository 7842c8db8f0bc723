//! The test matrix: the kernel's own tests, on each number of harts, in
//! deterministic time, and with a scheduler that shuffles.
//!
//! A run passes if the machine exits with 0, the last line is there, and no line
//! speaks of a panic.

use std::process::ExitCode;
use std::time::Duration;

use crate::build;
use crate::qemu::{self, Machine, Outcome};

/// Generous: the host may be slow, and a hang is rare.
const LIMIT: Duration = Duration::from_secs(120);

/// Runs all of it and prints one line per test.
pub(crate) fn run(smp: &[u32]) -> Result<ExitCode, String> {
    let image = build::image(true)?;
    let (mut passed, mut failed) = (0, 0);
    for (name, machine) in matrix(smp) {
        let outcome = qemu::run(&image, &machine, LIMIT)?;
        for line in outcome
            .output
            .lines()
            .filter(|line| line.starts_with("test "))
        {
            println!("{name}: {line}");
            match line.ends_with(" ok") {
                true => passed += 1,
                false => failed += 1,
            }
        }
        if let Err(reason) = verdict(&outcome) {
            failed += 1;
            println!(
                "{name}: FAILED after {:.1?}: {reason}\n{}",
                outcome.took, outcome.output
            );
        }
    }
    println!("{passed} passed, {failed} failed");
    Ok(ExitCode::from(u8::from(failed != 0)))
}

fn matrix(smp: &[u32]) -> Vec<(String, Machine)> {
    let machine = |smp, icount, arguments: &str| Machine {
        smp,
        icount,
        arguments: arguments.to_owned(),
    };
    let mut runs = vec![("icount".to_owned(), machine(1, true, "selftest icount"))];
    for &harts in smp {
        runs.push((format!("smp {harts}"), machine(harts, false, "selftest")));
    }
    runs
}

fn verdict(outcome: &Outcome) -> Result<(), String> {
    if outcome.output.contains("panicked") {
        return Err("the kernel panicked".to_owned());
    }
    match outcome.status {
        None => Err(format!("no end within {LIMIT:?}")),
        Some(0) => {
            let last = outcome.output.lines().last().unwrap_or_default();
            if last.starts_with("selftest: ") && last.ends_with(" 0 failed") {
                Ok(())
            } else {
                Err("the last line is missing".to_owned())
            }
        }
        Some(status) => Err(format!("exit status {status}")),
    }
}
