//! Requests to a vCPU: to make its poll yield, and to notify the host of arrivals.

use core::ptr::NonNull;

use super::{ARRIVED, PREEMPT_HOST, Vcpu};
use crate::base::host::Host;
use crate::coroutine::Slot;
use crate::sync::Ordering::{Relaxed, SeqCst};
use crate::sync::fence;

impl<H: Host> Vcpu<H> {
    /// Returns true if the running poll should yield: a more urgent coroutine is ready here, or a
    /// yield was requested. Costs one load, or three if the inbox is not empty; no system call, and
    /// no atomic read-modify-write.
    #[inline]
    #[must_use]
    pub fn need_preempt(&self) -> bool {
        match self.mail.preempt.load(Relaxed) {
            0 => false,
            ARRIVED => self.has_urgent_arrivals(),
            _ => true,
        }
    }

    /// Sets a flag of `preempt`. One load if the flag is set already.
    #[inline]
    pub(super) fn set_preempt_flag(&self, flag: u32) {
        if self.mail.preempt.load(Relaxed) & flag == 0 {
            self.mail.preempt.fetch_or(flag, SeqCst);
        }
    }

    /// Requests that the poll of a coroutine, which was cancelled while it had an owner, yields.
    ///
    /// Holds the lock under which a poll becomes current: a poll that begins later sees that the
    /// coroutine is cancelled, and a poll that has begun is seen here.
    ///
    /// # Safety
    /// The caller holds a reference to the coroutine.
    pub(crate) unsafe fn preempt_cancelled(coroutine: NonNull<Slot<H>>) {
        // SAFETY: the caller holds a reference, so the block is alive.
        let block = unsafe { coroutine.as_ref() };
        // Orders the cancellation before the read of the vCPU: a thread that moves the coroutine
        // writes the vCPU before it reads the cancellation.
        fence(SeqCst);
        loop {
            let vcpu = block.vcpu();
            let _locked = vcpu.lock();
            if block.is_on(vcpu) {
                if vcpu.is_current(coroutine) {
                    vcpu.set_preempt_flag(PREEMPT_HOST);
                }
                return;
            }
        }
    }

    /// Requests that the running poll yields, for a reason of the host: a tick, a deadline, the
    /// board. May be called on any thread; the request lasts until the next pick.
    pub fn request_preempt(&self) {
        self.set_preempt_flag(PREEMPT_HOST);
    }

    /// Requests one call of [`Host::notify_arrival`] when another thread makes a coroutine ready
    /// here, and until then calls of [`Host::notify_local_arrival`]: for a host whose watcher
    /// sleeps while a poll is under way. With `false`, withdraws the request. One sequentially
    /// consistent store, so that a later read of [`Vcpu::bitmap`] sees all work that became ready
    /// earlier.
    pub fn set_arrival_notice(&self, requested: bool) {
        self.mail.arrival_notice.store(requested, SeqCst);
        fence(SeqCst);
    }

    /// Returns true if the call that [`Vcpu::set_arrival_notice`] requested has not been made yet.
    /// Costs one load.
    #[inline]
    #[must_use]
    pub fn has_arrival_notice(&self) -> bool {
        self.mail.arrival_notice.load(Relaxed)
    }

    #[cold]
    pub(super) fn notify_arrival(&self) {
        if self.mail.arrival_notice.swap(false, SeqCst) {
            self.shared().host.notify_arrival(self.index);
        }
    }
}
