//! What a vCPU counts: loads only, from any thread.

use super::Vcpu;
use crate::base::host::Host;
use crate::base::level::Level;
use crate::base::stats::LevelStats;
use crate::sync::Ordering::Relaxed;

impl<H: Host> Vcpu<H> {
    /// The counters of a level.
    #[must_use]
    pub fn level_stats(&self, level: Level) -> LevelStats {
        self.counters.snapshot(level)
    }

    /// How many polls of a level were begun or resumed: the cheap part of
    /// [`Vcpu::level_stats`].
    #[must_use]
    pub fn level_polls(&self, level: Level) -> u64 {
        self.counters.polls(level)
    }

    /// How many coroutines exited here, and how many of them panicked.
    #[must_use]
    pub fn exits(&self) -> (u64, u64) {
        (
            self.counters.exited.load(Relaxed),
            self.counters.panicked.load(Relaxed),
        )
    }

    /// How many polls were suspended here.
    #[must_use]
    pub fn suspensions(&self) -> u64 {
        self.counters.suspensions()
    }

    /// How many coroutines were taken over from other vCPUs.
    #[must_use]
    pub fn stolen(&self) -> u64 {
        self.counters.stolen.load(Relaxed)
    }

    /// How many coroutines were spawned by the thread that serves this vCPU; see
    /// [`Domain::spawned`](crate::Domain::spawned).
    #[must_use]
    pub fn spawned(&self) -> u64 {
        self.counters.spawned.load(Relaxed)
    }

    /// How many coroutines of a level are queued here: ready or suspended. One
    /// load, from any thread; those that are still in the inbox do not count.
    #[must_use]
    pub fn ready_len(&self, level: Level) -> usize {
        self.lengths.of(level)
    }

    /// Is a level ready here only with polls that were suspended at its [tail](crate::Place::Tail), and have had their turn? Three loads, from any
    /// thread; what changes meanwhile may show or not.
    #[inline]
    #[must_use]
    pub fn only_lingers(&self, level: Level) -> bool {
        self.lengths.all_linger(level) && self.mail.arriving.load(Relaxed) & level.bit() == 0
    }

    /// How many coroutines are suspended here: interrupted in the middle of a
    /// poll, and not yet resumed. One load, from any thread.
    #[must_use]
    pub fn suspended(&self) -> usize {
        self.lengths.suspended()
    }
}
