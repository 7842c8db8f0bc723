//! Runs the test in this process, and prints the result.

use std::io::Write;
use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::args::SpawnTestArgs;
use super::show::table;
use super::{coroutine, thread};
use crate::choice::Model;

/// What was measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SpawnReport {
    pub(crate) model: String,
    pub(crate) count: usize,
    /// Growth of resident memory while all waited, bytes.
    pub(crate) memory: f64,
    /// Seconds to spawn all.
    pub(crate) spawn: f64,
    /// Seconds to wake all, run them to their end and join them.
    pub(crate) run: f64,
}

impl SpawnReport {
    pub(super) fn new(
        model: Model,
        count: usize,
        memory: u64,
        spawn: Duration,
        run: Duration,
    ) -> SpawnReport {
        SpawnReport {
            model: model.word().to_owned(),
            count,
            memory: memory as f64,
            spawn: spawn.as_secs_f64(),
            run: run.as_secs_f64(),
        }
    }

    /// Resident bytes of one.
    pub(crate) fn bytes_each(&self) -> f64 {
        self.memory / self.count as f64
    }
}

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
