//! Parks a vCPU that has no work. The wait ends when a coroutine becomes ready on the vCPU, or when
//! there is work that the vCPU may steal.
//!
//! No wake is lost between the decision to wait and the wait. [`Vcpu::prepare_park`] sets the
//! parked flag and then looks at the queues, whereas a waker fills a queue and then looks at the
//! flag. These steps are sequentially consistent, so at least one of the two sees what the other
//! has written.

use super::Vcpu;
use crate::base::host::Host;
use crate::sync::Ordering::{Relaxed, SeqCst};
use crate::sync::fence;

impl<H: Host> Vcpu<H> {
    /// Announces that the vCPU is about to wait. Returns true if it may wait; every wake from then
    /// on ends in [`Host::kick`]. Returns false if there is work.
    pub fn prepare_park(&self) -> bool {
        let domain = self.shared();
        // Incremented before the flag is set, because the thread that clears the flag decrements.
        domain.idle.fetch_add(1, SeqCst);
        if self.published.parked.swap(true, SeqCst) {
            domain.idle.fetch_sub(1, SeqCst);
        }
        fence(SeqCst);
        // A bit of `arriving` that has outlived its coroutine counts as work, because the next pick
        // clears the bit, so the bitmap of a parked vCPU is exact.
        let has_work = !self.mail.inbox.is_empty()
            || (self.published.ready.load(Relaxed) | self.mail.arriving.load(Relaxed)) != 0
            || (domain.active.load(Relaxed) > 1 && self.may_help(self.host_now()));
        if has_work {
            self.unpark();
        }
        !has_work
    }

    /// Records that the wait of this vCPU has ended, for any reason.
    pub fn unpark(&self) {
        self.end_wait();
        if self.published.parked.swap(false, SeqCst) {
            self.shared().idle.fetch_sub(1, SeqCst);
        }
        // Orders the end of the wait before the next pick's read of the number of vCPUs that sleep;
        // see `search`.
        fence(SeqCst);
    }

    /// Ends the wait of a parked vCPU, if there is one and a coroutine here may move. A host calls
    /// this during a poll, before an action that may take arbitrarily long; a kernel, for example,
    /// before it enters user mode. Work that the poll has made ready can then run on the vCPU whose
    /// wait has ended. Costs a fence and a load if no vCPU is parked.
    ///
    /// A vCPU that parks raises `idle`, then looks for work on all vCPUs ([`Vcpu::prepare_park`]);
    /// this function reads `idle` after the ready work was published. The steps are ordered by
    /// fences, so at least one side sees the other.
    pub fn announce(&self) {
        fence(SeqCst);
        let domain = self.shared();
        if domain.idle.load(Relaxed) != 0 && self.movable_levels() != 0 {
            domain.notify_idle(self);
        }
    }

    /// Returns true if the inbox or the ready queues of this vCPU hold a coroutine. Only loads, so
    /// that a host can call this while it spins briefly before it parks.
    #[must_use]
    pub fn has_arrivals(&self) -> bool {
        !self.mail.inbox.is_empty() || self.published.ready.load(Relaxed) != 0
    }

    /// Ends the wait of this vCPU if it is parked. Returns whether it was.
    pub(crate) fn kick(&self) -> bool {
        let was_parked = self.published.parked.swap(false, SeqCst);
        if was_parked {
            self.shared().idle.fetch_sub(1, SeqCst);
            self.shared().host.kick(self.index);
        }
        was_parked
    }
}
