//! The test matrix: the kernel's own tests and the programs', on each number of
//! harts, and in deterministic time; and the ways in which the machine must fail.
//!
//! A run passes if the machine exits with 0, the last line is there, and no line
//! speaks of a panic.

use std::process::ExitCode;
use std::time::Duration;

use crate::build;
use crate::qemu::{self, Machine, Outcome};

/// Generous: the host may be slow, and a hang is rare.
const LIMIT: Duration = Duration::from_secs(120);

/// One run of the machine.
struct Run {
    name: String,
    machine: Machine,
    /// The exit status that is right.
    status: i32,
    /// The last line begins so.
    last: &'static str,
}

/// Runs all of it and prints one line per test.
pub(crate) fn run(smp: &[u32]) -> Result<ExitCode, String> {
    let image = build::image()?;
    let (mut passed, mut failed) = (0, 0);
    for run in matrix(smp) {
        let outcome = qemu::run(&image, &run.machine, LIMIT)?;
        let name = &run.name;
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
        let took = outcome.took;
        match verdict(&run, &outcome) {
            Ok(()) => {
                passed += 1;
                println!("{name}: test ends_as_it_should ... ok ({took:.1?})");
            }
            Err(reason) => {
                failed += 1;
                println!(
                    "{name}: FAILED after {took:.1?}: {reason}\n{}",
                    outcome.output
                );
            }
        }
    }
    println!("{passed} passed, {failed} failed");
    Ok(ExitCode::from(u8::from(failed != 0)))
}

fn matrix(smp: &[u32]) -> Vec<Run> {
    let mut runs = Vec::new();
    let mut add = |name: String, smp, icount, arguments: &str, status, last| {
        let arguments = arguments.to_owned();
        let machine = Machine {
            smp,
            icount,
            arguments,
        };
        runs.push(Run {
            name,
            machine,
            status,
            last,
        });
    };
    for (how, last) in [
        ("panic", "upshift: kernel panicked"),
        ("overflow", "upshift: kernel panicked"),
        ("text", "upshift: kernel panicked"),
    ] {
        add(
            format!("{how} fails"),
            1,
            false,
            &format!("selftest={how}"),
            101,
            last,
        );
    }
    add(
        "no program fails".to_owned(),
        1,
        false,
        "init=none",
        2,
        "upshift: none ended with 2",
    );
    let kernel = "selftest: ";
    let tests = "upshift: tests ended with 0";
    add(
        "icount kernel".to_owned(),
        1,
        true,
        "selftest icount",
        0,
        kernel,
    );
    add(
        "icount".to_owned(),
        1,
        true,
        "init=tests with=exact",
        0,
        tests,
    );
    for &harts in smp {
        let with = if harts == 1 { " with=single" } else { "" };
        add(
            format!("smp {harts} kernel"),
            harts,
            false,
            "selftest",
            0,
            kernel,
        );
        add(
            format!("smp {harts}"),
            harts,
            false,
            &format!("init=tests{with}"),
            0,
            tests,
        );
    }
    runs
}

fn verdict(run: &Run, outcome: &Outcome) -> Result<(), String> {
    if run.status == 0 && outcome.output.contains("panicked") {
        return Err("something panicked".to_owned());
    }
    match outcome.status {
        None => Err(format!("no end within {LIMIT:?}")),
        Some(status) if status != run.status => {
            Err(format!("exit status {status} instead of {}", run.status))
        }
        Some(_) => {
            let mut lines = outcome.output.lines().rev();
            match lines.any(|line| line.starts_with(run.last)) {
                true => Ok(()),
                false => Err(format!("the line `{}` is missing", run.last)),
            }
        }
    }
}
