//! Requests that other threads make to a vCPU: that its poll yields, or that the host is notified
//! of arrivals, that is, of coroutines that become ready there.

use core::ptr::NonNull;

use super::{ARRIVED, PREEMPT_HOST, Vcpu};
use crate::base::host::Host;
use crate::coroutine::Slot;
use crate::sync::Ordering::{Relaxed, SeqCst};
use crate::sync::fence;

impl<H: Host> Vcpu<H> {
    /// Returns true if the running poll should yield, because a more urgent coroutine is ready here
    /// or a yield was requested. Costs one load, or three if the inbox is not empty; no system
    /// call, and no atomic read-modify-write.
    #[inline]
    #[must_use]
    pub fn need_preempt(&self) -> bool {
        match self.mail.preempt.load(Relaxed) {
            0 => false,
            ARRIVED => self.has_urgent_arrivals(),
            _ => true,
        }
    }

    /// Sets a flag of `mail.preempt`. Costs only one load if the flag is already set.
    #[inline]
    pub(super) fn set_preempt_flag(&self, flag: u32) {
        if self.mail.preempt.load(Relaxed) & flag == 0 {
            self.mail.preempt.fetch_or(flag, SeqCst);
        }
    }

    /// Requests that the running poll of a cancelled coroutine yields. Does nothing if the
    /// coroutine is not being polled.
    ///
    /// Takes the vCPU's lock, under which a poll becomes current. So a poll that begins later sees
    /// the cancellation, and a poll that has already begun is seen here.
    ///
    /// # Safety
    /// The caller holds a reference to the coroutine.
    pub(crate) unsafe fn preempt_cancelled(coroutine: NonNull<Slot<H>>) {
        // SAFETY: the caller holds a reference, so the block is alive.
        let block = unsafe { coroutine.as_ref() };
        // Orders the cancellation before the read of the vCPU, because a thread that moves the
        // coroutine writes the vCPU before it reads the cancellation.
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

    /// Requests that the running poll yields, on behalf of the host, for example on a timer tick or
    /// after a deadline. May be called on any thread. The request lasts until the vCPU's next pick.
    pub fn request_preempt(&self) {
        self.set_preempt_flag(PREEMPT_HOST);
    }

    /// Requests that the host is notified of new work. The next time another thread makes a
    /// coroutine ready here, [`Host::notify_arrival`] is called once, and the request ends. Until
    /// then, [`Host::notify_local_arrival`] is called when a poll on this vCPU makes a coroutine
    /// ready here. This is for a host whose watcher sleeps while a poll is under way. With `false`,
    /// withdraws the request.
    ///
    /// A read of [`Vcpu::bitmap`] after this call sees all work that became ready before the
    /// request, because the request is followed by a sequentially consistent fence.
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
