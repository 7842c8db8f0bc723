//! Writes messages for the operator to standard error.
//!
//! `eprintln!` panics when the reader of the pipe has gone or the disk is full, which must not end
//! a server. Messages that every request may cause are written at most once a second.

use std::fmt;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::clock;

/// Minimum time between two messages, in ms.
const INTERVAL: u64 = 1000;

pub(crate) struct Notices {
    /// Earliest time of the next message, in ms of the clock.
    next_at: AtomicU64,
    /// Number of messages omitted since the last one.
    omitted: AtomicU64,
}

impl Notices {
    pub(crate) const fn new() -> Notices {
        Notices {
            next_at: AtomicU64::new(0),
            omitted: AtomicU64::new(0),
        }
    }

    /// Writes a line, unless another line has just been written. The next line reports the number
    /// of omitted messages.
    pub(crate) fn report(&self, text: fmt::Arguments<'_>) {
        if let Some(omitted) = self.take_omitted(clock::millis()) {
            let suffix = match omitted {
                0 => String::new(),
                omitted => format!(" (and {omitted} such messages before)"),
            };
            let line = format!("upshift serve: {text}{suffix}\n");
            let _ = std::io::stderr().write_all(line.as_bytes());
        }
    }

    /// Returns the number of messages omitted since the last message, if a new message is due.
    fn take_omitted(&self, now: u64) -> Option<u64> {
        let next_at = self.next_at.load(Relaxed);
        let is_due = now >= next_at
            && self
                .next_at
                .compare_exchange(next_at, now + INTERVAL, Relaxed, Relaxed)
                .is_ok();
        if !is_due {
            self.omitted.fetch_add(1, Relaxed);
            return None;
        }
        Some(self.omitted.swap(0, Relaxed))
    }
}

/// Writes warnings for the operator, one per line.
pub(crate) fn warn(warnings: &[String]) {
    for warning in warnings {
        let line = format!("upshift serve: {warning}\n");
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequent_messages_are_written_once_a_second_and_counted() {
        let notices = Notices::new();
        assert_eq!(notices.take_omitted(1), Some(0));
        assert_eq!(notices.take_omitted(2), None);
        assert_eq!(notices.take_omitted(1000), None);
        assert_eq!(notices.take_omitted(1001), Some(2));
        assert_eq!(notices.take_omitted(5000), Some(0));
    }
}
