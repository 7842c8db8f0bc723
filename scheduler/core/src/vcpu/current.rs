//! What is being polled on a vCPU: since when, at which level, and what may look at it.

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
    /// The last reading of the clock: about when the current poll began.
    #[inline]
    #[must_use]
    pub fn clock(&self) -> u64 {
        self.clock.load(Relaxed)
    }

    /// The tick at which the turn of the coroutine that is being polled would have begun had it run without a break: before the
    /// beginning of its poll by what it has used since it last went to the tail of its level ([`Vcpu::keep_place`]).
    #[inline]
    #[must_use]
    pub fn turn_began(&self) -> u64 {
        self.turn_began.load(Relaxed)
    }

    /// The poll under way, which has just woken its own coroutine and is about to end, gives way to what is more urgent and goes
    /// on before its equals, as what is preempted does under `SCHED_FIFO`.
    /// It goes to the tail all the same if it has not woken itself, or if its level has changed
    /// during the poll.
    ///
    /// The host bounds it: what has used its quantum ([`Vcpu::turn_began`]) goes to the tail. By the thread that polls; from another one
    /// it does nothing.
    pub fn keep_place(&self) {
        if let Some(here) = self.shared().here()
            && core::ptr::eq(here, self)
            && let Some(current) = self.current()
        {
            // SAFETY: the caller serves this vCPU, and polls it, so it is alive.
            unsafe { current.as_ref() }.keep_place();
        }
    }

    /// The level of the coroutine that is being polled here.
    #[must_use]
    pub fn running_level(&self) -> Option<Level> {
        Level::new(self.published.running.load(Relaxed)).ok()
    }

    /// Others read it with every wake: it is written when it changes.
    #[inline]
    pub(super) fn set_running(&self, level: u8) {
        if self.published.running.load(Relaxed) != level {
            self.published.running.store(level, Relaxed);
        }
    }

    /// Is a coroutine being polled here? One load, from any thread.
    #[must_use]
    pub fn is_polling(&self) -> bool {
        !self.current.load(Relaxed).is_null()
    }

    /// The id of the coroutine that is being polled here (`get_cid` of the
    /// papers). Two loads and the way from a slot to its index. Exact on the thread
    /// that serves this vCPU; elsewhere it may be over before the answer is there.
    #[must_use]
    pub fn current_id(&self) -> Option<CoroutineId> {
        let slot = NonNull::new(self.current.load(Acquire))?;
        // Not the control block, which the caller may not hold.
        // SAFETY: slots live as long as the domain.
        let generation = unsafe { slot.as_ref() }.word.generation();
        Some(CoroutineId::new(Table::index(slot), generation))
    }

    /// Is the coroutine in this slot being polled here, by the calling thread?
    #[inline]
    pub(crate) fn polls_here(&self, slot: &Slot<H>) -> bool {
        core::ptr::eq(self.current.load(Relaxed), slot)
            && self
                .shared()
                .host
                .current()
                .is_some_and(|here| core::ptr::eq(here.0.as_ptr().cast(), self))
    }

    /// The control block of what is being polled here: only for the thread that
    /// polls it, or while that thread is stopped.
    pub(crate) fn current(&self) -> Option<NonNull<Slot<H>>> {
        NonNull::new(self.current.load(Relaxed))
    }

    /// # Safety
    /// The caller took the coroutine out of a queue.
    pub(super) unsafe fn start(&self, coroutine: NonNull<Slot<H>>, resumed: Option<bool>) {
        // SAFETY: owned, hence alive.
        let block = unsafe { coroutine.as_ref() };
        match resumed {
            Some(_) => block.resume(),
            None => block.set_state(State::Running),
        }
        self.set_running(block.level().get());
        // Release: a watchdog looks at the slot.
        self.current.store(coroutine.as_ptr(), Release);
        if resumed.is_some() && block.word.is_cancelled() {
            // It was not being polled when it was cancelled, and its poll goes on.
            self.ask(PREEMPT_HOST);
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

    /// It was picked, and kept while others were: it is what is polled here again.
    ///
    /// # Safety
    /// The caller picked it here and has not polled it since.
    #[cold]
    pub(crate) unsafe fn make_current(&self, coroutine: NonNull<Slot<H>>) {
        let mut locked = self.locked();
        // SAFETY: owned, hence alive.
        let block = unsafe { coroutine.as_ref() };
        // Under the lock: a change of its level finds it current, or is seen here.
        let level = block.update_level();
        // What has passed since the last poll is charged to no poll.
        locked.read_clock_now();
        let guarded = locked.guarded();
        guarded.batch[0] = level.get();
        guarded.polls = 1;
        guarded.picked = level.get();
        if let Some(floor) = &mut guarded.floor {
            floor.begin(level.get(), guarded.now);
        }
        self.turn_began.store(guarded.now, Relaxed);
        self.set_running(level.get());
        // Release: a watchdog looks at the slot.
        self.current.store(coroutine.as_ptr(), Release);
    }

    /// A poll that was [over](Vcpu::stop) has something left to do.
    pub(crate) fn go_on(&self, slot: NonNull<Slot<H>>) {
        // Release: a watchdog looks at the slot.
        self.current.store(slot.as_ptr(), Release);
    }

    /// The poll of the current coroutine is over.
    #[inline]
    pub(crate) fn stop(&self) {
        self.current.store(null_mut(), Relaxed);
    }
}
