//! Moves coroutines between vCPUs. A vCPU steals if it has no work, or only work that is less
//! urgent than that of another vCPU. A retired vCPU passes its coroutines on.

use super::{Locked, STEAL_MAX, Vcpu};
use crate::base::events::Step;
use crate::base::host::Host;
use crate::base::level::Level;
use crate::sync::Ordering::Relaxed;
use crate::sync::Ordering::SeqCst;
use crate::sync::fence;

impl<H: Host> Vcpu<H> {
    /// Steals work that is more urgent than all work that is ready here, or any work if none is
    /// ready here.
    ///
    /// A thief that finds the work gone tries again. The loop ends, because every retry means that
    /// another vCPU took a coroutine, or that a coroutine in an inbox turned out to be pinned and
    /// is no longer published as movable.
    #[inline(never)]
    pub(super) fn look_elsewhere<'a>(&'a self, mut locked: Locked<'a, H>) -> Locked<'a, H> {
        loop {
            let ready = locked.queues().ready();
            // All levels more urgent than the most urgent ready level here; all levels if none is
            // ready.
            let wanted = (ready & ready.wrapping_neg()).wrapping_sub(1);
            let victim = match ready {
                // An idle vCPU steals only if it may help. Then it takes the most urgent work, not
                // only the work because of which it may help.
                0 if !self.may_help(locked.now()) => None,
                _ if wanted == 0 => None,
                _ => self.shared().find_victim(self, wanted),
            };
            let Some((victim, wanted)) = victim else {
                return locked;
            };
            locked.publish();
            drop(locked);
            let has_stolen = self.steal(victim, wanted, ready == 0);
            locked = self.lock();
            if has_stolen || self.shared().active.load(Relaxed) < 2 {
                return locked;
            }
        }
    }

    /// Steals the oldest coroutine of the most urgent wanted level of `victim` or, if `idle`, up to
    /// half of the coroutines of that level. Returns false if no wanted coroutine was left.
    pub(super) fn steal(&self, victim: &Vcpu<H>, wanted: u64, idle: bool) -> bool {
        let mut batch = [None; STEAL_MAX];
        let mut theirs = victim.lock();
        theirs.drain_inbox();
        let bits = theirs.queues().movable() & wanted;
        if bits != 0 {
            let level = Level::from_stored(bits.trailing_zeros() as u8);
            let share = if idle {
                theirs
                    .queues()
                    .movable_len(level)
                    .div_ceil(2)
                    .min(STEAL_MAX)
            } else {
                1
            };
            for entry in batch.iter_mut().take(share) {
                *entry = theirs.queues().pop_movable(level);
                if let Some(coroutine) = entry {
                    // SAFETY: the coroutine is out of the queue, so owned by us.
                    let block = unsafe { coroutine.as_ref() };
                    block.move_to(self);
                }
            }
            theirs.publish();
        }
        theirs.request_yield();
        drop(theirs);
        victim.look_again();
        if bits == 0 {
            return false;
        }
        let mut mine = self.lock();
        for coroutine in batch.into_iter().flatten() {
            let from = victim.index;
            self.trace(coroutine, Step::Stolen { from });
            // SAFETY: the coroutine is owned by us and in no queue.
            unsafe { mine.enqueue_arrived(coroutine) };
            let stolen = &self.counters.stolen;
            stolen.store(stolen.load(Relaxed) + 1, Relaxed);
        }
        mine.publish();
        true
    }

    /// Ends the wait of the vCPU if it has work. Called after another thread has moved the inbox
    /// into the ready queues, or has published a level that changed in the inbox. Between the two
    /// steps of that thread, the vCPU may have found both the inbox and the queues empty, and
    /// parked. Without this call it would sleep on. Coroutines that are pinned to it would never
    /// run, and its bitmap would stay stale.
    ///
    /// Either the vCPU saw the published queues after it had set its parked flag, or this thread
    /// sees the flag after it has published the queues.
    pub(crate) fn look_again(&self) {
        fence(SeqCst);
        if self.is_parked() && self.bitmap() != 0 {
            self.kick();
        }
    }

    /// Passes on the coroutines that are left on a retired vCPU or still arrive there.
    pub(crate) fn forward(&self) {
        // Without another vCPU the coroutines stay until a vCPU is added.
        while let Some(successor) = self.shared().any_vcpu(self) {
            let next = {
                let mut locked = self.lock();
                locked.drain_inbox();
                let movable = locked.queues().movable();
                let next = (movable != 0)
                    .then(|| Level::from_stored(movable.trailing_zeros() as u8))
                    .and_then(|level| locked.queues().pop_movable(level));
                if let Some(coroutine) = next {
                    // Moved under the lock, so that a change of the level finds the coroutine
                    // either in a queue or on its way.
                    // SAFETY: the coroutine is out of the queue, so owned by us.
                    unsafe { coroutine.as_ref() }.move_to(successor);
                }
                locked.publish();
                next
            };
            let Some(coroutine) = next else { return };
            // SAFETY: the coroutine was just popped, so it is owned by us.
            unsafe { successor.deliver(coroutine) };
        }
    }
}
