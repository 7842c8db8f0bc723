//! Builds the kernel and the programs, boots them in QEMU, checks what comes
//! out.
//!
//! `arguments` reads the command line, `build` calls cargo, `archive` writes the archive
//! the programs come in, `qemu` starts the machine and ends it in time, `suite` is the
//! test matrix, `doctor` makes the images for it that are wrong on purpose, `trace` and
//! `timeline` show what ran where and when, `state` where a machine is that does not end, `disk` makes the disk of a machine, `record` looks at what has passed its network card, `bench` counts instructions,
//! `evaluate` those of a server.

#![forbid(unsafe_code)]

mod archive;
mod arguments;
mod bench;
mod build;
mod disk;
mod doctor;
mod evaluate;
mod peer;
mod qemu;
mod record;
mod sequence;
mod state;
mod suite;
mod timeline;
mod trace;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use arguments::Arguments;
use evaluate::What;

const USAGE: &str = "usage: os-runner TASK [OPTIONS]

tasks:
  build                                 what the tests boot, and nothing else
  run [--smp N] [--disk FILE] [KERNEL ARGUMENTS...]
                                        boot, console on the terminal
  test [--smp N,N,...] [--seeds N] [--seed N] [--only TEXT]
                                        the test matrix, with so many seeds of chaos (6);
                                        with --seed only this one, with --only the machines
                                        whose name has this text
  soak [--smp N] [--runs N] [--only TEXT]
                                        all tests, again and again (4 harts, 20 times), then
                                        more seeds
  power-cut [--seeds N]                 kills a machine in the middle of its writes, so many times
                                        (200, as the soak does)
  bench                                 what things cost, in instructions
  evaluate [--quick | --published | --clock | --host | --profile [--sources] | --draw] [--to FOLDER]
                                        the matrix server of the papers, in four models: what
                                        `docs/kernel-evaluation` has not; a few points; those of the
                                        published shape; those by the host's clock; those with clients on the host, through a
                                        forwarded port; where the instructions of a request go, and the
                                        functions that take most; or nothing, and it only draws
  rings                                 four rings of 128 coroutines on 1 to 5 vCPUs, 4 harts
  trace [--smp N] [--icount] [--records N] [--json] [PROGRAM [ARGUMENT]]
                                        boot a program and print the states over time";

fn main() -> ExitCode {
    let mut arguments = Arguments::of_process();
    let Some(task) = arguments.word() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let outcome = match task.as_str() {
        "build" => build(arguments),
        "run" => run(arguments),
        "bench" => arguments.end().and_then(|()| bench::run()),
        "evaluate" => evaluate(arguments),
        "power-cut" => power_cut(arguments),
        "rings" => rings(arguments),
        "soak" => soak(arguments),
        "test" => test(arguments),
        "trace" => show_trace(arguments),
        "help" | "--help" | "-h" => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        other => Err(format!("there is no task `{other}`\n{USAGE}")),
    };
    match outcome {
        Ok(code) => code,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::from(2)
        }
    }
}

fn build(arguments: Arguments) -> Result<ExitCode, String> {
    arguments.end()?;
    build::with_kernel_threads()?;
    Ok(ExitCode::SUCCESS)
}

fn test(mut arguments: Arguments) -> Result<ExitCode, String> {
    let smp = arguments.harts()?.unwrap_or(vec![1, 2, 4, 8]);
    let one = arguments.number("--seed")?;
    let count = arguments.number("--seeds")?.unwrap_or(suite::SEEDS);
    let seeds = one.map_or(suite::Seeds::First(count), suite::Seeds::Only);
    let only = arguments.value("--only")?;
    arguments.end()?;
    suite::run(&smp, seeds, only.as_deref())
}

fn evaluate(mut arguments: Arguments) -> Result<ExitCode, String> {
    let flags = [
        ("--quick", What::Quick),
        ("--published", What::Published),
        ("--clock", What::Clock),
        ("--host", What::Host),
        ("--profile", What::Profile(arguments.flag("--sources"))),
        ("--draw", What::Draw),
    ];
    let what = flags.into_iter().find(|(flag, _)| arguments.flag(flag));
    let what = what.map_or(What::All, |(_, what)| what);
    let folder = arguments.value("--to")?.map(PathBuf::from);
    arguments.end()?;
    let folder = folder.unwrap_or_else(|| build::root().join("../docs/kernel-evaluation"));
    evaluate::run(what, &folder)
}

/// All tests again and again, then the seeds that the matrix leaves out.
fn soak(mut arguments: Arguments) -> Result<ExitCode, String> {
    let smp = arguments.harts()?.unwrap_or(vec![4]);
    let runs = arguments.number("--runs")?.unwrap_or(20);
    let only = arguments.value("--only")?;
    arguments.end()?;
    suite::soak(smp[0], runs, only.as_deref())
}

fn power_cut(mut arguments: Arguments) -> Result<ExitCode, String> {
    let seeds = arguments.number("--seeds")?;
    arguments.end()?;
    suite::power_cuts(seeds)
}

/// Boots with 4 harts, and prints what the program `rings` has measured. Not where
/// instructions count as time: that would run the harts in turn.
fn rings(arguments: Arguments) -> Result<ExitCode, String> {
    arguments.end()?;
    let image = build::image()?;
    let machine = qemu::Machine {
        cpu: "",
        smp: 4,
        icount: false,
        network: qemu::Network::No,
        disk: None,
        arguments: "init=rings".to_owned(),
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
fn run(mut arguments: Arguments) -> Result<ExitCode, String> {
    let smp = arguments.harts()?.unwrap_or(vec![1]);
    let disk = arguments.value("--disk")?.map(PathBuf::from);
    let image = build::image()?;
    let machine = qemu::Machine {
        cpu: "",
        smp: smp[0],
        icount: false,
        network: qemu::Network::No,
        disk: None,
        arguments: arguments.rest().join(" "),
    };
    let status = qemu::command(&image, &machine, disk.as_deref())
        .args(["-monitor", "none"])
        .status()
        .map_err(qemu::explain)?;
    Ok(ExitCode::from(status.code().unwrap_or(1) as u8))
}

/// Boots a program with traces on, and prints them.
fn show_trace(mut arguments: Arguments) -> Result<ExitCode, String> {
    let smp = arguments.harts()?.unwrap_or(vec![1]);
    let icount = arguments.flag("--icount");
    let json = arguments.flag("--json");
    let records = arguments.number("--records")?.unwrap_or(4096);
    let program = arguments.word().unwrap_or("traced".to_owned());
    let with = arguments
        .word()
        .map_or(String::new(), |word| format!(" with={word}"));
    arguments.end()?;
    let image = build::image()?;
    let machine = qemu::Machine {
        cpu: "",
        smp: smp[0],
        icount,
        network: qemu::Network::No,
        disk: None,
        arguments: format!("init={program}{with} trace={records}"),
    };
    let outcome = qemu::run(&image, &machine, Duration::from_secs(120))?;
    let trace = trace::parse(&outcome.output)
        .ok_or_else(|| format!("{}\nthe machine has printed no trace", outcome.output))?;
    match json {
        true => println!("{}", timeline::json(&trace)),
        false => print!("{}", timeline::text(&program, &trace)),
    }
    match outcome.status {
        Some(0) => Ok(ExitCode::SUCCESS),
        status => Err(format!("`{program}` has ended with {status:?}, not 0")),
    }
}
