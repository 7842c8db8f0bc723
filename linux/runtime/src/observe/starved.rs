//! Finds levels of a vCPU that *starve*, that is, have ready coroutines none of which the vCPU
//! polls.
//!
//! This module reads no clock and makes no system calls, because the watchdog passes in what it
//! observes at each look. A level is starved when none of its coroutines was polled for [`LIMIT`],
//! although one was ready at each of [`MIN_LOOKS`] looks. The number of looks matters because a
//! process that was stopped meanwhile must not be mistaken for a busy vCPU. A level that waits for
//! one long poll is stalled, not starved. A look takes time in proportion to the number of levels.

use std::fmt;
use std::time::{Duration, Instant};

use upshift_core::{LEVELS, Level};

/// Time without a poll after which a level is starved. Strict priority makes less urgent levels
/// wait, so a shorter wait is normal.
const LIMIT: Duration = Duration::from_secs(1);
/// Number of looks in a row that must find the level waiting. A second has more looks than this.
const MIN_LOOKS: u32 = 5;
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    /// Ready coroutines.
    pub(super) ready: usize,
    /// Polls so far.
    pub(super) polls: u64,
}

#[derive(Clone, Copy)]
struct Wait {
    polls: u64,
    since: Instant,
    looks: u32,
    others: u64,
}

pub(super) struct Starved {
    vcpu: usize,
    waits: [Option<Wait>; LEVELS],
    reported: [Option<Instant>; LEVELS],
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Starvation {
    vcpu: usize,
    level: Level,
    ready: usize,
    time: Duration,
    /// Number of polls that more urgent levels had meanwhile.
    others: u64,
}

impl fmt::Display for Starvation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "level {} has {} ready on vCPU {} and was not polled for {:.1?}, while more urgent \
             levels had {} polls",
            self.level, self.ready, self.vcpu, self.time, self.others
        )
    }
}

impl Starved {
    pub(super) fn new(vcpu: usize) -> Starved {
        Starved {
            vcpu,
            waits: [None; LEVELS],
            reported: [None; LEVELS],
        }
    }

    /// Records the states of all levels at a look. Returns the most urgent level that is starved
    /// and was not reported recently.
    pub(super) fn look(&mut self, now: Instant, of: impl Fn(Level) -> Seen) -> Option<Starvation> {
        let mut starved = None;
        let mut more_urgent = 0;
        for (index, wait) in self.waits.iter_mut().enumerate() {
            let Ok(level) = Level::new(index as u8) else {
                continue;
            };
            let seen = of(level);
            let begins = Wait {
                polls: seen.polls,
                since: now,
                looks: 0,
                others: more_urgent,
            };
            let others_now = more_urgent;
            more_urgent += seen.polls;
            if seen.ready == 0 {
                *wait = None;
                continue;
            }
            let wait = wait.get_or_insert(begins);
            if wait.polls != seen.polls {
                *wait = begins;
                continue;
            }
            wait.looks += 1;
            let time = now.saturating_duration_since(wait.since);
            let others = others_now.saturating_sub(wait.others);
            // If other levels had no polls either, the cause is a long poll, or a vCPU that does
            // not run.
            let is_starved = time >= LIMIT && wait.looks >= MIN_LOOKS && others > 1;
            let recently = self.reported[index]
                .is_some_and(|at| now.saturating_duration_since(at) < REPORT_INTERVAL);
            if is_starved && !recently && starved.is_none() {
                self.reported[index] = Some(now);
                starved = Some(Starvation {
                    vcpu: self.vcpu,
                    level,
                    ready: seen.ready,
                    time,
                    others,
                });
            }
        }
        starved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks `count` times, once in each `period`, and returns the reports. Level 3 has ten polls
    /// between looks. Level 40 has ready coroutines, and `polls_of_40` polls between looks.
    fn looks(starved: &mut Starved, count: u32, period: Duration, polls_of_40: u64) -> Vec<String> {
        let begin = Instant::now();
        let of = |n: u32, level: Level| match level.get() {
            3 => Seen {
                ready: 1,
                polls: 10 * u64::from(n),
            },
            40 => Seen {
                ready: 2,
                polls: polls_of_40 * u64::from(n),
            },
            _ => Seen::default(),
        };
        (0..count)
            .filter_map(|n| starved.look(begin + period * n, |level| of(n, level)))
            .map(|starvation| starvation.to_string())
            .collect()
    }

    #[test]
    fn a_level_that_is_not_polled_is_reported_once() {
        let mut starved = Starved::new(1);
        let reports = looks(&mut starved, 100, Duration::from_millis(50), 0);
        assert_eq!(
            reports,
            [
                "level 40 has 2 ready on vCPU 1 and was not polled for 1.0s, while more urgent \
                 levels had 200 polls"
            ]
        );
    }

    #[test]
    fn a_level_that_is_polled_is_not_reported() {
        let mut starved = Starved::new(0);
        assert!(looks(&mut starved, 100, Duration::from_millis(50), 1).is_empty());
    }

    #[test]
    fn a_process_that_was_stopped_has_no_starved_level() {
        let mut starved = Starved::new(0);
        assert!(looks(&mut starved, 3, Duration::from_secs(100), 0).is_empty());
    }
}
