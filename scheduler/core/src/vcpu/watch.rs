//! [`Poll`]: a poll as a watchdog sees it.
//!
//! A thread that wants to know of long polls looks, from time to time, at
//! [`Vcpu::current_poll`](crate::Vcpu::current_poll) and asks by
//! [`Vcpu::watch_current_poll`](crate::Vcpu::watch_current_poll) to be told of its end.
//! So the clock is read at the end of polls that were seen under way, and of
//! no other: a thread that looks every *t* hears of every poll that takes longer than *t*,
//! and of shorter ones as often as they are long.
//!
//! Cost: one load and one comparison per poll, whether a thread looks or not. The place where a coroutine was spawned is interned
//! with the type of its future: 16 bits of its control block (`sites`).

use core::ptr::{NonNull, null_mut};

use super::{Vcpu, release};
use crate::base::events::Poll;
use crate::base::host::Host;
use crate::base::level::Level;
use crate::coroutine::Slot;
use crate::sync::Ordering::{Acquire, Relaxed};
use crate::tables::table::id_of;

impl Poll {
    /// # Safety
    /// The caller owns the coroutine or holds a reference to it.
    pub(crate) unsafe fn of<H: Host>(coroutine: NonNull<Slot<H>>, began: u64) -> Poll {
        // SAFETY: alive, says the caller.
        let block = unsafe { coroutine.as_ref() };
        Poll {
            id: id_of(coroutine),
            level: block.level(),
            location: block.location(),
            began,
        }
    }
}

impl<H: Host> Vcpu<H> {
    /// The poll that is under way here, from any thread; `None` if there is none, or
    /// if it ended meanwhile. A handful of atomic steps, and no lock.
    #[must_use]
    pub fn current_poll(&self) -> Option<Poll> {
        let slot = NonNull::new(self.current.load(Acquire))?;
        let began = self.clock.load(Relaxed);
        // SAFETY: slots live as long as the domain.
        let word = unsafe { &slot.as_ref().word };
        let generation = word.generation();
        if !word.retain_by_id(generation) {
            return None;
        }
        // SAFETY: just referenced.
        let poll = unsafe { Poll::of(slot, began) };
        // SAFETY: the reference just taken.
        unsafe { release::release(slot) };
        let same = self.current.load(Relaxed) == slot.as_ptr() && self.clock.load(Relaxed) == began;
        same.then_some(poll)
    }

    /// When the poll that is under way here ends, [`Host::watched`] is told how long it
    /// took. Any thread; two loads and a store.
    pub fn watch_current_poll(&self) {
        self.watched.store(self.current.load(Relaxed), Relaxed);
    }

    /// Is the poll that has just ended to say how long it took? One load.
    #[inline]
    pub(crate) fn is_watched(&self, slot: NonNull<Slot<H>>) -> bool {
        self.watched.load(Relaxed) == slot.as_ptr()
    }

    /// Returns the poll of the calling thread, which has just ended, with the level at which it was
    /// picked: a connection that served a request has the level of receiving again.
    ///
    /// # Safety
    /// The caller owns the coroutine.
    unsafe fn just_ended(&self, coroutine: NonNull<Slot<H>>, began: u64) -> Poll {
        // SAFETY: owned, hence alive.
        let poll = unsafe { Poll::of(coroutine, began) };
        let level = Level::from_stored(self.locked().guarded().picked);
        Poll { level, ..poll }
    }

    /// The detached coroutine of the poll that has just ended has panicked.
    ///
    /// # Safety
    /// The caller owns the coroutine.
    #[cold]
    pub(crate) unsafe fn has_panicked(&self, coroutine: NonNull<Slot<H>>, began: Option<u64>) {
        // SAFETY: passed on.
        let poll = unsafe { self.just_ended(coroutine, began.unwrap_or(self.clock())) };
        self.shared().host.panicked(self.index, &poll);
    }

    /// A watched poll, which began at tick `began`, has ended.
    ///
    /// # Safety
    /// The caller owns the coroutine.
    #[cold]
    pub(crate) unsafe fn was_watched(&self, coroutine: NonNull<Slot<H>>, began: u64) {
        self.watched.store(null_mut(), Relaxed);
        // What is polled next is not charged for it.
        self.refresh_clock();
        // SAFETY: passed on.
        let poll = unsafe { self.just_ended(coroutine, began) };
        self.shared().host.watched(self.index, &poll, self.clock());
    }
}
