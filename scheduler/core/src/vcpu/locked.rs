//! Operations on a vCPU whose lock is held. They change the ready queues and the words that other
//! threads read, and account for the time of polls.
//!
//! Every operation is O(1) per coroutine. The host is called only for the clock and for notices of
//! arrivals, that is, of coroutines that have become ready.

use core::ptr::NonNull;

use super::search::{NO_SURPLUS, SURPLUS};
use super::{COARSE_POLLS, Guarded, PREEMPT_HOST, PREEMPT_WAKE, Vcpu};
use crate::base::events::WaitingWork;
use crate::base::host::Host;
use crate::base::kind::State;
use crate::base::level::Level;
use crate::base::lock::Guard;
use crate::coroutine::Slot;
use crate::sync::Ordering::{Relaxed, Release, SeqCst};
use crate::sync::fence;
use crate::tables::queue::ReadyQueues;

pub(crate) struct Locked<'a, H: Host> {
    pub(super) vcpu: &'a Vcpu<H>,
    #[expect(dead_code, reason = "held for its drop")]
    pub(super) guard: Guard<'a>,
}

impl<H: Host> Vcpu<H> {
    /// Charges the polls of these levels with equal shares of `elapsed`. Returns one share.
    #[inline(never)]
    fn charge_shares(&self, elapsed: u64, levels: &[u8]) -> u64 {
        let count = levels.len() as u64;
        // In most cases the batch is full, and the divisor is a constant.
        let share = if levels.len() == COARSE_POLLS as usize {
            elapsed / u64::from(COARSE_POLLS)
        } else {
            elapsed / count
        };
        let first = levels[0];
        if levels.iter().all(|&level| level == first) {
            self.counters
                .record_run(Level::from_stored(first), share * count);
        } else {
            for &level in levels {
                self.counters.record_run(Level::from_stored(level), share);
            }
        }
        share
    }
}

impl<'a, H: Host> Locked<'a, H> {
    pub(super) fn guarded(&mut self) -> &mut Guarded<H> {
        // SAFETY: the lock is held, and the borrow is bound to this guard.
        unsafe { &mut *self.vcpu.guarded.get() }
    }

    pub(crate) fn queues(&mut self) -> &mut ReadyQueues<H> {
        &mut self.guarded().queues
    }

    /// Publishes the bitmaps of the queues. Writes only words that have changed, because other
    /// vCPUs read them at each pick.
    pub(crate) fn publish(&mut self) {
        let vcpu = self.vcpu;
        let queues = self.queues();
        let (ready, movable) = (queues.ready(), queues.movable());
        if vcpu.published.ready.load(Relaxed) != ready {
            vcpu.published.ready.store(ready, Release);
        }
        if vcpu.published.movable.load(Relaxed) != movable {
            vcpu.published.movable.store(movable, Release);
            if movable == 0 && vcpu.published.surplus.load(Relaxed) != NO_SURPLUS {
                vcpu.published.surplus.store(NO_SURPLUS, Relaxed);
            }
        }
    }

    pub(super) fn now(&mut self) -> u64 {
        self.guarded().now
    }

    /// Reads the clock; while polls are short, only after every fourth poll.
    #[inline]
    pub(super) fn read_clock(&mut self) {
        let guarded = self.guarded();
        if !guarded.coarse || guarded.polls == 0 || guarded.polls >= COARSE_POLLS {
            self.read_clock_now();
        }
    }

    #[inline(always)]
    pub(super) fn read_clock_now(&mut self) {
        let vcpu = self.vcpu;
        let domain = vcpu.shared();
        let mut now = domain.host.now();
        let guarded = self.guarded();
        if now < guarded.now {
            now = domain.host.now_after(guarded.now);
        }
        let elapsed = now.saturating_sub(guarded.now);
        if guarded.polls != 0 {
            let mut share = elapsed;
            if guarded.polls == 1 {
                vcpu.counters
                    .record_run(Level::from_stored(guarded.batch[0]), share);
                if let Some(floor) = &mut guarded.floor {
                    floor.charge(share, now);
                }
            } else {
                share = vcpu.charge_shares(elapsed, &guarded.batch[..guarded.polls as usize]);
            }
            guarded.mean = (guarded.mean * 7 + share) / 8;
            guarded.coarse = share < domain.config.coarse_below;
        }
        guarded.polls = 0;
        let was_unserved = elapsed >= guarded.unserved_after;
        guarded.now = now.max(guarded.now);
        vcpu.clock.store(guarded.now, Relaxed);
        if was_unserved {
            // Either a vCPU that goes to sleep sees that this vCPU is served, or the next pick here
            // sees the sleeping vCPU.
            fence(SeqCst);
        }
    }

    #[inline]
    pub(super) fn drain_inbox(&mut self) {
        let vcpu = self.vcpu;
        if !vcpu.mail.inbox.is_empty() || vcpu.mail.arriving.load(Relaxed) != 0 {
            self.take_inbox();
        }
    }

    /// Takes the inbox even if it looks empty. Required after `ARRIVED` has been cleared, because a
    /// pusher that saw the flag set relies on this take.
    #[inline(never)]
    pub(super) fn take_inbox(&mut self) {
        let vcpu = self.vcpu;
        // Cleared before the take. A pusher sets its bit after its push, so a bit may outlive its
        // coroutine here, but no coroutine lacks its bit for long.
        vcpu.mail.arriving.store(0, SeqCst);
        for coroutine in vcpu.mail.inbox.take() {
            // SAFETY: an inbox holds owned coroutines.
            unsafe { self.enqueue_arrived(coroutine) };
        }
        self.publish();
    }

    /// Asks the poll under way to yield if more urgent work is ready. Called after another thread
    /// has drained the inbox, where [`Vcpu::need_preempt`] would have seen that work.
    pub(super) fn request_yield(&mut self) {
        let vcpu = self.vcpu;
        let ready = self.queues().ready();
        if ready != 0
            && ready.trailing_zeros() < u32::from(vcpu.published.running.load(Relaxed))
            && vcpu.is_polling()
        {
            vcpu.set_preempt_flag(PREEMPT_WAKE);
        }
    }

    /// Enqueues at the tail a coroutine whose block holds the tick at which it became ready.
    ///
    /// # Safety
    /// The caller owns the coroutine, which is in no queue.
    pub(super) unsafe fn enqueue_arrived(&mut self, coroutine: NonNull<Slot<H>>) {
        // SAFETY: the contract is the caller's.
        unsafe {
            let since = coroutine.as_ref().ready_at.load(Relaxed);
            self.push(coroutine, since);
        }
    }

    /// Enqueues at the tail a coroutine that becomes ready now. Returns true if the coroutine is
    /// more urgent than the running one.
    ///
    /// # Safety
    /// The caller owns the coroutine, which is in no queue.
    #[inline(always)]
    pub(crate) unsafe fn enqueue(&mut self, coroutine: NonNull<Slot<H>>) -> bool {
        let vcpu = self.vcpu;
        // SAFETY: the contract is the caller's.
        let level = unsafe { self.push_now(coroutine) };
        self.publish();
        let running = vcpu.published.running.load(Relaxed);
        let is_more_urgent = level.get() < running && vcpu.is_polling();
        if is_more_urgent {
            vcpu.set_preempt_flag(PREEMPT_WAKE);
        }
        if vcpu.mail.arrival_notice.load(Relaxed) && vcpu.is_polling() {
            let host = &vcpu.shared().host;
            host.notify_local_arrival(WaitingWork::most_urgent(running, level.bit()));
        }
        is_more_urgent
    }

    /// Enqueues at the tail a coroutine that becomes ready now. The caller publishes.
    ///
    /// # Safety
    /// Same as [`Locked::enqueue`].
    #[inline]
    pub(super) unsafe fn push_now(&mut self, coroutine: NonNull<Slot<H>>) -> Level {
        let now = self.guarded().now;
        // SAFETY: the contract is the caller's.
        unsafe { self.push(coroutine, now) }
    }

    /// Enqueues a coroutine that has yielded: before its equals if it keeps its place, else at the
    /// tail. The caller publishes.
    ///
    /// # Safety
    /// Same as [`Locked::enqueue`]; the coroutine was polled here last.
    #[inline(always)]
    pub(super) unsafe fn push_back(&mut self, coroutine: NonNull<Slot<H>>) {
        // SAFETY: the coroutine is owned, hence alive.
        if unsafe { coroutine.as_ref() }.keeps_place() {
            // SAFETY: the contract is the caller's.
            unsafe { self.push_in_place(coroutine) };
        } else {
            // SAFETY: the contract is the caller's.
            unsafe { self.push_now(coroutine) };
        }
    }

    /// Enqueues a coroutine that has yielded, on a thread that does not pick next.
    ///
    /// # Safety
    /// Same as [`Locked::enqueue`].
    pub(crate) unsafe fn enqueue_back(&mut self, coroutine: NonNull<Slot<H>>) {
        if self.vcpu.is_polling() {
            // SAFETY: the contract is the caller's.
            unsafe { self.enqueue(coroutine) };
        } else {
            // SAFETY: the contract is the caller's; no coroutine was picked here since the poll.
            unsafe { self.push_back(coroutine) };
            self.publish();
        }
    }

    /// Enqueues a coroutine that yields in place: before its equals, or at the tail if its level
    /// has changed.
    #[cold]
    unsafe fn push_in_place(&mut self, coroutine: NonNull<Slot<H>>) {
        let began = self.vcpu.quantum_began();
        let guarded = self.guarded();
        let now = guarded.now;
        // SAFETY: the coroutine is owned, hence alive.
        let block = unsafe { coroutine.as_ref() };
        let level = block.level();
        if level.get() != guarded.picked {
            // SAFETY: the contract is the caller's.
            unsafe { self.push_now(coroutine) };
            return;
        }
        guarded.used[level.index()] = now.saturating_sub(began);
        block.set_ready_in_place();
        // SAFETY: the contract is the caller's.
        unsafe { guarded.queues.push_in_place(coroutine, now) };
    }

    /// Enqueues at the tail. `since` is the tick at which the coroutine became ready.
    ///
    /// # Safety
    /// Same as [`Locked::enqueue`].
    #[inline]
    pub(super) unsafe fn push(&mut self, coroutine: NonNull<Slot<H>>, since: u64) -> Level {
        // SAFETY: the coroutine is owned, hence alive.
        let block = unsafe { coroutine.as_ref() };
        block.set_vcpu(self.vcpu);
        if !block.is_suspended() {
            block.set_state(State::Ready);
        }
        // SAFETY: the contract is the caller's.
        unsafe { self.queues().push(coroutine, since) }
    }

    /// If the remaining work is worth waking another vCPU, returns true and marks the work as
    /// surplus, which idle vCPUs may take.
    pub(super) fn offers_surplus(&mut self) -> bool {
        let has_surplus = self.has_surplus();
        if has_surplus && self.vcpu.published.surplus.load(Relaxed) != SURPLUS {
            self.vcpu.published.surplus.store(SURPLUS, Relaxed);
        }
        has_surplus
    }

    fn has_surplus(&mut self) -> bool {
        let threshold = self.vcpu.shared().config.notify_above;
        let guarded = self.guarded();
        let movable = guarded.queues.movable();
        if movable == 0 {
            return false;
        }
        let level = Level::from_stored(movable.trailing_zeros() as u8);
        let worth = (guarded.mean).saturating_mul(guarded.queues.movable_len(level) as u64);
        worth >= threshold
    }

    /// Takes the next coroutine out of the queues. The second value is `Some` if the coroutine is
    /// suspended, and then tells whether the level also has fresh coroutines.
    #[inline(always)]
    pub(super) fn next(&mut self) -> Option<(NonNull<Slot<H>>, Option<bool>)> {
        let vcpu = self.vcpu;
        let ready = self.queues().ready();
        if ready == 0 {
            return None;
        }
        let most_urgent = Level::from_stored(ready.trailing_zeros() as u8);
        let guarded = self.guarded();
        let oldest = guarded
            .strict_fifo
            .then(|| guarded.queues.pop_oldest(most_urgent));
        let (coroutine, level, resumed) = match oldest.flatten() {
            Some(oldest) => (oldest, most_urgent, None),
            None => self.choose(ready)?,
        };
        let guarded = self.guarded();
        // SAFETY: the coroutine is just out of the queue, so owned by us.
        let block = unsafe { coroutine.as_ref() };
        let now = guarded.now;
        let mut wait_ticks = now.saturating_sub(block.ready_at.load(Relaxed));
        // The level has starved since it was last served, or since its oldest coroutine became
        // ready if that was later.
        let last_served = core::mem::replace(&mut guarded.served[level.index()], now);
        let starve_ticks = wait_ticks.min(now.saturating_sub(last_served));
        let mut began = now;
        if block.keeps_place() {
            // The stamp is only a place in the queue. This coroutine was the last of its level to
            // be served, so it has waited since the level was last served.
            wait_ticks = starve_ticks;
            began = now.saturating_sub(guarded.used[level.index()]);
        }
        vcpu.quantum_began.store(began, Relaxed);
        vcpu.counters.record_start(level, wait_ticks, starve_ticks);
        guarded.batch[guarded.polls as usize % COARSE_POLLS as usize] = level.get();
        guarded.polls += 1;
        guarded.picked = level.get();
        self.publish();
        Some((coroutine, resumed))
    }

    /// The slow path of [`Locked::next`], taken if there is a floor or chaos, or if the most urgent
    /// level has a suspended coroutine.
    #[cold]
    fn choose(&mut self, ready: u64) -> Option<(NonNull<Slot<H>>, Level, Option<bool>)> {
        let config = &self.vcpu.shared().config;
        let (level, newest) = if self.guarded().strict_fifo {
            (ready.trailing_zeros() as u8, false)
        } else {
            self.choose_level(ready)
        };
        let level = Level::from_stored(level);
        let queues = self.queues();
        let coroutine = queues.pop(level, newest, config.suspended_delay)?;
        // SAFETY: the coroutine is just out of the queue, so owned by us.
        let suspended = unsafe { coroutine.as_ref() }.is_suspended();
        let resumed = suspended.then(|| queues.has_fresh(level));
        Some((coroutine, level, resumed))
    }

    /// Returns the level to pick and, with chaos, whether its newest coroutine goes first.
    #[cold]
    fn choose_level(&mut self, ready: u64) -> (u8, bool) {
        let vcpu = self.vcpu;
        let config = &vcpu.shared().config;
        let guarded = self.guarded();
        let now = guarded.now;
        let level = match &mut guarded.floor {
            Some(floor) => floor.next_level(ready, now),
            None => ready.trailing_zeros() as u8,
        };
        if config.chaos.is_none() {
            return (level, false);
        }
        guarded.random ^= guarded.random << 13;
        guarded.random ^= guarded.random >> 7;
        guarded.random ^= guarded.random << 17;
        // Only half of the polls are asked to yield, because a poll that is asked yields before it
        // completes the operation that it polls.
        if guarded.random >> 32 & 1 == 0 {
            vcpu.set_preempt_flag(PREEMPT_HOST);
        }
        (level, guarded.random & 1 == 0)
    }

    /// Moves a coroutine whose levels have changed to its new place. Returns false if it has moved
    /// to another vCPU. O(1), for any number of queued or arrived coroutines.
    ///
    /// # Safety
    /// The caller holds a reference to the coroutine.
    pub(crate) unsafe fn settle(&mut self, coroutine: NonNull<Slot<H>>) -> bool {
        let vcpu = self.vcpu;
        // SAFETY: the caller holds a reference, so the block is alive.
        let block = unsafe { coroutine.as_ref() };
        let new = block.update_level();
        // The coroutine may be on its way to another vCPU, which reads the level when the coroutine
        // arrives. Either that vCPU sees the new level, or this thread sees the coroutine's new
        // vCPU.
        fence(SeqCst);
        if !block.is_on(vcpu) {
            return false;
        }
        let queued = block.queued.load(Relaxed);
        if queued == new.get() {
            return true;
        }
        if queued != Slot::<H>::NOT_QUEUED {
            let guarded = self.guarded();
            if guarded.queues.ready() & new.bit() == 0 {
                guarded.served[new.get() as usize] = guarded.now;
            }
            // SAFETY: the coroutine is queued on this vCPU, whose lock is held.
            unsafe { guarded.queues.relink(coroutine) };
            self.publish();
            if new.get() < vcpu.published.running.load(Relaxed) && vcpu.is_polling() {
                vcpu.set_preempt_flag(PREEMPT_WAKE);
            }
        } else if vcpu.current.load(Relaxed) == coroutine.as_ptr() {
            let before = vcpu.published.running.load(Relaxed);
            if before == new.get() {
                // The usual case after the release of a mutex.
                return true;
            }
            vcpu.set_running(new.get());
            if self.queues().ready() & new.more_urgent_bits() != 0 {
                vcpu.set_preempt_flag(PREEMPT_WAKE);
            }
            if before < new.get() && vcpu.mail.arrival_notice.load(Relaxed) {
                vcpu.notify_arrival();
            }
            return true;
        } else if block.word.is_owned() {
            // The coroutine is in the inbox, or on its way there, and stays there, because the
            // thread that drains the inbox reads the level under this lock. The new level shows in
            // the bitmap from now on.
            vcpu.announce_arrival(new.bit());
        } else {
            return true;
        }
        if new.get() <= vcpu.published.running.load(Relaxed)
            && vcpu.mail.arrival_notice.load(Relaxed)
        {
            vcpu.notify_arrival();
        }
        true
    }

    /// # Safety
    /// The coroutine is queued on this vCPU.
    pub(super) unsafe fn unlink(&mut self, coroutine: NonNull<Slot<H>>) {
        // SAFETY: the coroutine is queued here, by contract, and the lock is held.
        unsafe { self.queues().unlink(coroutine) };
        self.publish();
    }

    pub(crate) fn take_pinned(&mut self) -> Option<NonNull<Slot<H>>> {
        self.drain_inbox();
        let coroutine = self.queues().pop_pinned();
        self.publish();
        coroutine
    }

    pub(crate) fn take_any(&mut self) -> Option<NonNull<Slot<H>>> {
        self.drain_inbox();
        let ready = self.queues().ready();
        let coroutine = (ready != 0)
            .then(|| Level::from_stored(ready.trailing_zeros() as u8))
            .and_then(|level| self.queues().pop(level, false, 0));
        self.publish();
        coroutine
    }
}
