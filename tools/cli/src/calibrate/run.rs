//! Checks the privileges, measures switches and timers, and prints the result.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Result;
use upshift_elevate::{Calibration, Priority, Rights};

use super::args::CalibrateArgs;
use super::show::{switches, timers};
use upshift_report::number::micros;

pub(crate) fn calibrate(args: &CalibrateArgs) -> Result<ExitCode> {
    let rights = Rights::probe();
    let is_permitted = rights.highest.is_some();
    let calibration = if is_permitted {
        Some(Calibration::measure(args.cpu)?)
    } else {
        None
    };
    let mut out = io::stdout().lock();
    write!(out, "{rights}")?;
    if let Some(calibration) = &calibration {
        write!(out, "\n{}\n{}", switches(calibration), timers(calibration))?;
        writeln!(
            out,
            "\ncost of a timer to the thread it interrupts: {}\nsmallest sensible quantum: {}",
            micros(calibration.look_cost().as_secs_f64() * 1e6),
            micros(calibration.min_quantum().as_secs_f64() * 1e6)
        )?;
    }
    out.flush()?;
    if let Err(missing) = rights.require(Priority::MIN) {
        anyhow::bail!("{missing}");
    }
    Ok(ExitCode::SUCCESS)
}
