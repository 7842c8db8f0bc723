//! [`Table`] is a policy that follows a repeating timetable.
//!
//! Entries begin on the grid of the table: entry *i* of lap *n* begins at *start + n · length +
//! offset(i)*, so errors do not add up. Entries that were missed completely (because the machine
//! was suspended) are skipped. A task that has ended leaves its time to the other tasks. The policy
//! reads no CPU time.

use crate::policy::{Nanos, Policy, TaskId, Turn};

/// An entry of the timetable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The favoured tasks in order; if empty, all tasks are equal.
    pub tasks: Vec<TaskId>,
    /// Length of the entry, ns.
    pub length: Nanos,
}

/// A repeating timetable.
///
/// ```
/// use upshift_sched::policies::{Entry, Table};
/// use upshift_sched::{Policy, TaskId, Turn};
///
/// let entry = |task, length| Entry { tasks: vec![TaskId(task)], length };
/// let mut policy = Table::new(vec![entry(0, 5_000_000), entry(1, 15_000_000)]);
/// let mut turn = Turn::new(1);
/// policy.pick(0, &mut turn);
/// assert_eq!((turn.favoured(), turn.end()), (&[TaskId(0)][..], Some(5_000_000)));
/// ```
#[derive(Debug)]
pub struct Table {
    entries: Vec<Entry>,
    total: Nanos,
    start: Option<Nanos>,
    ended: Vec<TaskId>,
}

impl Table {
    /// Creates a policy that repeats `entries`. Entries without a length are ignored; without any
    /// entry no task is favoured.
    pub fn new(entries: Vec<Entry>) -> Table {
        let entries: Vec<Entry> = entries.into_iter().filter(|e| e.length > 0).collect();
        let lengths = entries.iter().map(|entry| entry.length);
        let total = lengths.fold(0, Nanos::saturating_add);
        Table {
            entries,
            total,
            start: None,
            ended: Vec::new(),
        }
    }

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
        self.ended.push(task);
    }

    fn pick(&mut self, now: Nanos, turn: &mut Turn) {
        let start = *self.start.get_or_insert(now);
        if let Some((entry, end)) = self.current(start, now.max(start)) {
            for &task in entry.tasks.iter().filter(|task| !self.ended.contains(task)) {
                turn.favour(task);
            }
            turn.end_at(end);
        }
    }
}
