//! Settings of the pages that the keys change.

use std::time::Duration;

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

    /// Returns the column of the sort order.
    pub(super) fn word(self) -> &'static str {
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
