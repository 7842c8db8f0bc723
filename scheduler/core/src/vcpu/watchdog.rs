//! Lets a watchdog thread observe the poll under way ([`Poll`]).
//!
//! A *watchdog* is a thread that records long polls. From time to time it reads
//! [`Vcpu::current_poll`](crate::Vcpu::current_poll) and calls
//! [`Vcpu::watch_current_poll`](crate::Vcpu::watch_current_poll), so that the end of the poll is
//! reported to the host. The clock is read at the end of a poll only if the watchdog has seen this
//! poll. A watchdog that looks every *t* sees every poll that takes longer than *t*, and a shorter
//! poll with a probability proportional to its length.
//!
//! Cost: one load and one comparison per poll, whether there is a watchdog or not.

use core::ptr::{NonNull, null_mut};

use super::{Vcpu, release};
use crate::base::events::Poll;
use crate::base::host::Host;
use crate::base::level::Level;
use crate::coroutine::Slot;
use crate::sync::Ordering::{Acquire, Relaxed};
use crate::tables::table::id_of;

impl Poll {
    /// Describes the poll of a coroutine that began at tick `began`.
    ///
    /// # Safety
    /// The caller owns the coroutine or holds a reference to it.
    pub(crate) unsafe fn describe<H: Host>(coroutine: NonNull<Slot<H>>, began: u64) -> Poll {
        // SAFETY: the coroutine is alive, by contract.
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
    /// Returns the poll under way here; `None` if there is none, or if the poll ends meanwhile. May
    /// be called on any thread. Costs a few atomic operations, and no lock.
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
        // SAFETY: `retain_by_id` has just taken a reference to the coroutine.
        let poll = unsafe { Poll::describe(slot, began) };
        // SAFETY: the reference was just taken.
        unsafe { release::release(slot) };
        let is_same_poll =
            self.current.load(Relaxed) == slot.as_ptr() && self.clock.load(Relaxed) == began;
        is_same_poll.then_some(poll)
    }

    /// Makes the end of the poll under way here call [`Host::on_watched_poll_end`] with the poll
    /// and its end. May be called on any thread. Costs two loads and a store.
    pub fn watch_current_poll(&self) {
        self.watched.store(self.current.load(Relaxed), Relaxed);
    }

    /// Returns true if the end of this poll is to be reported. Costs one load.
    #[inline]
    pub(crate) fn is_watched(&self, slot: NonNull<Slot<H>>) -> bool {
        self.watched.load(Relaxed) == slot.as_ptr()
    }

    /// Returns the poll that has just ended on the calling thread, with the level at which it was
    /// picked. The coroutine may have changed its level in the poll, as a server's connection does
    /// when it has received or served a request.
    ///
    /// # Safety
    /// The caller owns the coroutine.
    unsafe fn ended_poll(&self, coroutine: NonNull<Slot<H>>, began: u64) -> Poll {
        // SAFETY: the caller owns the coroutine, so it is alive.
        let poll = unsafe { Poll::describe(coroutine, began) };
        let level = Level::from_stored(self.lock().guarded().picked);
        Poll { level, ..poll }
    }

    /// Reports to the host that the detached coroutine of the poll that has just ended has
    /// panicked.
    ///
    /// # Safety
    /// The caller owns the coroutine.
    #[cold]
    pub(crate) unsafe fn report_panic(&self, coroutine: NonNull<Slot<H>>, began: Option<u64>) {
        // SAFETY: the contract is the caller's.
        let poll = unsafe { self.ended_poll(coroutine, began.unwrap_or(self.clock())) };
        self.shared().host.on_panic(self.index, &poll);
    }

    /// Reports the end of a watched poll, which began at tick `began`, to the host.
    ///
    /// # Safety
    /// The caller owns the coroutine.
    #[cold]
    pub(crate) unsafe fn report_watched_poll(&self, coroutine: NonNull<Slot<H>>, began: u64) {
        self.watched.store(null_mut(), Relaxed);
        // The clock is read here, so that the next poll is not charged for the watched one.
        self.refresh_clock();
        // SAFETY: the contract is the caller's.
        let poll = unsafe { self.ended_poll(coroutine, began) };
        self.shared()
            .host
            .on_watched_poll_end(self.index, &poll, self.clock());
    }
}
