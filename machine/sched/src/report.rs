//! The figures of an engine ([`Report`]), and its events in order ([`Trace`]).
//!
//! Samples are stored in rings of fixed size, so a long run uses no more memory than a short one.

use crate::policy::{Nanos, TaskId};

/// Number of recent samples that are kept.
const SAMPLES: usize = 4096;

/// Figures of a run until now.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// Name of the policy.
    pub policy: &'static str,
    /// Start of the engine, ns of CLOCK_MONOTONIC.
    pub began: Nanos,
    /// Time since the start, ns.
    pub elapsed: Nanos,
    /// Number of calls of [`Policy::pick`](crate::Policy::pick).
    pub turns: u64,
    /// Number of times that another task came to the front of a CPU.
    pub switches: u64,
    /// Number of times that the scheduler slept. Each sleep takes a timer and two context switches.
    pub waits: u64,
    /// Number of system calls that changed the class or the priority of a thread.
    pub calls: u64,
    /// Time from the wake-up of the scheduler until the priorities are changed, in turns with a
    /// switch.
    pub cost: Quantiles,
    /// Time by which turns ended too late.
    pub late: Quantiles,
    /// CPU time of the scheduler and its [`ProcessMonitor`](crate::ProcessMonitor) since the start,
    /// ns.
    pub own_cpu_time: Nanos,
    /// Time for which the CPUs were open to ordinary threads, ns for each CPU.
    pub opened: Nanos,
    /// Number of events for which the trace had no space.
    pub untraced: u64,
    /// CPUs that became unavailable; their tasks were moved to the other CPUs.
    pub lost: Vec<usize>,
    /// The tasks, including those that have ended.
    pub tasks: Vec<TaskReport>,
}

/// Figures of one task.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TaskReport {
    /// Name that users see.
    pub label: String,
    /// CPU time since the start of the engine, ns.
    pub cpu_time: Nanos,
    /// Part of the CPU time of all tasks, 0 to 1.
    pub share: f64,
    /// Number of times that the task came to the front.
    pub turns: u64,
    /// Number of threads; 0 if the task has ended, or was left out.
    pub threads: usize,
    /// Set if the task was never scheduled ([`Engine::add_left_out`](crate::Engine::add_left_out)).
    pub left_out: bool,
    /// Number of threads and children that could not be elevated, because they belong to other
    /// users, or because there are more than [`upshift_elevate::MAX_CAPACITY`].
    pub refused: u64,
}

/// Median, 99th percentile and maximum, ns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Quantiles {
    /// Median of the recent samples.
    pub p50: Nanos,
    /// 99th percentile of the recent samples.
    pub p99: Nanos,
    /// Maximum of all samples.
    pub max: Nanos,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Samples {
    recent: Vec<u32>,
    next: usize,
    max: Nanos,
}

impl Samples {
    pub(crate) fn add(&mut self, sample: Nanos) {
        let short = u32::try_from(sample).unwrap_or(u32::MAX);
        self.max = self.max.max(sample);
        if self.recent.len() < SAMPLES {
            self.recent.push(short);
        } else {
            self.recent[self.next] = short;
            self.next = (self.next + 1) % SAMPLES;
        }
    }

    pub(crate) fn quantiles(&self) -> Quantiles {
        let mut sorted = self.recent.clone();
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

/// An event of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Time since the start, ns.
    pub at: Nanos,
    /// Kind of the event.
    pub kind: EventKind,
}

/// Kinds of [`Event`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// A task came to the front of a CPU; `None` if all tasks of the CPU are equal now.
    Front {
        /// The CPU.
        cpu: usize,
        /// The task.
        task: Option<TaskId>,
    },
    /// The CPUs became open to ordinary threads.
    Opened,
    /// The open piece has ended.
    Closed,
    /// A task has ended.
    Ended(TaskId),
}

/// Events in order, up to a fixed number.
#[derive(Debug, Clone, Default)]
pub struct Trace {
    events: Vec<Event>,
    capacity: usize,
    lost: u64,
}

impl Trace {
    pub(crate) fn new(capacity: usize) -> Trace {
        Trace {
            events: Vec::with_capacity(capacity),
            capacity,
            lost: 0,
        }
    }

    pub(crate) fn add(&mut self, at: Nanos, kind: EventKind) {
        if self.events.len() < self.capacity {
            self.events.push(Event { at, kind });
        } else if self.capacity > 0 {
            self.lost += 1;
        }
    }

    /// Returns the events.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Returns the number of events for which there was no space.
    pub fn lost_events(&self) -> u64 {
        self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_keep_the_recent_ones_and_the_maximum() {
        let mut samples = Samples::default();
        assert_eq!(samples.quantiles(), Quantiles::default());
        samples.add(1_000_000);
        for _ in 0..2 * SAMPLES {
            samples.add(7);
        }
        let found = samples.quantiles();
        assert_eq!((found.p50, found.p99, found.max), (7, 7, 1_000_000));
        assert_eq!(samples.recent.len(), SAMPLES);
    }

    #[test]
    fn a_full_trace_counts_lost_events() {
        let mut trace = Trace::new(1);
        trace.add(1, EventKind::Opened);
        trace.add(2, EventKind::Closed);
        assert_eq!((trace.events().len(), trace.lost_events()), (1, 1));
    }
}
