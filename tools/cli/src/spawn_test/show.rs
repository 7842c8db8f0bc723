//! The result, and its row of a table.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::choice::Model;
use upshift_report::Table;
use upshift_report::number::{bytes, grouped, micros};

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

impl SpawnReport {
    /// The row that the demo and the command print, see [`table`].
    pub(crate) fn row(&self) -> [String; 7] {
        let each = |seconds: f64| {
            let ns = seconds * 1e9 / self.count as f64;
            if ns < 1000.0 {
                format!("{ns:.0} ns")
            } else {
                micros(ns / 1e3)
            }
        };
        [
            self.model.clone(),
            grouped(self.count as f64),
            bytes(self.memory),
            bytes(self.bytes_each()),
            micros(self.spawn * 1e6),
            each(self.spawn),
            each(self.run),
        ]
    }
}

/// An empty table for [`SpawnReport::row`]s.
pub(crate) fn table(title: impl Into<String>) -> Table {
    Table::new(
        title,
        &[
            "<model",
            "count",
            "?memory",
            "memory each",
            "?spawn all",
            "spawn each",
            "run and join each",
        ],
    )
}
