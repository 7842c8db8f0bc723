//! Parses the command line of the measurements on two workers, `conserve` and `multi`, which are
//! subcommands of the microbenchmarks.

use crate::words;

/// A measurement on two workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TwoWorkers {
    /// See [`conserve`](crate::conserve).
    Conserve,
    /// See [`multi`](crate::multi).
    Multi,
}

/// Returns the measurement that the command line selects, `conserve|multi [--variant V]`, with the
/// variant (empty without the option). `None` if the command line selects neither.
pub fn parse_two_workers() -> Option<(TwoWorkers, String)> {
    let parts = [TwoWorkers::Conserve, TwoWorkers::Multi];
    let names = ["conserve", "multi"];
    let matches = words::command(&names, &[]).try_get_matches().ok()?;
    let part = parts[words::word(&matches, &names)];
    Some((part, words::variant(&matches)))
}
