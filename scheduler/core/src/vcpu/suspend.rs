//! Suspends a poll in the middle, and resumes it later on the same stack. This needs a host that
//! can stop a thread.
//!
//! When a poll is stopped, its thread gives up the ownership of the coroutine. Usually the
//! coroutine is queued ([`Vcpu::suspend_current`]), and a later [`pick`](crate::Executor::pick)
//! returns it as [`Picked::Resume`]. If the thread sleeps in the middle of the poll and could not
//! continue, the coroutine is in no queue ([`Vcpu::set_aside_current`]) until
//! [`SetAside::requeue`].

use core::ptr::NonNull;

use super::{NONE_RUNNING, Vcpu};
use crate::base::events::Step;
use crate::base::host::Host;
use crate::base::id::CoroutineId;
use crate::base::kind::QueueEnd;
use crate::coroutine::Slot;
use crate::sync::Ordering::Relaxed;
use crate::tables::table::id_of;

/// A coroutine that was set aside: stopped in the middle of its poll, and in no queue. Dropping
/// the value queues the coroutine, too.
#[must_use = "the coroutine resumes when this is dropped"]
pub struct SetAside<H: Host>(NonNull<Slot<H>>);

// SAFETY: the value is the ownership of a coroutine that no thread polls; any thread may queue it.
unsafe impl<H: Host> Send for SetAside<H> {}

impl<H: Host> core::fmt::Debug for SetAside<H> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("SetAside").field(&self.id()).finish()
    }
}

impl<H: Host> SetAside<H> {
    /// Returns the id of the coroutine.
    #[must_use]
    pub fn id(&self) -> CoroutineId {
        id_of(self.0)
    }

    /// Queues the coroutine first in its level, on the vCPU on which it was stopped. The host calls
    /// this, on any thread, when the thread of the poll can continue.
    pub fn requeue(self) {}
}

impl<H: Host> Drop for SetAside<H> {
    fn drop(&mut self) {
        // SAFETY: the coroutine is owned by us and in no queue; vCPUs live as long as their domain,
        // which outlives this value (`set_aside_current`).
        unsafe {
            let vcpu = self.0.as_ref().vcpu();
            let now = vcpu.host_now();
            self.0.as_ref().ready_at.store(now, Relaxed);
            vcpu.deliver(self.0);
        }
    }
}

impl<H: Host> Vcpu<H> {
    /// Suspends the coroutine that is being polled here. The coroutine queues in its level as
    /// [`State::Suspended`](crate::State::Suspended), and a later `pick` returns it as
    /// [`Picked::Resume`](crate::Picked::Resume). Returns `None` if no coroutine is being polled.
    ///
    /// # Safety
    /// The polling thread is stopped, outside of this crate, and continues only when the coroutine
    /// has been picked again, which happens before the vCPU is retired. Until this returns, no
    /// other thread serves the vCPU, and the calling thread synchronizes with the stopped one.
    pub unsafe fn suspend_current(&self, end: QueueEnd) -> Option<CoroutineId> {
        // SAFETY: the caller acts for the thread that served the vCPU, and no other serves it
        // meanwhile.
        let mut locked = unsafe { self.lock_by_owner() };
        let coroutine = self.current()?;
        self.interrupt(coroutine, end);
        // SAFETY: the coroutine is being polled, so it is alive and in no queue; its poller is
        // stopped and has handed the ownership to us.
        unsafe { locked.enqueue(coroutine) };
        self.set_running(NONE_RUNNING);
        Some(id_of(coroutine))
    }

    /// Suspends the current coroutine, whose thread sleeps, without queueing the coroutine. The
    /// drop of the result and [`SetAside::requeue`] queue the coroutine.
    ///
    /// # Safety
    /// Same as [`Vcpu::suspend_current`]; and the domain outlives the result.
    pub unsafe fn set_aside_current(&self) -> Option<SetAside<H>> {
        // SAFETY: the caller acts for the thread that served the vCPU, and no other serves it
        // meanwhile.
        let _locked = unsafe { self.lock_by_owner() };
        let coroutine = self.current()?;
        self.interrupt(coroutine, QueueEnd::Head);
        self.set_running(NONE_RUNNING);
        Some(SetAside(coroutine))
    }

    fn interrupt(&self, coroutine: NonNull<Slot<H>>, end: QueueEnd) {
        self.stop();
        // SAFETY: the coroutine is being polled, hence alive.
        let block = unsafe { coroutine.as_ref() };
        block.suspend(end == QueueEnd::Head);
        self.trace(coroutine, Step::Suspended);
        self.counters.record_suspension(block.level());
    }

    /// Takes this coroutine out of its queue and makes it current, before all others. Returns false
    /// if it is not suspended and queued here.
    ///
    /// # Safety
    /// The calling thread serves the vCPU, or acts for the thread that does, and has the executor.
    pub(crate) unsafe fn pick_suspended(&self, id: CoroutineId) -> bool {
        self.shared()
            .with_coroutine(id, |coroutine| {
                // SAFETY: `with_coroutine` holds a reference.
                let block = unsafe { coroutine.as_ref() };
                // SAFETY: the contract is the caller's.
                let mut locked = unsafe { self.lock_by_owner() };
                locked.read_clock_now();
                locked.drain_inbox();
                let is_queued_here = block.is_on(self)
                    && block.is_suspended()
                    && block.queued.load(Relaxed) != Slot::<H>::NOT_QUEUED;
                if !is_queued_here {
                    return false;
                }
                // SAFETY: the coroutine is queued here, and the lock is held; once unlinked, it is
                // ours.
                unsafe {
                    locked.unlink(coroutine);
                    self.start(coroutine, Some(true));
                }
                true
            })
            .unwrap_or(false)
    }
}
