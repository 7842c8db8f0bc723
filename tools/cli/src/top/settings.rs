//! Settings of the pages that the keys change.

use std::time::Duration;

/// Order of the levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    Level,
    Cpu,
    Polls,
    Wait,
}

impl Sort {
    pub(super) fn next(self) -> Sort {
        match self {
            Sort::Level => Sort::Cpu,
            Sort::Cpu => Sort::Polls,
            Sort::Polls => Sort::Wait,
            Sort::Wait => Sort::Level,
        }
    }

    /// Returns the name of the column by which the levels are sorted.
    pub(super) fn column(self) -> &'static str {
        match self {
            Sort::Level => "level",
            Sort::Cpu => "CPU",
            Sort::Polls => "polls/s",
            Sort::Wait => "wait p99",
        }
    }
}

/// The table at the bottom of a process's page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bottom {
    Polls,
    Routes,
}

/// State shared by all pages.
pub(super) struct Settings {
    pub(super) interval: Duration,
    pub(super) paused: bool,
    pub(super) help: bool,
    pub(super) sort: Sort,
    pub(super) bottom: Bottom,
    /// Number of lines by which the last table is scrolled.
    pub(super) scroll: usize,
}
