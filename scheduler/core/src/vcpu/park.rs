//! Parking: a vCPU that has nothing to do waits, and every wake for it ends the wait.
//!
//! No wake is lost between the decision to wait and the wait: [`Vcpu::prepare_park`] sets the flag, then looks at the queues; a
//! waker fills a queue, then looks at the flag; both with sequentially consistent steps, so one of them sees the other.

use super::Vcpu;
use crate::base::host::Host;
use crate::sync::Ordering::{Relaxed, SeqCst};
use crate::sync::fence;

impl<H: Host> Vcpu<H> {
    /// Announces that the vCPU is about to wait. True: go and wait, every wake
    /// from now on ends in [`Host::pend`]. False: there is work; do not wait.
    pub fn prepare_park(&self) -> bool {
        let domain = self.shared();
        // Before the flag: the thread that takes the flag down subtracts.
        domain.idle.fetch_add(1, SeqCst);
        if self.published.parked.swap(true, SeqCst) {
            domain.idle.fetch_sub(1, SeqCst);
        }
        fence(SeqCst);
        // A bit of `arriving` that outlived its coroutine counts as work: the
        // next pick clears it, and the bitmap of a parked vCPU is the truth.
        let work = !self.mail.inbox.is_empty()
            || (self.published.ready.load(Relaxed) | self.mail.arriving.load(Relaxed)) != 0
            || (domain.active.load(Relaxed) > 1 && self.may_help(self.host_now()));
        if work {
            self.unpark();
        }
        !work
    }

    /// The wait is over, for whatever reason.
    pub fn unpark(&self) {
        self.end_wait();
        if self.published.parked.swap(false, SeqCst) {
            self.shared().idle.fetch_sub(1, SeqCst);
        }
        // The next pick looks at which vCPUs watch: see `search`.
        fence(SeqCst);
    }

    /// Something that may move has become ready here while a poll is under way that does not let it run soon: a parked
    /// vCPU is to have it, if there is one. A fence and a load, otherwise. A host calls it before a poll of its own turns to
    /// something that may take for ever: a kernel, before it goes to user mode.
    ///
    /// A vCPU that parks raises `idle`, then looks for work on all vCPUs ([`Vcpu::prepare_park`]); here what is ready was
    /// published before `idle` is read; both sequentially consistent, so one of them sees the other.
    pub fn announce(&self) {
        fence(SeqCst);
        let domain = self.shared();
        if domain.idle.load(Relaxed) != 0 && self.may_give() != 0 {
            domain.notify_idle(self);
        }
    }

    /// Has something come in since the last pick? Loads only; for a host that
    /// spins a little before it parks.
    #[must_use]
    pub fn has_arrivals(&self) -> bool {
        !self.mail.inbox.is_empty() || self.published.ready.load(Relaxed) != 0
    }

    /// Ends the vCPU's wait, if it waits.
    pub(crate) fn kick(&self) -> bool {
        let was_parked = self.published.parked.swap(false, SeqCst);
        if was_parked {
            self.shared().idle.fetch_sub(1, SeqCst);
            self.shared().host.pend(self.index);
        }
        was_parked
    }
}
