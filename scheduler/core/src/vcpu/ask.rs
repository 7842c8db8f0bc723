//! Asking what runs on a vCPU to give way, and asking to be told of what becomes ready there.

use core::ptr::NonNull;

use super::{ARRIVED, PREEMPT_HOST, Vcpu};
use crate::base::host::Host;
use crate::coroutine::Slot;
use crate::sync::Ordering::{Relaxed, SeqCst};
use crate::sync::fence;

impl<H: Host> Vcpu<H> {
    /// Is something more urgent ready here than what runs? One load, three when
    /// the inbox has something; no system call, no atomic step.
    #[inline]
    #[must_use]
    pub fn need_preempt(&self) -> bool {
        match self.mail.preempt.load(Relaxed) {
            0 => false,
            ARRIVED => self.has_urgent_arrivals(),
            _ => true,
        }
    }

    /// Sets a flag of `preempt`. One load if it is set.
    #[inline]
    pub(super) fn ask(&self, flag: u32) {
        if self.mail.preempt.load(Relaxed) & flag == 0 {
            self.mail.preempt.fetch_or(flag, SeqCst);
        }
    }

    /// The coroutine has been cancelled while it had an owner: if it is being polled, the poll is to give way.
    ///
    /// Under the lock under which a poll becomes current: one that begins after this sees that it is cancelled, and one that has begun
    /// is seen here.
    ///
    /// # Safety
    /// The caller holds a reference to it.
    pub(crate) unsafe fn ask_cancelled(coroutine: NonNull<Slot<H>>) {
        // SAFETY: referenced, hence alive.
        let block = unsafe { coroutine.as_ref() };
        // Between the cancellation and the look where it is: what moves it does the reverse.
        fence(SeqCst);
        loop {
            let vcpu = block.vcpu();
            let _locked = vcpu.locked();
            if block.is_on(vcpu) {
                if vcpu.is_current(coroutine) {
                    vcpu.ask(PREEMPT_HOST);
                }
                return;
            }
        }
    }

    /// The host's reason to preempt what runs: a tick, a deadline, the board.
    /// Any thread; stays set until the next pick.
    pub fn request_preempt(&self) {
        self.ask(PREEMPT_HOST);
    }

    /// Asks for one call of [`Host::attend`], when another thread makes something
    /// ready here, and for those of [`Host::waits_here`]: the host supervises
    /// polls and sleeps meanwhile.
    /// One sequentially consistent store, so that what became ready before is
    /// seen by a look at [`Vcpu::bitmap`] afterwards.
    pub fn set_attended(&self, attended: bool) {
        self.mail.attended.store(attended, SeqCst);
        fence(SeqCst);
    }

    /// Has [`Vcpu::set_attended`] asked for a call that has not come yet? One load.
    #[inline]
    #[must_use]
    pub fn is_attended(&self) -> bool {
        self.mail.attended.load(Relaxed)
    }

    #[cold]
    pub(super) fn attend(&self) {
        if self.mail.attended.swap(false, SeqCst) {
            self.shared().host.attend(self.index);
        }
    }
}
