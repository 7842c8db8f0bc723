//! Measures how well Upshift and a published algorithm (see `trick`) schedule processes from user
//! space.
//!
//! Spinning processes share one CPU, the last permitted one. Each process reads the clock
//! continuously and records the times at which it ran, so the processes measure themselves.
//! Prints one line of JSON for each figure: `bench` (the case and the quantity, with its unit),
//! `peer` (the scheduler), `ns` (the value), `min`, `max`. Figures of the kernel's own scheduler
//! are printed for comparison.
//!
//! | file | concern |
//! |---|---|
//! | `spinners` | processes that spin and record when they run |
//! | `trick` | the published algorithm, from its description |
//! | `trick.sh` | the same algorithm as a script of chrt and taskset |
//! | `runs` | one run under one scheduler, and its figures |

mod runs;
mod spinners;
mod trick;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use upshift_elevate::{Calibration, Priority, Rights};

use runs::{Contender, print, table, turns, with_bystander};

/// Measures the scheduling of processes from user space
#[derive(Parser)]
struct Arguments {
    /// Length of each run, 0.1 to 60 s
    #[arg(value_parser = seconds)]
    seconds: Duration,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok();
    let seconds = seconds.filter(|seconds| (0.1..=60.0).contains(seconds));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "expected a number of seconds from 0.1 to 60".into())
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Err(missing) = Rights::probe().require(Priority::of::<45>()) {
        eprintln!("error: {missing}");
        return ExitCode::FAILURE;
    }
    match run(arguments.seconds) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(time: Duration) -> Result<(), Box<dyn std::error::Error>> {
    let cpu = spinners::last_cpu()?;
    let calibration = Calibration::measure(Some(cpu))?;
    let us = |ns: u64| ns as f64 / 1e3;
    print(
        "elevation: two switches, µs",
        "machine",
        us(calibration.switch.p50_ns),
    );
    let min_quantum = calibration.min_quantum();
    print(
        "timer floor, µs",
        "machine",
        us(min_quantum.as_nanos() as u64),
    );
    let lateness_ns = calibration
        .timers
        .last()
        .map_or(0, |timer| timer.lateness.p99_ns);
    print("timer lateness p99, µs", "machine", us(lateness_ns));
    runs::alone(cpu, time)?;
    for count in [2, 8] {
        for slice in [Duration::from_millis(5), Duration::from_micros(200)] {
            for contender in [Contender::Upshift, Contender::Trick, Contender::Kernel] {
                turns(contender, cpu, count, slice.max(min_quantum), time)?;
            }
        }
    }
    // The published slices, whether or not the timers of this machine can keep them.
    for micros in [50, 20, 5] {
        for contender in [Contender::Upshift, Contender::Trick] {
            turns(contender, cpu, 2, Duration::from_micros(micros), time)?;
        }
    }
    for contender in [Contender::Upshift, Contender::Trick] {
        with_bystander(contender, cpu, time)?;
    }
    table(cpu, time)?;
    // The script is last, since it needs programs that may be missing.
    turns(Contender::Script, cpu, 2, Duration::from_millis(100), time)
}
