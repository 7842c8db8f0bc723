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
/// Time for which a level is not reported again.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// The state of a level at a look.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LevelState {
    /// Number of ready coroutines.
    pub(super) ready: usize,
    /// Number of polls so far.
    pub(super) polls: u64,
}

/// A wait of a level, from the first look that found it ready.
#[derive(Clone, Copy)]
struct Wait {
    /// Number of polls of the level at the first look.
    polls: u64,
    since: Instant,
    looks: u32,
    /// Number of polls of more urgent levels at the first look.
    more_urgent_polls: u64,
}

/// The waits of the levels of a vCPU.
pub(super) struct StarvedLevels {
    vcpu: usize,
    waits: [Option<Wait>; LEVELS],
    reported_at: [Option<Instant>; LEVELS],
}

/// A level that is starved.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Starvation {
    vcpu: usize,
    level: Level,
    ready: usize,
    time: Duration,
    /// Number of polls that more urgent levels had meanwhile.
    more_urgent_polls: u64,
}

impl fmt::Display for Starvation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "level {} has {} ready on vCPU {} and was not polled for {:.1?}, while more urgent \
             levels had {} polls",
            self.level, self.ready, self.vcpu, self.time, self.more_urgent_polls
        )
    }
}

impl StarvedLevels {
    pub(super) fn new(vcpu: usize) -> StarvedLevels {
        StarvedLevels {
            vcpu,
            waits: [None; LEVELS],
            reported_at: [None; LEVELS],
        }
    }

    /// Records the states of all levels at a look. Returns the most urgent level that is starved
    /// and was not reported recently.
    pub(super) fn look(
        &mut self,
        now: Instant,
        state_of: impl Fn(Level) -> LevelState,
    ) -> Option<Starvation> {
        let mut starvation = None;
        let mut more_urgent_polls = 0;
        for (index, wait) in self.waits.iter_mut().enumerate() {
            let Ok(level) = Level::new(index as u8) else {
                continue;
            };
            let state = state_of(level);
            let new_wait = Wait {
                polls: state.polls,
                since: now,
                looks: 0,
                more_urgent_polls,
            };
            let polls_now = more_urgent_polls;
            more_urgent_polls += state.polls;
            if state.ready == 0 {
                *wait = None;
                continue;
            }
            let wait = wait.get_or_insert(new_wait);
            if wait.polls != state.polls {
                *wait = new_wait;
                continue;
            }
            wait.looks += 1;
            let time = now.saturating_duration_since(wait.since);
            let polls_meanwhile = polls_now.saturating_sub(wait.more_urgent_polls);
            // If more urgent levels had no polls either, the cause is a long poll, or a vCPU that
            // does not run.
            let is_starved = time >= LIMIT && wait.looks >= MIN_LOOKS && polls_meanwhile > 1;
            let was_reported = self.reported_at[index]
                .is_some_and(|at| now.saturating_duration_since(at) < REPORT_INTERVAL);
            if is_starved && !was_reported && starvation.is_none() {
                self.reported_at[index] = Some(now);
                starvation = Some(Starvation {
                    vcpu: self.vcpu,
                    level,
                    ready: state.ready,
                    time,
                    more_urgent_polls: polls_meanwhile,
                });
            }
        }
        starvation
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks `count` times, once in each `period`, and returns the reports. Level 3 has ten polls
    /// between looks. Level 40 has ready coroutines, and `polls_of_40` polls between looks.
    fn looks(
        starved: &mut StarvedLevels,
        count: u32,
        period: Duration,
        polls_of_40: u64,
    ) -> Vec<String> {
        let begin = Instant::now();
        let state_of = |n: u32, level: Level| match level.get() {
            3 => LevelState {
                ready: 1,
                polls: 10 * u64::from(n),
            },
            40 => LevelState {
                ready: 2,
                polls: polls_of_40 * u64::from(n),
            },
            _ => LevelState::default(),
        };
        (0..count)
            .filter_map(|n| starved.look(begin + period * n, |level| state_of(n, level)))
            .map(|starvation| starvation.to_string())
            .collect()
    }

    #[test]
    fn a_level_that_is_not_polled_is_reported_once() {
        let mut starved = StarvedLevels::new(1);
        // The limit of one second has 20 looks, between which level 3 has 10 polls each.
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
        let mut starved = StarvedLevels::new(0);
        assert!(looks(&mut starved, 100, Duration::from_millis(50), 1).is_empty());
    }

    #[test]
    fn a_process_that_was_stopped_has_no_starved_level() {
        let mut starved = StarvedLevels::new(0);
        assert!(looks(&mut starved, 3, Duration::from_secs(100), 0).is_empty());
    }
}
