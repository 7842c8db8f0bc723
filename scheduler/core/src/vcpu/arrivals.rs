//! What becomes ready: straight into a queue on the vCPU's own thread, through the inbox from others.

use core::ptr::NonNull;

use super::{ARRIVED, Vcpu};
use crate::base::events::Step;
use crate::base::host::Host;
use crate::coroutine::Slot;
use crate::sync::Ordering::{Acquire, Relaxed, SeqCst};
use crate::sync::fence;

impl<H: Host> Vcpu<H> {
    /// What arrives is compared here and not where it comes from: only the thread
    /// that polls knows for certain at which level.
    #[cold]
    pub(super) fn has_urgent_arrivals(&self) -> bool {
        let arriving = self.mail.arriving.load(Acquire);
        arriving != 0 && arriving.trailing_zeros() < u32::from(self.published.running.load(Relaxed))
    }

    /// Something of these levels is in the inbox, or on its way out of it.
    ///
    /// After the push. What is seen set here may be skipped: it is cleared before a take, which finds what was pushed before. Had that
    /// been taken already, the push would have read from the take, which follows the clearing.
    pub(super) fn announce_arrival(&self, levels: u64) {
        if self.mail.arriving.load(Relaxed) & levels == 0 {
            self.mail.arriving.fetch_or(levels, SeqCst);
        }
        self.ask(ARRIVED);
    }

    /// Puts a coroutine that the caller owns into a queue, wherever it belongs.
    ///
    /// # Safety
    /// The caller owns the coroutine (`OWNED`), which is in no queue.
    #[inline]
    pub(crate) unsafe fn admit(coroutine: NonNull<Slot<H>>) {
        // SAFETY: owned, hence alive; the rest is passed on.
        unsafe { Vcpu::admit_from(coroutine.as_ref().vcpu().shared().here(), coroutine) }
    }

    /// The same, by a caller that knows which vCPU of the domain its thread serves.
    ///
    /// # Safety
    /// As [`Vcpu::admit`]; `here` is from [`Shared::here`](super::shared::Shared::here).
    #[inline]
    pub(crate) unsafe fn admit_from(here: Option<&Vcpu<H>>, coroutine: NonNull<Slot<H>>) {
        // SAFETY: owned, hence alive.
        let home = unsafe { coroutine.as_ref() }.vcpu();
        match here {
            // A vCPU that leaves takes nothing in any more.
            Some(here) if core::ptr::eq(here, home) && !here.is_retired() => {
                // SAFETY: passed on.
                unsafe { here.admit_here(coroutine) };
            }
            // SAFETY: passed on.
            _ => unsafe { Vcpu::admit_elsewhere(here, coroutine) },
        }
    }

    /// The same, where the calling thread does not serve its home, or that leaves.
    ///
    /// # Safety
    /// As [`Vcpu::admit_from`].
    #[inline(never)]
    unsafe fn admit_elsewhere(here: Option<&Vcpu<H>>, coroutine: NonNull<Slot<H>>) {
        // SAFETY: owned, hence alive.
        let block = unsafe { coroutine.as_ref() };
        let home = block.vcpu();
        if let Some(here) = here
            && !here.is_retired()
            && !block.is_pinned()
            && (home.is_parked() || home.is_retired())
        {
            // See `settle`: the new place is known before the level is read.
            block.moves_to(here);
            fence(SeqCst);
            // SAFETY: passed on.
            return unsafe { here.admit_here(coroutine) };
        }
        home.trace(coroutine, Step::Ready);
        block.ready_at.store(home.shared().host.now(), Relaxed);
        // SAFETY: the caller's promise.
        unsafe { home.deliver(coroutine) };
    }

    /// The same into the queue of this vCPU, which is its home.
    ///
    /// # Safety
    /// As [`Vcpu::admit`], and the calling thread serves this vCPU.
    #[inline(never)]
    pub(crate) unsafe fn admit_here(&self, coroutine: NonNull<Slot<H>>) {
        self.trace(coroutine, Step::Ready);
        // SAFETY: passed on.
        let mut locked = unsafe { self.locked_by_owner() };
        // SAFETY: passed on.
        let urgent = unsafe { locked.enqueue(coroutine) };
        drop(locked);
        if urgent || self.is_long() {
            self.announce();
        }
    }

    /// Puts a coroutine into the inbox, from any thread.
    ///
    /// # Safety
    /// As [`Vcpu::admit`].
    pub(crate) unsafe fn deliver(&self, coroutine: NonNull<Slot<H>>) {
        // SAFETY: owned, hence alive; read before it is given away.
        let (level, pinned, now) = unsafe {
            let block = coroutine.as_ref();
            block.moves_to(self);
            let now = block.ready_at.load(Relaxed);
            (block.level(), block.is_pinned(), now)
        };
        // SAFETY: owned and in no other list; valid until it is taken.
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
        if self.mail.attended.load(Relaxed) {
            self.attend();
        }
        if !pinned && self.shared().idle.load(Relaxed) != 0 && self.keeps_waiting(level, now) {
            self.shared().notify_idle(self);
        }
    }
}
