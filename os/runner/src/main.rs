//! Builds the kernel and the programs, boots them in QEMU, checks what comes
//! out.
//!
//! ```text
//! os-runner run [ARGUMENTS…]     boot with this command line, console on the terminal
//! os-runner test [--smp 1,2,4]   the test matrix
//! os-runner figures              what things cost, in instructions
//! ```
//!
//! `build` calls cargo, `archive` writes the archive the programs come in, `qemu`
//! starts the machine and ends it in time, `suite` is the test matrix.

#![forbid(unsafe_code)]

mod archive;
mod build;
mod qemu;
mod suite;

use std::process::ExitCode;
use std::time::Duration;

const USAGE: &str = "usage: os-runner run [--smp N] [KERNEL ARGUMENTS...]
       os-runner test [--smp N,N,...]
       os-runner figures";

fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.is_empty() {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    }
    let task = arguments.remove(0);
    let outcome = take_smp(&mut arguments).and_then(|smp| match task.as_str() {
        "run" => run(&smp, &arguments),
        "figures" if arguments.is_empty() => figures(),
        "test" if arguments.is_empty() => suite::run(&smp),
        _ => Err(USAGE.to_owned()),
    });
    match outcome {
        Ok(code) => code,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::from(2)
        }
    }
}

/// Takes `--smp LIST` out of the arguments; `[1, 2, 4]` without it.
fn take_smp(arguments: &mut Vec<String>) -> Result<Vec<u32>, String> {
    let Some(at) = arguments.iter().position(|argument| argument == "--smp") else {
        return Ok(vec![1, 2, 4]);
    };
    let list = arguments.get(at + 1).ok_or(USAGE)?.clone();
    arguments.drain(at..at + 2);
    let parse = |number: &str| match number.parse() {
        Ok(number @ 1..=8) => Ok(number),
        _ => Err(format!("--smp {number}: give numbers from 1 to 8")),
    };
    list.split(',').map(parse).collect()
}

/// Boots where instructions count as time, and prints what the program `figures`
/// has counted.
fn figures() -> Result<ExitCode, String> {
    let image = build::image()?;
    let machine = qemu::Machine {
        smp: 1,
        icount: true,
        arguments: "init=figures".to_owned(),
    };
    let outcome = qemu::run(&image, &machine, Duration::from_secs(60))?;
    let figures = outcome
        .output
        .lines()
        .filter_map(|line| line.strip_prefix("figure: "));
    figures.for_each(|figure| println!("{figure}"));
    match outcome.status {
        Some(0) => Ok(ExitCode::SUCCESS),
        _ => Err(outcome.output),
    }
}

/// Boots with the console on the terminal.
fn run(smp: &[u32], arguments: &[String]) -> Result<ExitCode, String> {
    let image = build::image()?;
    let machine = qemu::Machine {
        smp: smp[0],
        icount: false,
        arguments: arguments.join(" "),
    };
    let status = qemu::command(&image, &machine)
        .status()
        .map_err(qemu::explain)?;
    Ok(ExitCode::from(status.code().unwrap_or(1) as u8))
}
