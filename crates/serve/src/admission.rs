//! Admission: a gate per level, which refuses what would wait too long.
//!
//! A gate knows two things about its level: how many requests are under way, and how long
//! those that have not begun wait. The level's ready queue is first come, first served, so the
//! wait of the request that began last, or the time since one began while others wait,
//! whichever is longer, is what the next one has to expect. If that exceeds the bound, it is
//! refused. Gates share nothing: however many requests of a level wait, those of others are
//! admitted as before; and since strict priority makes the least urgent wait first, they are
//! refused first.
//!
//! Time in which the process has no CPU is not waiting: the clock of the gates ([`Gates::counted`]) leaves it out.
//!
//! Cost: four relaxed atomic operations per request, and two readings of the clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use upshift::{LEVELS, Level};

use crate::absence::{Absence, process_cpu_time};
use crate::clock;

/// The gate of one level. Times are nanoseconds of [`Gates::counted`].
#[derive(Debug, Default)]
struct Gate {
    /// Admitted and not over.
    in_flight: AtomicU32,
    /// Admitted and not begun.
    waiting: AtomicU32,
    /// When a request began last, or when one waited after none had.
    progress: AtomicU64,
    /// How long the request that began last had waited.
    last_wait: AtomicU64,
    refused: AtomicU64,
}

/// The gates of all levels.
#[derive(Debug)]
pub(crate) struct Gates {
    gates: Vec<Gate>,
    absence: Absence,
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Too many of its level are under way.
    Full,
    /// Those of its level wait too long.
    Slow,
}

impl Gates {
    pub(crate) fn new() -> Arc<Gates> {
        Arc::new(Gates {
            gates: (0..LEVELS).map(|_| Gate::default()).collect(),
            absence: Absence::new(),
        })
    }

    /// The time `now`, of [`clock`], without that in which requests waited and the process had no CPU.
    pub(crate) fn counted(&self, now: u64) -> u64 {
        let waits = || {
            self.gates
                .iter()
                .any(|gate| gate.waiting.load(Relaxed) != 0)
        };
        self.absence.counted(now, process_cpu_time, waits)
    }

    fn gate(&self, level: Level) -> &Gate {
        &self.gates[usize::from(level.get())]
    }

    /// Asks to begin a request of a level, now, in counted time.
    pub(crate) fn admit(
        self: &Arc<Gates>,
        level: Level,
        now: u64,
        max_wait: Duration,
        in_flight: u32,
    ) -> Result<Ticket, Refused> {
        let gate = self.gate(level);
        let reason = if gate.in_flight.load(Relaxed) >= in_flight {
            Some(Refused::Full)
        } else if u128::from(gate.expected(now)) > max_wait.as_nanos() {
            Some(Refused::Slow)
        } else {
            None
        };
        if let Some(reason) = reason {
            gate.refused.fetch_add(1, Relaxed);
            return Err(reason);
        }
        gate.in_flight.fetch_add(1, Relaxed);
        if gate.waiting.fetch_add(1, Relaxed) == 0 {
            gate.last_wait.store(0, Relaxed);
            gate.progress.store(now, Relaxed);
        }
        Ok(Ticket {
            gates: self.clone(),
            level,
            since: now,
            begun: false,
        })
    }

    /// How long the next request of a level has to expect to wait.
    pub(crate) fn expected(&self, level: Level) -> Duration {
        Duration::from_nanos(self.gate(level).expected(self.counted(clock::nanos())))
    }

    pub(crate) fn in_flight(&self, level: Level) -> u32 {
        self.gate(level).in_flight.load(Relaxed)
    }

    pub(crate) fn refused(&self, level: Level) -> u64 {
        self.gate(level).refused.load(Relaxed)
    }
}

impl Gate {
    fn expected(&self, now: u64) -> u64 {
        if self.waiting.load(Relaxed) == 0 {
            return 0;
        }
        let stalled = now.saturating_sub(self.progress.load(Relaxed));
        stalled.max(self.last_wait.load(Relaxed))
    }
}

/// A request's place, from admission to its end.
#[derive(Debug)]
pub(crate) struct Ticket {
    gates: Arc<Gates>,
    level: Level,
    since: u64,
    begun: bool,
}

impl Ticket {
    /// The request begins, at a time of [`clock`].
    pub(crate) fn begin(&mut self, now: u64) {
        let now = self.gates.counted(now);
        self.begin_at(now);
    }

    /// As [`begin`](Ticket::begin), in counted time.
    fn begin_at(&mut self, now: u64) {
        if !self.begun {
            self.begun = true;
            let gate = self.gates.gate(self.level);
            gate.waiting.fetch_sub(1, Relaxed);
            gate.last_wait
                .store(now.saturating_sub(self.since), Relaxed);
            gate.progress.store(now, Relaxed);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let gate = self.gates.gate(self.level);
        gate.in_flight.fetch_sub(1, Relaxed);
        if !self.begun {
            gate.waiting.fetch_sub(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const BOUND: Duration = Duration::from_millis(100);
    const LOW: Level = Level::at::<60>();
    const HIGH: Level = Level::at::<4>();

    #[test]
    fn a_level_that_makes_no_progress_is_closed_and_others_are_not() {
        let gates = Gates::new();
        let first = gates.admit(LOW, 0, BOUND, 1000).unwrap();
        let second = gates.admit(LOW, 99 * MS, BOUND, 1000).unwrap();
        assert_eq!(
            gates.admit(LOW, 101 * MS, BOUND, 1000).unwrap_err(),
            Refused::Slow
        );
        assert!(gates.admit(HIGH, 101 * MS, BOUND, 1000).is_ok());
        assert_eq!((gates.refused(LOW), gates.refused(HIGH)), (1, 0));
        drop((first, second));
        assert!(
            gates.admit(LOW, 102 * MS, BOUND, 1000).is_ok(),
            "none waits"
        );
    }

    #[test]
    fn what_the_last_one_waited_counts_while_others_wait() {
        let gates = Gates::new();
        let mut first = gates.admit(LOW, 0, BOUND, 1000).unwrap();
        let mut second = gates.admit(LOW, 100 * MS, BOUND, 1000).unwrap();
        first.begin_at(150 * MS);
        assert_eq!(
            gates.admit(LOW, 151 * MS, BOUND, 1000).unwrap_err(),
            Refused::Slow
        );
        second.begin_at(160 * MS);
        assert!(gates.admit(LOW, 161 * MS, BOUND, 1000).is_ok());
    }

    #[test]
    fn so_many_may_be_under_way() {
        let gates = Gates::new();
        let mut first = gates.admit(LOW, 0, BOUND, 1).unwrap();
        first.begin_at(0);
        assert_eq!(gates.admit(LOW, 1, BOUND, 1).unwrap_err(), Refused::Full);
        drop(first);
        assert!(gates.admit(LOW, 2, BOUND, 1).is_ok());
        assert_eq!(gates.in_flight(LOW), 0);
    }
}
