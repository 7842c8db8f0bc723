//! The waits of a vCPU for work. The vCPU first spins if that has been worthwhile. Then it checks
//! whether other vCPUs are in long polls, in order to process their completions and timers for them
//! (to *stand in*), and parks in its ring.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Worker;
use crate::board::Post;
use crate::stand_in::Look;
use crate::time::clock;
use crate::user_code::deferred;

/// Interval at which a runtime that is being dropped checks whether all coroutines have exited.
pub(crate) const ENDING_WAIT: Duration = Duration::from_millis(1);
/// If a wake from another vCPU ends a wait sooner than this, the next wait begins with a spin.
const SHORT_WAIT: Duration = Duration::from_micros(200);

/// Decides whether to spin before parking. A spin that finds nothing, for example because the waker
/// needs this very CPU, makes further spins rarer, down to about one wait in 64.
#[derive(Default)]
pub(crate) struct Spin {
    /// Set if the last wait was short, and another vCPU or thread ended it.
    is_worthwhile: bool,
    /// Number of fruitless spins in a row, at most 6.
    misses: u32,
    /// Number of further waits that begin without a spin.
    skip: u32,
}

impl Spin {
    /// Returns whether the wait that begins now should begin with a spin.
    fn is_due(&mut self) -> bool {
        if self.is_worthwhile && self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        self.is_worthwhile
    }

    /// Records a spin that found work.
    fn hit(&mut self) {
        self.misses = 0;
    }

    /// Records a spin that found nothing.
    fn miss(&mut self) {
        self.skip = 1 << self.misses;
        self.misses = (self.misses + 1).min(6);
    }
}

impl Worker {
    /// Waits until the vCPU has work or is stopped.
    pub(crate) fn wait(&self, spin: &mut Spin) {
        let is_alone = self.post.as_ref().is_none_or(Post::is_alone);
        if is_alone && spin.is_due() {
            if self.spin() {
                spin.hit();
                return;
            }
            spin.miss();
        }
        self.neighbours.end_stand_in();
        if !self.executor.prepare_park() {
            return;
        }
        let began = clock::ticks();
        self.meter.park(began);
        self.recorder().parked(self.executor.index());
        self.meter.publish(&self.ring);
        self.outbox.clear();
        let has_work = loop {
            if self.look_around() {
                break true;
            }
            let limit = self.sleep();
            // Each reason for a wake is checked even if the limit has passed, because a wake may
            // have ended the wait just before.
            let is_early = limit.is_none_or(|limit| clock::ticks() < limit);
            let is_woken = !self.executor.is_parked()
                || self.executor.has_arrivals()
                || self.main_is_waited_for();
            if is_early || is_woken || self.stop.load(Ordering::Relaxed) {
                break false;
            }
            self.executor.charge_fruitless_wait();
        };
        self.executor.unpark();
        self.executor.refresh_clock();
        self.meter.unpark(self.executor.clock());
        self.recorder().unparked(self.executor.index());
        self.notify_watchdog();
        let wait_ticks = self.executor.clock().wrapping_sub(began);
        let was_woken = self.executor.has_arrivals();
        self.reap();
        self.meter.publish(&self.ring);
        self.expire();
        if !has_work && !self.executor.has_arrivals() {
            self.executor.charge_fruitless_wait();
        }
        spin.is_worthwhile = was_woken
            && wait_ticks < clock::to_ticks(SHORT_WAIT)
            && !self.shared.settings.spin.is_zero();
    }

    fn main_is_waited_for(&self) -> bool {
        let preemptible = self.preemptible.get();
        preemptible.is_some_and(|preemptible| preemptible.waiting_pinned_levels() != 0)
    }

    /// Waits once for completions, timers, wakes or the next look at other vCPUs. Returns the tick
    /// at which that look is due.
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
            post.publish_wait();
        }
        if let Err(error) = self
            .ring
            .wait(deadline.into_iter().chain(look).chain(ending).min())
        {
            self.shared.report(&error);
        }
        limit
    }

    /// Stands in for vCPUs that are in long polls. Returns true if this vCPU now has a coroutine to
    /// poll.
    pub(super) fn look_around(&self) -> bool {
        let domain = self.executor.domain();
        let mut look = Look::new(&self.neighbours, &self.shared.access, &self.ring);
        self.executor
            .look(|vcpu| look.stand_in_for(vcpu.index(), |all| deferred::run(domain, all)))
    }

    /// Spins for a bounded time. Returns true if a wake or a completion has arrived.
    fn spin(&self) -> bool {
        let limit = clock::to_ticks(self.shared.settings.spin);
        let began = clock::ticks();
        let has_arrived = loop {
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
        self.meter.add_spin(clock::ticks().wrapping_sub(began));
        has_arrived
    }
}
