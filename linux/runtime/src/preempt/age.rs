//! How long a poll has run, by the CPU time of its thread: what other programs take of the CPU meanwhile is not the poll's.
//!
//! To read that clock is a system call. A poll that begins while polls are suspended makes it; then the threads of the vCPU take much of each other's time. One that begins
//! otherwise does not: the clock is known at the last look of the watcher, or when the thread began to serve, and all that the thread has lost since, beside its sleeps between
//! polls, is taken for lost in this poll. So **no poll is thought to have run for longer than its thread**, and from its first look on what it has run is known. A long poll beside a
//! busy program may be seen one look later therefore; a short one is not stopped for what others have done.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::time::clock;

/// The clocks of a thread at a moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clocks {
    /// Ticks.
    pub(super) now: u64,
    /// Its CPU time, ticks.
    pub(super) used: u64,
    /// For how long its vCPU has slept in all, ticks.
    pub(super) parked: u64,
}

impl Clocks {
    /// With its CPU time in ns.
    pub(super) fn new(now: u64, used: u64, parked: u64) -> Clocks {
        Clocks {
            now,
            used: clock::to_ticks(Duration::from_nanos(used)),
            parked,
        }
    }
}

/// What is known of a thread since its clocks were read last. Written by the thread and by its vCPU's watcher; one that meets the other may take what is
/// known of one moment for that of the other, for one look.
#[derive(Debug, Default)]
pub(super) struct Age {
    now: AtomicU64,
    used: AtomicU64,
    parked: AtomicU64,
    /// The poll that was under way, by the tick at which it began; 0: none.
    began: AtomicU64,
    /// What it had run.
    ran: AtomicU64,
}

impl Age {
    /// At this moment the poll that began at this tick, or none, 0, has run for so long, ticks.
    pub(super) fn is(&self, clocks: Clocks, began: u64, ran: u64) {
        self.now.store(clocks.now, Relaxed);
        self.used.store(clocks.used, Relaxed);
        self.parked.store(clocks.parked, Relaxed);
        self.ran.store(ran, Relaxed);
        self.began.store(began, Relaxed);
    }

    /// Returns how long the poll that began at this tick has run, if it had run for `before` when it
    /// was resumed, or began, at the tick `since`; and how much it has lost since the clocks were
    /// read last, or since then.
    pub(super) fn of(&self, clocks: Clocks, began: u64, before: u64, since: u64) -> (u64, u64) {
        let most = before + clocks.now.saturating_sub(since);
        let used = clocks.used.saturating_sub(self.used.load(Relaxed));
        let read = self.now.load(Relaxed);
        if self.began.load(Relaxed) == began {
            let ran = (self.ran.load(Relaxed) + used).clamp(before, most);
            let passed = clocks.now.saturating_sub(read.max(since));
            return (ran, passed.saturating_sub(used));
        }
        let passed = clocks.now.saturating_sub(read);
        let slept = clocks.parked.saturating_sub(self.parked.load(Relaxed));
        let lost = passed.saturating_sub(slept).saturating_sub(used);
        (most.saturating_sub(lost).max(before), lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(now: u64, used: u64, parked: u64) -> Clocks {
        Clocks { now, used, parked }
    }

    #[test]
    fn a_poll_that_is_not_disturbed_has_run_since_it_began() {
        let age = Age::default();
        age.is(at(1_000, 300, 50), 0, 0);
        // 200 of sleep, and 800 of polls and of what is between them.
        assert_eq!(age.of(at(2_000, 1_100, 250), 1_900, 0, 1_900).0, 100);
    }

    #[test]
    fn what_the_thread_has_lost_is_not_the_polls() {
        let age = Age::default();
        age.is(at(1_000, 300, 50), 0, 0);
        assert_eq!(age.of(at(9_000, 330, 50), 1_020, 0, 1_020).0, 10);
        // It may have been lost before; then it has run for longer.
        assert_eq!(age.of(at(9_000, 330, 50), 8_900, 0, 8_900).0, 0);
    }

    #[test]
    fn since_a_look_its_time_is_known() {
        let age = Age::default();
        age.is(at(1_000, 300, 50), 900, 80);
        assert_eq!(age.of(at(9_000, 500, 50), 900, 0, 900).0, 280);
        // Another one.
        assert_eq!(age.of(at(1_300, 600, 50), 1_250, 0, 1_250).0, 50);
    }

    #[test]
    fn one_that_goes_on_keeps_what_it_has_run() {
        let age = Age::default();
        age.is(at(5_000, 300, 50), 900, 80);
        assert_eq!(age.of(at(5_500, 420, 50), 900, 80, 5_000).0, 200);
        // Of nothing known: at least what it had run.
        let none = Age::default();
        assert_eq!(none.of(at(5_500, 0, 0), 900, 80, 5_000).0, 80);
    }
}
