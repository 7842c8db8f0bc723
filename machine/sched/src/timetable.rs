//! Parses timetables: texts with one entry per line, which consists of tasks and a length.
//!
//! ```text
//! # a repeating timetable of 20 ms
//! server    5ms
//! 4711      10ms
//! a,b       2500us     # on two CPUs: a on one, b on the other
//! -         2.5ms      # no task is favoured
//! ```
//!
//! ```
//! use upshift_sched::TaskId;
//! use upshift_sched::timetable::parse;
//!
//! let find = |name: &str| (name == "server").then_some(TaskId(0));
//! let entries = parse("server 5ms\n- 2.5ms", 50_000, find)?;
//! assert_eq!((entries[0].tasks[0], entries[1].length), (TaskId(0), 2_500_000));
//! # Ok::<(), upshift_sched::timetable::TimetableError>(())
//! ```

use std::error::Error;
use std::fmt;

use crate::policies::Entry;
use crate::policy::{Nanos, TaskId};

/// Error in a timetable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimetableError {
    /// Number of the line, from 1; 0 for the whole timetable.
    pub line: usize,
    /// The error as text, with a remedy.
    pub what: String,
}

impl fmt::Display for TimetableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.what),
            line => write!(f, "line {line}: {}", self.what),
        }
    }
}

impl Error for TimetableError {}

/// Maximum length of a timetable, ns.
const MAX_LENGTH: Nanos = 1_000_000_000_000_000;

/// Parses a timetable. `find` returns the task that a word names; entries must last at least
/// `min_slice` ns.
///
/// # Errors
/// [`TimetableError`] with the number of the line.
pub fn parse(
    text: &str,
    min_slice: Nanos,
    find: impl Fn(&str) -> Option<TaskId>,
) -> Result<Vec<Entry>, TimetableError> {
    let mut entries = Vec::new();
    let mut total: Nanos = 0;
    for (index, full_line) in text.lines().enumerate() {
        let error = |what: String| TimetableError {
            line: index + 1,
            what,
        };
        let line = full_line.split('#').next().unwrap_or_default();
        let words: Vec<&str> = line.split_whitespace().collect();
        let (names, length) = match words[..] {
            [] => continue,
            [names, length] => (names, length),
            _ => {
                return Err(error(format!(
                    "`{}` is not an entry: write a task and its time, e.g. `4711 5ms`",
                    line.trim()
                )));
            }
        };
        let length = upshift_units::positive_duration(length).map_err(error)?;
        let length = length.as_nanos() as Nanos;
        if length < min_slice {
            return Err(error(format!(
                "{} µs is shorter than this machine's timers allow (at least {} µs): make the entry longer",
                length / 1000,
                min_slice.div_ceil(1000)
            )));
        }
        total = total.saturating_add(length);
        if total > MAX_LENGTH {
            let what = "the timetable exceeds 1000000 s at this line: make it shorter";
            return Err(error(what.to_owned()));
        }
        let names = names.split(',').filter(|name| *name != "-");
        let tasks = names.map(|name| {
            find(name).ok_or_else(|| {
                error(format!(
                    "`{name}` is not a known task: use a pid or a label of the command line"
                ))
            })
        });
        entries.push(Entry {
            tasks: tasks.collect::<Result<_, _>>()?,
            length,
        });
    }
    if entries.is_empty() {
        let what = "the timetable is empty: write one entry a line, e.g. `4711 5ms`".to_owned();
        return Err(TimetableError { line: 0, what });
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(name: &str) -> Option<TaskId> {
        ["a", "b", "4711"]
            .iter()
            .position(|&known| known == name)
            .map(TaskId)
    }

    #[test]
    fn an_entry_is_names_and_a_length() {
        let text = "# head\n\na 5ms # first\n  4711,b\t0.2ms\n- 1s\n";
        let entries = parse(text, 1, find).unwrap();
        let found: Vec<(Vec<usize>, Nanos)> = entries
            .into_iter()
            .map(|e| (e.tasks.into_iter().map(|t| t.0).collect(), e.length))
            .collect();
        let expected = [
            (vec![0], 5_000_000),
            (vec![2, 1], 200_000),
            (vec![], 1_000_000_000),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn errors_name_the_line() {
        for (text, line, excerpt) in [
            ("a 5ms\nc 5ms", 2, "`c`"),
            ("a", 1, "not an entry"),
            ("\na 5", 2, "`5`"),
            ("a 5 min", 1, "not an entry"),
            ("a 0ms", 1, "`0ms`"),
            ("a -1ms", 1, "`-1ms`"),
            ("a 1us", 1, "50 µs"),
            ("a 5ms b", 1, "not an entry"),
            ("# nothing", 0, "empty"),
            ("a 900000s\nb 900000s", 2, "exceeds"),
            ("a 1e400ms", 1, "`1e400ms`"),
            (", 5ms", 1, "not a known task"),
        ] {
            let error = parse(text, 50_000, find).unwrap_err();
            assert_eq!(error.line, line, "{text}: {error}");
            let message = error.to_string();
            assert!(message.contains(excerpt), "{text}: {message}");
        }
    }
}
