//! The result as a row of a table.

use super::run::SpawnReport;
use crate::table::{Table, bytes, grouped, micros};

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
