//! Puts a ready coroutine into a queue: directly on the thread that serves its vCPU, through the
//! inbox from any other thread.

use core::ptr::NonNull;

use super::{ARRIVED, Vcpu};
use crate::base::events::Step;
use crate::base::host::Host;
use crate::coroutine::Slot;
use crate::sync::Ordering::{Acquire, Relaxed, SeqCst};
use crate::sync::fence;

impl<H: Host> Vcpu<H> {
    /// Returns true if the inbox may hold a coroutine that is more urgent than the running poll.
    /// The comparison is made here and not by the waker, because only the polling thread knows the
    /// level of its poll exactly.
    #[cold]
    pub(super) fn has_urgent_arrivals(&self) -> bool {
        let arriving = self.mail.arriving.load(Acquire);
        arriving != 0 && arriving.trailing_zeros() < u32::from(self.published.running.load(Relaxed))
    }

    /// Records that coroutines of these levels have been pushed into the inbox. Called after the
    /// push. A bit that is already set need not be set again: the bit is cleared before each take
    /// of the inbox, and the take finds all earlier pushes. If the take had ended before this push,
    /// the push would have read the head that the take stored, so this function would see the bit
    /// cleared.
    pub(super) fn announce_arrival(&self, levels: u64) {
        if self.mail.arriving.load(Relaxed) & levels == 0 {
            self.mail.arriving.fetch_or(levels, SeqCst);
        }
        self.set_preempt_flag(ARRIVED);
    }

    /// Puts a coroutine into the queue where it belongs.
    ///
    /// # Safety
    /// The caller owns the coroutine (`OWNED`), which is in no queue.
    #[inline]
    pub(crate) unsafe fn admit(coroutine: NonNull<Slot<H>>) {
        // SAFETY: the coroutine is owned, hence alive; the rest is the caller's contract.
        unsafe { Vcpu::admit_from(coroutine.as_ref().vcpu().shared().here(), coroutine) }
    }

    /// Like [`Vcpu::admit`], for a caller that knows which vCPU of the domain its thread serves.
    ///
    /// # Safety
    /// Same as [`Vcpu::admit`]; `here` came from [`Shared::here`](super::shared::Shared::here).
    #[inline]
    pub(crate) unsafe fn admit_from(here: Option<&Vcpu<H>>, coroutine: NonNull<Slot<H>>) {
        // SAFETY: the coroutine is owned, hence alive.
        let home = unsafe { coroutine.as_ref() }.vcpu();
        match here {
            // A retired vCPU accepts no more coroutines.
            Some(here) if core::ptr::eq(here, home) && !here.is_retired() => {
                // SAFETY: the contract is the caller's.
                unsafe { here.admit_here(coroutine) };
            }
            // SAFETY: the contract is the caller's.
            _ => unsafe { Vcpu::admit_elsewhere(here, coroutine) },
        }
    }

    /// Like [`Vcpu::admit`], on a thread that does not serve the coroutine's home, or if the home
    /// is retired.
    ///
    /// # Safety
    /// Same as [`Vcpu::admit_from`].
    #[inline(never)]
    unsafe fn admit_elsewhere(here: Option<&Vcpu<H>>, coroutine: NonNull<Slot<H>>) {
        // SAFETY: the coroutine is owned, hence alive.
        let block = unsafe { coroutine.as_ref() };
        let home = block.vcpu();
        if let Some(here) = here
            && !here.is_retired()
            && !block.is_pinned()
            && (home.is_parked() || home.is_retired())
        {
            // The new vCPU is stored before the level is read, as `settle` requires.
            block.move_to(here);
            fence(SeqCst);
            // SAFETY: the contract is the caller's.
            return unsafe { here.admit_here(coroutine) };
        }
        home.trace(coroutine, Step::Ready);
        block.ready_at.store(home.shared().host.now(), Relaxed);
        // SAFETY: the contract is the caller's.
        unsafe { home.deliver(coroutine) };
    }

    /// Puts a coroutine into the queue of this vCPU, which is its home.
    ///
    /// # Safety
    /// Same as [`Vcpu::admit`], and the calling thread serves this vCPU.
    #[inline(never)]
    pub(crate) unsafe fn admit_here(&self, coroutine: NonNull<Slot<H>>) {
        self.trace(coroutine, Step::Ready);
        // SAFETY: the calling thread serves this vCPU, by contract.
        let mut locked = unsafe { self.lock_by_owner() };
        // SAFETY: the contract is the caller's.
        let urgent = unsafe { locked.enqueue(coroutine) };
        drop(locked);
        if urgent || self.is_long() {
            self.announce();
        }
    }

    /// Pushes the coroutine into the inbox of this vCPU, and ends the wait of the vCPU if it is
    /// parked.
    ///
    /// # Safety
    /// Same as [`Vcpu::admit`].
    pub(crate) unsafe fn deliver(&self, coroutine: NonNull<Slot<H>>) {
        // SAFETY: the coroutine is owned, hence alive; its block is read before the push gives the
        // coroutine away.
        let (level, pinned, since) = unsafe {
            let block = coroutine.as_ref();
            block.move_to(self);
            let since = block.ready_at.load(Relaxed);
            (block.level(), block.is_pinned(), since)
        };
        // SAFETY: the coroutine is owned and in no other list; it is valid until it is taken.
        unsafe { self.mail.inbox.push(coroutine) };
        self.announce_arrival(level.bit());
        fence(SeqCst);
        if self.is_retired_now() {
            self.forward();
            return;
        }
        if self.is_parked() {
            self.kick();
            return;
        }
        if self.mail.arrival_notice.load(Relaxed) {
            self.notify_arrival();
        }
        if !pinned && self.shared().idle.load(Relaxed) != 0 && self.should_announce(level, since) {
            self.shared().notify_idle(self);
        }
    }
}
