//! How a vCPU waits: it spins if that has been worthwhile, looks around, and parks in its ring.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Worker;
use crate::board::Post;
use crate::stand_in::Look;
use crate::time::clock;
use crate::user_code::foreign;

/// How often a runtime that is being dropped looks whether all coroutines have exited.
pub(crate) const ENDING_WAIT: Duration = Duration::from_millis(1);
/// A wait that a wake from another vCPU ended sooner than this makes the next
/// wait begin with spinning.
const SHORT_WAIT: Duration = Duration::from_micros(200);

/// Whether to spin before parking. A spin that brings nothing (the waker needs
/// this very CPU, say) makes the next ones rarer, down to one wait in 64.
#[derive(Default)]
pub(crate) struct Spin {
    /// The last wait was short, and another vCPU or thread ended it.
    worthwhile: bool,
    misses: u32,
    skip: u32,
}

impl Spin {
    fn is_due(&mut self) -> bool {
        if self.worthwhile && self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        self.worthwhile
    }

    fn hit(&mut self) {
        self.misses = 0;
    }

    fn miss(&mut self) {
        self.skip = 1 << self.misses;
        self.misses = (self.misses + 1).min(6);
    }
}

impl Worker {
    /// Waits for completions, timers or wakes, spinning first if that has been
    /// worthwhile.
    pub(crate) fn wait(&self, spin: &mut Spin) {
        let alone = self.post.as_ref().is_none_or(Post::is_alone);
        if alone && spin.is_due() {
            if self.spin() {
                spin.hit();
                return;
            }
            spin.miss();
        }
        self.neighbours.owner_is_back();
        if !self.executor.prepare_park() {
            return;
        }
        let began = clock::ticks();
        self.meter.park(began);
        self.recorder().parked(self.executor.index());
        self.meter.show(&self.ring);
        self.outbox.is_submitted();
        let found = loop {
            if self.look_around() {
                break true;
            }
            let limit = self.sleep();
            // Late is also a wait that a wake ended just before its limit: each thing a wake may stand for is looked at.
            let early = limit.is_none_or(|limit| clock::ticks() < limit);
            let told = !self.executor.is_parked()
                || self.executor.has_arrivals()
                || self.main_is_waited_for();
            if early || told || self.stop.load(Ordering::Relaxed) {
                break false;
            }
            self.executor.waited_for_nothing();
        };
        self.executor.unpark();
        self.executor.refresh_clock();
        self.meter.unpark(self.executor.clock());
        self.recorder().unparked(self.executor.index());
        self.tell_watchdog();
        let waited = self.executor.clock().wrapping_sub(began);
        let woken = self.executor.has_arrivals();
        self.reap();
        self.meter.show(&self.ring);
        self.expire();
        if !found && !self.executor.has_arrivals() {
            self.executor.waited_for_nothing();
        }
        spin.worthwhile =
            woken && waited < clock::to_ticks(SHORT_WAIT) && !self.shared.settings.spin.is_zero();
    }

    /// Has the thread come that polls what is pinned, and has been picked?
    fn main_is_waited_for(&self) -> bool {
        let preemptible = self.preemptible.get();
        preemptible.is_some_and(|preemptible| preemptible.main_waits() != 0)
    }

    /// Waits once: for completions, timers, wakes, or the next look around, whose tick it returns.
    fn sleep(&self) -> Option<u64> {
        let now = clock::now();
        let look = self.executor.sleep_limit();
        let limit = look.map(|ticks| clock::ticks().saturating_add(ticks));
        let deadline = [self.timers.next_deadline(), self.neighbours.next_deadline()]
            .into_iter()
            .flatten()
            .min()
            .map(|deadline| Duration::from_nanos(deadline.saturating_sub(now)));
        let look = look.map(clock::from_ticks);
        let ending = self.is_ending.get().then_some(ENDING_WAIT);
        if let Some(post) = &self.post {
            post.waits();
        }
        if let Err(error) = self
            .ring
            .wait(deadline.into_iter().chain(look).chain(ending).min())
        {
            self.shared.report(&error);
        }
        limit
    }

    /// Does for vCPUs in long polls what they cannot do. True: there is something to pick.
    pub(super) fn look_around(&self) -> bool {
        let domain = self.executor.domain();
        let mut look = Look::new(&self.neighbours, &self.shared.reaches, &self.ring);
        self.executor
            .look(|vcpu| look.stand_in_for(vcpu.index(), |all| foreign::run(domain, all)))
    }

    /// Spins for the spin time at most. True: something has come.
    fn spin(&self) -> bool {
        let limit = clock::to_ticks(self.shared.settings.spin);
        let began = clock::ticks();
        let found = loop {
            let has_come = || self.executor.has_arrivals() || self.ring.has_completions();
            if (0..16).any(|_| {
                core::hint::spin_loop();
                has_come()
            }) {
                break true;
            }
            if self.stop.load(Ordering::Relaxed) || clock::ticks().wrapping_sub(began) > limit {
                break false;
            }
        };
        self.meter.spun(clock::ticks().wrapping_sub(began));
        found
    }
}
