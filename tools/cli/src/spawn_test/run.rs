//! Runs the test in this process, and prints the result.

use std::io::Write;

use anyhow::Result;

use super::args::SpawnTestArgs;
use super::show::table;
use super::{coroutine, thread};
use crate::choice::Model;

/// Runs the test and prints the result.
pub(crate) fn spawn_test(args: &SpawnTestArgs) -> Result<()> {
    let report = match args.model {
        Model::Thread => thread::measure(args.count)?,
        Model::Coroutine => coroutine::measure(args.count)?,
    };
    let mut out = std::io::stdout();
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&report)?)?;
    } else {
        let mut table = table("");
        table.row(report.row());
        write!(out, "{table}")?;
    }
    Ok(())
}
