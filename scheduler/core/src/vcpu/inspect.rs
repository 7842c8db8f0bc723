//! Reads the counters of a vCPU. Every function only loads, so any thread may call it.

use super::Vcpu;
use crate::base::host::Host;
use crate::base::level::Level;
use crate::base::stats::LevelStats;
use crate::sync::Ordering::Relaxed;

impl<H: Host> Vcpu<H> {
    /// Returns the counters of a level.
    #[must_use]
    pub fn level_stats(&self, level: Level) -> LevelStats {
        self.counters.snapshot(level)
    }

    /// Returns the number of polls of a level that were begun or resumed; cheaper than
    /// [`Vcpu::level_stats`].
    #[must_use]
    pub fn level_polls(&self, level: Level) -> u64 {
        self.counters.polls(level)
    }

    /// Returns the number of coroutines that exited here, and how many of them panicked.
    #[must_use]
    pub fn exits(&self) -> (u64, u64) {
        (
            self.counters.exited.load(Relaxed),
            self.counters.panicked.load(Relaxed),
        )
    }

    /// Returns the number of polls suspended here.
    #[must_use]
    pub fn suspensions(&self) -> u64 {
        self.counters.suspensions()
    }

    /// Returns the number of coroutines taken from other vCPUs.
    #[must_use]
    pub fn stolen(&self) -> u64 {
        self.counters.stolen.load(Relaxed)
    }

    /// Returns the number of coroutines spawned by the thread that serves this vCPU; see
    /// [`Domain::spawned`](crate::Domain::spawned).
    #[must_use]
    pub fn spawned(&self) -> u64 {
        self.counters.spawned.load(Relaxed)
    }

    /// Returns the number of coroutines of a level queued here: ready or suspended. Coroutines in
    /// the inbox do not count. Costs one load, on any thread.
    #[must_use]
    pub fn ready_len(&self, level: Level) -> usize {
        self.lengths.len(level)
    }

    /// Returns true if all work of a level here is *expired* polls: suspended at the
    /// [tail](crate::QueueEnd::Tail) of the level, after they have used their quantum. Costs three
    /// loads, on any thread; concurrent changes may be seen or not.
    #[inline]
    #[must_use]
    pub fn only_expired(&self, level: Level) -> bool {
        self.lengths.all_expired(level) && self.mail.arriving.load(Relaxed) & level.bit() == 0
    }

    /// Returns the number of coroutines suspended here: interrupted in the middle of a poll, and
    /// not yet resumed. Costs one load, on any thread.
    #[must_use]
    pub fn suspended(&self) -> usize {
        self.lengths.suspended()
    }
}
