//! [`Report`] and [`Trace`]: what an engine did.
//!
//! Figures are kept in rings of fixed size, so that a long run uses no more memory than a short one.

use crate::policy::{Nanos, TaskId};

/// Samples that are kept of each figure.
const KEPT: usize = 4096;

/// What happened so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// The policy's name.
    pub policy: &'static str,
    /// When the engine began, ns of CLOCK_MONOTONIC.
    pub began: Nanos,
    /// Since then, ns.
    pub elapsed: Nanos,
    /// Times the policy was asked.
    pub turns: u64,
    /// Times another task came to the front of a CPU.
    pub switches: u64,
    /// Times the scheduler went to sleep: each is a timer and two switches of the kernel.
    pub waits: u64,
    /// System calls that changed the standing of a thread.
    pub calls: u64,
    /// Of a turn with a switch: from the moment the scheduler runs until the priorities are changed.
    pub cost: Quantiles,
    /// How late turns ended.
    pub late: Quantiles,
    /// CPU time of the scheduler and its [`Watch`](crate::Watch) since the engine began, ns.
    pub own_cpu_time: Nanos,
    /// How long the CPUs were open to ordinary threads, ns of each.
    pub opened: Nanos,
    /// Switches that the trace had no room for.
    pub untraced: u64,
    /// CPUs that could not be used any more: their tasks were moved to the others.
    pub lost: Vec<usize>,
    /// The tasks, also those that have ended.
    pub tasks: Vec<TaskReport>,
}

/// One task's part.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TaskReport {
    /// What people call it.
    pub label: String,
    /// CPU time since it was added, ns.
    pub cpu_time: Nanos,
    /// Its part of the CPU time of all tasks, 0 to 1.
    pub share: f64,
    /// Times it came to the front.
    pub turns: u64,
    /// Its threads now; 0: it has ended, or was left out.
    pub threads: usize,
    /// Whether it was never scheduled ([`Engine::add_left_out`](crate::Engine::add_left_out)).
    pub left_out: bool,
    /// Threads and children of it that could not be had: other users', or more than [`upshift_elevate::MAX_CAPACITY`].
    pub refused: u64,
}

/// Median, 99 of 100, and the longest, ns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Quantiles {
    /// Half took no longer.
    pub p50: Nanos,
    /// 99 of 100 took no longer.
    pub p99: Nanos,
    /// The longest ever.
    pub max: Nanos,
}

/// The last samples of one figure.
#[derive(Debug, Clone, Default)]
pub(crate) struct Samples {
    kept: Vec<u32>,
    next: usize,
    max: Nanos,
}

impl Samples {
    pub(crate) fn add(&mut self, sample: Nanos) {
        let short = u32::try_from(sample).unwrap_or(u32::MAX);
        self.max = self.max.max(sample);
        if self.kept.len() < KEPT {
            self.kept.push(short);
        } else {
            self.kept[self.next] = short;
            self.next = (self.next + 1) % KEPT;
        }
    }

    pub(crate) fn quantiles(&self) -> Quantiles {
        let mut sorted = self.kept.clone();
        sorted.sort_unstable();
        let at = |percent: usize| {
            let index = sorted.len() * percent / 100;
            sorted.get(index).copied().map_or(0, Nanos::from)
        };
        Quantiles {
            p50: at(50),
            p99: at(99),
            max: self.max,
        }
    }
}

/// What happened at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// When, ns since the engine began.
    pub at: Nanos,
    /// What.
    pub what: What,
}

/// Kinds of [`Event`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// A task came to the front of a CPU; `None`: all are equal there now.
    Front {
        /// The CPU.
        cpu: usize,
        /// The task.
        task: Option<TaskId>,
    },
    /// The CPUs are open to ordinary threads.
    Opened,
    /// The CPUs are the tasks' again.
    Closed,
    /// A task has ended.
    Ended(TaskId),
}

/// Events in order, up to a number that was chosen before.
#[derive(Debug, Clone, Default)]
pub struct Trace {
    events: Vec<Event>,
    room: usize,
    lost: u64,
}

impl Trace {
    /// Room for so many events.
    pub(crate) fn new(room: usize) -> Trace {
        Trace {
            events: Vec::with_capacity(room),
            room,
            lost: 0,
        }
    }

    pub(crate) fn add(&mut self, at: Nanos, what: What) {
        if self.events.len() < self.room {
            self.events.push(Event { at, what });
        } else if self.room > 0 {
            self.lost += 1;
        }
    }

    /// The events.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// How many more there were.
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_keep_the_last_and_the_longest() {
        let mut samples = Samples::default();
        assert_eq!(samples.quantiles(), Quantiles::default());
        samples.add(1_000_000);
        for _ in 0..2 * KEPT {
            samples.add(7);
        }
        let found = samples.quantiles();
        assert_eq!((found.p50, found.p99, found.max), (7, 7, 1_000_000));
        assert_eq!(samples.kept.len(), KEPT);
    }

    #[test]
    fn a_full_trace_counts_what_it_loses() {
        let mut trace = Trace::new(1);
        trace.add(1, What::Opened);
        trace.add(2, What::Closed);
        assert_eq!((trace.events().len(), trace.lost()), (1, 1));
    }
}
