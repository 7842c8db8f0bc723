//! [`Table`]: a repeating timetable.
//!
//! Entries begin on the grid of the table: entry *i* of lap *n* begins at *start + n · length + offset(i)*, whatever happened
//! before, so errors do not add up. Entries that were missed altogether (the machine was suspended) are skipped. Tasks that
//! have ended leave their time to the others. It reads no CPU time.

use crate::policy::{Nanos, Policy, TaskId, Turn};

/// One line of the timetable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The tasks that are favoured, in order. None: all are equal.
    pub tasks: Vec<TaskId>,
    /// For how long, ns.
    pub length: Nanos,
}

/// A repeating timetable.
#[derive(Debug)]
pub struct Table {
    entries: Vec<Entry>,
    total: Nanos,
    start: Option<Nanos>,
    gone: Vec<TaskId>,
}

impl Table {
    /// Follows `entries` again and again. Entries without length are left out; without any entry no task is favoured.
    pub fn new(entries: Vec<Entry>) -> Table {
        let entries: Vec<Entry> = entries.into_iter().filter(|e| e.length > 0).collect();
        let lengths = entries.iter().map(|entry| entry.length);
        let total = lengths.fold(0, Nanos::saturating_add);
        Table {
            entries,
            total,
            start: None,
            gone: Vec::new(),
        }
    }

    /// The entry that holds at `now`, and when it ends.
    fn current(&self, start: Nanos, now: Nanos) -> Option<(&Entry, Nanos)> {
        let since = now.saturating_sub(start).checked_rem(self.total)?;
        let lap = now - since;
        let mut end = 0;
        for entry in &self.entries {
            end = entry.length.saturating_add(end);
            if since < end {
                return Some((entry, end.saturating_add(lap)));
            }
        }
        None
    }
}

impl Policy for Table {
    fn name(&self) -> &'static str {
        "table"
    }

    fn added(&mut self, _task: TaskId, _now: Nanos) {}

    fn removed(&mut self, task: TaskId, _now: Nanos) {
        self.gone.push(task);
    }

    fn pick(&mut self, now: Nanos, turn: &mut Turn) {
        let start = *self.start.get_or_insert(now);
        if let Some((entry, end)) = self.current(start, now.max(start)) {
            for &task in entry.tasks.iter().filter(|task| !self.gone.contains(task)) {
                turn.favour(task);
            }
            turn.until(end);
        }
    }
}
