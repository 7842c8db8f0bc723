//! Counts the polls, run times and wait times of each level. A wait time is from when a coroutine
//! becomes ready until it is polled.
//!
//! The thread that serves the vCPU writes the counters with plain loads and stores; any thread
//! reads them at any time. Times are in the host's ticks.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::base::level::{LEVELS, Level};
use crate::sync::Ordering::Relaxed;
use crate::sync::{Statistic, zeros};

/// Binary logarithm of the number of buckets per power of two.
const SUB: u32 = 2;
/// Buckets of a histogram: four per power of two, up to 2³³ ticks.
pub const BUCKETS: usize = 128;

fn bucket(ticks: u64) -> usize {
    let octave = (ticks | (1 << SUB)).ilog2() - SUB;
    (((octave << SUB) as u64 + (ticks >> octave)) as usize).min(BUCKETS - 1)
}

fn lower_bound(bucket: usize) -> u64 {
    if bucket < 1 << SUB {
        return bucket as u64;
    }
    let octave = (bucket >> SUB) as u32 - 1;
    ((1 << SUB) + (bucket as u64 & ((1 << SUB) - 1))) << octave
}

struct LevelCounters {
    polls: Statistic,
    suspensions: Statistic,
    /// Ticks spent in polls.
    run: Statistic,
    /// Ticks during which the level starved; see [`LevelStats::starve_ticks`].
    starve: Statistic,
    wait: [Statistic; BUCKETS],
}

impl LevelCounters {
    fn new() -> LevelCounters {
        LevelCounters {
            polls: Statistic::new(0),
            suspensions: Statistic::new(0),
            run: Statistic::new(0),
            starve: Statistic::new(0),
            wait: zeros(),
        }
    }
}

pub(crate) struct Counters {
    levels: Box<[LevelCounters; LEVELS]>,
    pub(crate) spawned: Statistic,
    pub(crate) exited: Statistic,
    pub(crate) panicked: Statistic,
    pub(crate) stolen: Statistic,
}

/// Adds `n` to a counter. The caller holds the lock or serves the vCPU, so the counter has one
/// writer at a time and needs no atomic read-modify-write. Wraps, so that [`u64::MAX`] subtracts
/// one.
#[inline]
pub(crate) fn add(counter: &Statistic, n: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
}

impl Counters {
    pub(crate) fn new() -> Counters {
        // Built as a vector, because the array is too large for the stack of a kernel.
        let levels: Vec<_> = (0..LEVELS).map(|_| LevelCounters::new()).collect();
        let levels = levels.try_into();
        let levels = levels.unwrap_or_else(|_| unreachable!("the vector has `LEVELS` elements"));
        Counters {
            levels,
            spawned: Statistic::new(0),
            exited: Statistic::new(0),
            panicked: Statistic::new(0),
            stolen: Statistic::new(0),
        }
    }

    #[inline]
    pub(crate) fn record_start(&self, level: Level, wait_ticks: u64, starve_ticks: u64) {
        let counters = &self.levels[level.index()];
        add(&counters.polls, 1);
        add(&counters.starve, starve_ticks);
        add(&counters.wait[bucket(wait_ticks)], 1);
    }

    #[inline]
    pub(crate) fn record_run(&self, level: Level, ticks: u64) {
        add(&self.levels[level.index()].run, ticks);
    }

    pub(crate) fn record_suspension(&self, level: Level) {
        add(&self.levels[level.index()].suspensions, 1);
    }

    pub(crate) fn suspensions(&self) -> u64 {
        let count_of = |level: &LevelCounters| level.suspensions.load(Relaxed);
        self.levels.iter().map(count_of).sum()
    }

    pub(crate) fn record_spawn(&self) {
        add(&self.spawned, 1);
    }

    pub(crate) fn record_exit(&self, panicked: bool) {
        add(&self.exited, 1);
        add(&self.panicked, u64::from(panicked));
    }

    pub(crate) fn polls(&self, level: Level) -> u64 {
        self.levels[level.index()].polls.load(Relaxed)
    }

    pub(crate) fn snapshot(&self, level: Level) -> LevelStats {
        let counters = &self.levels[level.index()];
        LevelStats {
            polls: counters.polls.load(Relaxed),
            suspensions: counters.suspensions.load(Relaxed),
            run_ticks: counters.run.load(Relaxed),
            starve_ticks: counters.starve.load(Relaxed),
            wait: WaitHistogram {
                counts: core::array::from_fn(|i| counters.wait[i].load(Relaxed)),
            },
        }
    }
}

/// Counters of one level.
#[derive(Clone, Debug)]
pub struct LevelStats {
    /// Polls begun or resumed.
    pub polls: u64,
    /// Polls suspended.
    pub suspensions: u64,
    /// Ticks spent in polls.
    pub run_ticks: u64,
    /// Ticks during which the level had a ready coroutine and none of its coroutines was picked,
    /// counted at the next pick of a coroutine of the level.
    pub starve_ticks: u64,
    /// Time from when a coroutine became ready until it was polled.
    pub wait: WaitHistogram,
}

impl LevelStats {
    /// Adds the counters of the same level of another vCPU.
    pub fn merge(&mut self, other: &LevelStats) {
        self.polls += other.polls;
        self.suspensions += other.suspensions;
        self.run_ticks += other.run_ticks;
        self.starve_ticks += other.starve_ticks;
        for (mine, theirs) in self.wait.counts.iter_mut().zip(&other.wait.counts) {
            *mine += theirs;
        }
    }
}

/// A histogram of ticks with four buckets per power of two, so that a reading is at most a fifth
/// below the exact value.
#[derive(Clone, Debug)]
pub struct WaitHistogram {
    counts: [u64; BUCKETS],
}

impl WaitHistogram {
    /// Returns the number of waits recorded.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the `q`-quantile (0.0 to 1.0) of the waits in ticks, rounded down to its bucket; 0
    /// if the histogram is empty.
    #[must_use]
    pub fn quantile(&self, q: f64) -> u64 {
        let rank = (q.clamp(0.0, 1.0) * self.count() as f64) as u64;
        let mut cumulative = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            cumulative += count;
            if cumulative > 0 && cumulative >= rank {
                return lower_bound(bucket);
            }
        }
        0
    }

    /// Iterates over the buckets that are not empty: (smallest ticks of the bucket, count).
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.counts
            .iter()
            .enumerate()
            .filter(|(_, count)| **count != 0)
            .map(|(bucket, count)| (lower_bound(bucket), *count))
    }

    /// Iterates over the buckets that are not empty, with both bounds: (smallest ticks of the
    /// bucket, smallest ticks of the next one, count).
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64, u64)> + '_ {
        self.counts
            .iter()
            .enumerate()
            .filter(|(_, count)| **count != 0)
            .map(|(bucket, count)| (lower_bound(bucket), lower_bound(bucket + 1), *count))
    }
}

/// A [`WaitHistogram`] to which any thread may add, at the cost of one atomic addition.
///
/// ```
/// use upshift_core::TickHistogram;
///
/// let waits = TickHistogram::default();
/// waits.add(100);
/// waits.add(1_000);
/// let waits = waits.snapshot();
/// assert_eq!(waits.count(), 2);
/// assert!((80..=100).contains(&waits.quantile(0.5)));
/// ```
pub struct TickHistogram {
    counts: [Statistic; BUCKETS],
}

impl Default for TickHistogram {
    fn default() -> TickHistogram {
        TickHistogram { counts: zeros() }
    }
}

impl core::fmt::Debug for TickHistogram {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.snapshot().fmt(f)
    }
}

impl TickHistogram {
    /// Counts a duration, in ticks.
    pub fn add(&self, ticks: u64) {
        self.counts[bucket(ticks)].fetch_add(1, Relaxed);
    }

    /// Returns the counts so far.
    #[must_use]
    pub fn snapshot(&self) -> WaitHistogram {
        WaitHistogram {
            counts: core::array::from_fn(|bucket| self.counts[bucket].load(Relaxed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_contiguous_and_within_a_fifth() {
        let mut last = 0;
        for ticks in 0..if cfg!(miri) { 2_000 } else { 100_000u64 } {
            let b = bucket(ticks);
            assert!(b == last || b == last + 1);
            last = b;
            let low = lower_bound(b);
            assert!(
                low <= ticks && (ticks - low) * 5 <= ticks,
                "{ticks} ticks, lower bound {low}"
            );
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }
}
