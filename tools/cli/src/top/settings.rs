//! What the keys change of the pages.

use std::time::Duration;

/// What levels are sorted by.
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

    /// Its column.
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
    /// The longest polls.
    Polls,
    /// Work by name.
    Routes,
}

/// What all pages share.
pub(super) struct Settings {
    pub(super) interval: Duration,
    pub(super) paused: bool,
    pub(super) help: bool,
    pub(super) sort: Sort,
    pub(super) bottom: Bottom,
    /// Lines of the last table that are scrolled over.
    pub(super) scroll: usize,
}
