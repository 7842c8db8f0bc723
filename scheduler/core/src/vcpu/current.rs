//! The current poll of a vCPU: its start and end, its level, and what other threads may read of it.

use core::ptr::{NonNull, null_mut};

use super::{PREEMPT_HOST, Vcpu};
use crate::base::events::Step;
use crate::base::host::Host;
use crate::base::id::CoroutineId;
use crate::base::kind::State;
use crate::base::level::Level;
use crate::coroutine::Slot;
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::tables::table::Table;

impl<H: Host> Vcpu<H> {
    /// Returns the last reading of the clock, which is about when the current poll began.
    #[inline]
    #[must_use]
    pub fn clock(&self) -> u64 {
        self.clock.load(Relaxed)
    }

    /// Returns the start of the current poll minus the time that its coroutine has used since it
    /// last went to the tail of its level ([`Vcpu::keep_place`]). This is the tick at which the
    /// coroutine's quantum would have begun if the coroutine had run without interruption.
    #[inline]
    #[must_use]
    pub fn quantum_began(&self) -> u64 {
        self.quantum_began.load(Relaxed)
    }

    /// Lets the current coroutine keep its place: if it has woken itself when its poll ends, it
    /// queues before the coroutines of its level rather than behind them, as a preempted thread
    /// does under `SCHED_FIFO`. The call has no effect if the coroutine has not woken itself, or if
    /// its level changes during the poll.
    ///
    /// The host should not call this for a coroutine that has used its quantum
    /// ([`Vcpu::quantum_began`]), so that the coroutine goes to the tail. Does nothing unless
    /// called by the thread that polls.
    pub fn keep_place(&self) {
        if let Some(here) = self.shared().here()
            && core::ptr::eq(here, self)
            && let Some(current) = self.current()
        {
            // SAFETY: the calling thread is polling the coroutine, so it is alive.
            unsafe { current.as_ref() }.keep_place();
        }
    }

    /// Returns the level of the coroutine that is being polled here.
    #[must_use]
    pub fn running_level(&self) -> Option<Level> {
        Level::new(self.published.running.load(Relaxed)).ok()
    }

    /// Publishes the level of the poll under way. Other threads read the level with every wake, so
    /// it is written only when it changes.
    #[inline]
    pub(super) fn set_running(&self, level: u8) {
        if self.published.running.load(Relaxed) != level {
            self.published.running.store(level, Relaxed);
        }
    }

    /// Returns true while a coroutine is being polled here. Costs one load, on any thread.
    #[must_use]
    pub fn is_polling(&self) -> bool {
        !self.current.load(Relaxed).is_null()
    }

    /// Returns the id of the coroutine that is being polled here (`get_cid` in the papers on
    /// SharedScheduler, which `docs/papers.md` cites). Costs two loads, and two more to find the
    /// index of the slot. Exact on the thread that serves this vCPU; on other threads, the poll may
    /// have ended before this returns.
    #[must_use]
    pub fn current_id(&self) -> Option<CoroutineId> {
        let slot = NonNull::new(self.current.load(Acquire))?;
        // Only the state word is read, because the caller may have no right to the rest of the
        // control block.
        // SAFETY: slots live as long as the domain.
        let generation = unsafe { slot.as_ref() }.word.generation();
        Some(CoroutineId::new(Table::index(slot), generation))
    }

    /// Returns true if the calling thread is polling the coroutine in this slot.
    #[inline]
    pub(crate) fn is_polling_here(&self, slot: &Slot<H>) -> bool {
        core::ptr::eq(self.current.load(Relaxed), slot)
            && self
                .shared()
                .host
                .current()
                .is_some_and(|here| core::ptr::eq(here.0.as_ptr().cast(), self))
    }

    /// Returns the coroutine that is being polled here. Called only by the thread that polls, or
    /// while that thread is stopped.
    pub(crate) fn current(&self) -> Option<NonNull<Slot<H>>> {
        NonNull::new(self.current.load(Relaxed))
    }

    /// Makes a coroutine the current one. `resumed` is `None` if a new poll begins, and
    /// `Some(for_a_turn)` if a suspended poll continues.
    ///
    /// # Safety
    /// The caller took the coroutine out of a queue.
    pub(super) unsafe fn start(&self, coroutine: NonNull<Slot<H>>, resumed: Option<bool>) {
        // SAFETY: the coroutine is owned, hence alive.
        let block = unsafe { coroutine.as_ref() };
        match resumed {
            Some(_) => block.resume(),
            None => block.set_state(State::Running),
        }
        self.set_running(block.level().get());
        // Release, because a watchdog reads the slot through this pointer.
        self.current.store(coroutine.as_ptr(), Release);
        if resumed.is_some() && block.word.is_cancelled() {
            // The coroutine was cancelled while it was suspended, and its poll continues.
            self.set_preempt_flag(PREEMPT_HOST);
        }
        self.trace(
            coroutine,
            match resumed {
                Some(_) => Step::Resumed,
                None => Step::Polled,
            },
        );
    }

    #[inline]
    pub(crate) fn is_current(&self, slot: NonNull<Slot<H>>) -> bool {
        self.current.load(Relaxed) == slot.as_ptr()
    }

    /// Makes a coroutine current that the caller picked earlier and held while it picked others.
    ///
    /// # Safety
    /// The caller picked the coroutine here and has not polled it since.
    #[cold]
    pub(crate) unsafe fn make_current(&self, coroutine: NonNull<Slot<H>>) {
        let mut locked = self.lock();
        // SAFETY: the coroutine is owned, hence alive.
        let block = unsafe { coroutine.as_ref() };
        // Updated under the lock, so that a concurrent change of the level either finds the
        // coroutine current or is seen here.
        let level = block.update_level();
        // Time since the last poll is charged to no poll.
        locked.read_clock_now();
        let guarded = locked.guarded();
        guarded.batch[0] = level.get();
        guarded.polls = 1;
        guarded.picked = level.get();
        if let Some(floor) = &mut guarded.floor {
            floor.begin(level.get(), guarded.now);
        }
        self.quantum_began.store(guarded.now, Relaxed);
        self.set_running(level.get());
        // Release, because a watchdog reads the slot through this pointer.
        self.current.store(coroutine.as_ptr(), Release);
    }

    /// Makes a poll that was [ended](Vcpu::stop) current again, for user code that is still part of
    /// it.
    pub(crate) fn continue_poll(&self, slot: NonNull<Slot<H>>) {
        // Release, because a watchdog reads the slot through this pointer.
        self.current.store(slot.as_ptr(), Release);
    }

    #[inline]
    pub(crate) fn stop(&self) {
        self.current.store(null_mut(), Relaxed);
    }
}
