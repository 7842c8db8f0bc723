//! Gives the vCPUs of a runtime access to each other's timers and rings (io_uring). A vCPU may work
//! on the ring of another one while the thread of the latter is in a long poll. The permit of that
//! thread decides whether this is possible at the moment.

use std::cell::Cell;
use std::ptr::null;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use upshift_core::MAX_VCPUS;
use upshift_elevate::dispatch::{Permit, heavy_barrier, register_barrier};
use upshift_ring::{DeferredCall, Fd, Ring, RingWatch, Submission, op};

use crate::preempt::interrupt::{self, OnStack, PendingSignal};
use crate::preempt::permit;
use crate::time::timers::Timers;

/// Access of the other vCPUs to a vCPU.
pub(crate) struct VcpuAccess {
    timers: Arc<Timers>,
    /// Set while the vCPU's loop runs, if the kernel can announce arrivals.
    pub(crate) arrivals: Option<Arc<Arrivals>>,
}

/// The vCPUs in service, by index. A thread that works on the ring of another vCPU holds the lock
/// of that vCPU's entry.
pub(crate) struct AccessTable(Box<[Mutex<Option<VcpuAccess>>]>);

impl Default for AccessTable {
    fn default() -> AccessTable {
        AccessTable((0..MAX_VCPUS).map(|_| Mutex::new(None)).collect())
    }
}

impl AccessTable {
    /// Gives the other vCPUs access to vCPU `index`, or ends that access if `timers` is `None`.
    pub(crate) fn set(&self, index: usize, timers: Option<&Arc<Timers>>) {
        *self.entry(index) = timers.map(|timers| VcpuAccess {
            timers: timers.clone(),
            arrivals: None,
        });
    }

    fn set_arrivals(&self, index: usize, arrivals: Option<Arc<Arrivals>>) {
        if let Some(entry) = &mut *self.entry(index) {
            entry.arrivals = arrivals;
        }
    }

    pub(crate) fn entry(&self, index: usize) -> MutexGuard<'_, Option<VcpuAccess>> {
        self.0[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn arrivals(&self, index: usize) -> Option<Arc<Arrivals>> {
        self.entry(index).as_ref()?.arrivals.clone()
    }

    pub(crate) fn timers(&self, index: usize) -> Option<Arc<Timers>> {
        Some(self.entry(index).as_ref()?.timers.clone())
    }
}

/// Access of the other vCPUs to the ring of a vCPU whose loop runs, and to the arrivals at it. The
/// *owner* is the thread that runs the loop and created the ring.
pub(crate) struct Arrivals {
    permit: Permit,
    pub(crate) watch: RingWatch,
    ring: *const Ring,
    owner: AtomicU32,
    signal: PendingSignal,
    /// Set while a request to the owner to enter its ring is open.
    enter_requested: AtomicBool,
    /// Set while an idle vCPU listens to the ring. The owner clears it.
    pub(crate) is_listened_to: AtomicBool,
}

// SAFETY: no two threads use `ring` at once: it is used by the owner, or by a thread that holds the
// vCPU's entry in the table and has revoked the owner's permit. The pointer is valid, because the
// ring outlives the loop, which clears the entry before it ends. The rest is `Sync`.
unsafe impl Send for Arrivals {}
// SAFETY: as above.
unsafe impl Sync for Arrivals {}

impl Arrivals {
    /// Creates the access to the calling thread's ring. Returns `None` if the kernel does not
    /// announce arrivals during a poll.
    pub(crate) fn for_ring(ring: &Ring) -> Option<Arc<Arrivals>> {
        if !ring.reports_arrivals() || register_barrier().is_err() {
            return None;
        }
        interrupt::claim().ok()?;
        Some(Arc::new(Arrivals {
            permit: Permit::new(),
            watch: ring.watch().ok()?,
            ring,
            owner: AtomicU32::new(0),
            signal: PendingSignal::default(),
            enter_requested: AtomicBool::new(false),
            is_listened_to: AtomicBool::new(false),
        }))
    }

    /// Stops other vCPUs from listening, because the owner is back at its ring.
    #[inline]
    pub(crate) fn end_stand_in(&self) {
        if self.is_listened_to.load(Ordering::Relaxed) {
            self.is_listened_to.store(false, Ordering::Relaxed);
            // A signal that is still on its way finds nothing to do.
            self.enter_requested.store(false, Ordering::Relaxed);
            self.watch.mask();
        }
    }

    /// Works on the ring in place of its owner, and returns wakers to call. The caller must hold
    /// the vCPU's entry.
    pub(crate) fn serve_ring(&self) -> Vec<DeferredCall> {
        // This is tried twice, because the owner may end its use of the permit between a failed
        // `revoke` and the `ask`.
        for _ in 0..2 {
            if self.permit.revoke(heavy_barrier).is_ok() {
                // SAFETY: this thread alone uses the ring. The owner is outside of all uses, and
                // stays outside until the permit is granted, and the caller holds the entry, which
                // excludes other vCPUs.
                let result = unsafe { (*self.ring).stand_in() };
                self.permit.grant();
                self.permit.nudge();
                if result.needs_enter {
                    self.interrupt();
                }
                return result.wakers;
            }
            // The owner is in the middle of a call of the runtime. It notifies this thread when the
            // call ends.
            if self.permit.ask(heavy_barrier) {
                break;
            }
        }
        Vec::new()
    }

    /// Makes the owner enter its ring. The owner signals the eventfd when it has done so.
    pub(crate) fn interrupt(&self) {
        self.enter_requested.store(true, Ordering::SeqCst);
        self.signal.send(self.owner.load(Ordering::Relaxed));
    }
}

thread_local! {
    static OWN_ARRIVALS: Cell<*const Arrivals> = const { Cell::new(null()) };
}

/// Handles the signal on the owner's thread, which enters its ring if that was requested.
pub(crate) fn answer_here() {
    // SAFETY: the pointer is null or valid, because it is set only while the loop runs, which keeps
    // the `Arrivals` alive.
    if let Some(own) = unsafe { OWN_ARRIVALS.get().as_ref() } {
        own.signal.mark_answered();
        if own.enter_requested.swap(false, Ordering::SeqCst) {
            own.watch.enter();
        }
    }
}

const HOOKS: permit::Hooks = permit::Hooks {
    notify: notify_stand_in,
    wait: permit::wait_for_grant,
};

fn notify_stand_in() {
    // SAFETY: the pointer is null or valid, because it is set only while the loop runs, which keeps
    // the `Arrivals` alive.
    if let Some(own) = unsafe { OWN_ARRIVALS.get().as_ref() } {
        own.watch.notify();
    }
}

/// Guard that lets other vCPUs stand in for the vCPU whose loop runs on this thread, whenever that
/// vCPU is in a poll.
pub(crate) struct StandInGuard<'a> {
    access: &'a AccessTable,
    index: usize,
    arrivals: &'a Arrivals,
    permit: permit::Saved,
    previous: *const Arrivals,
    _stack: OnStack,
}

impl<'a> StandInGuard<'a> {
    /// Lets other vCPUs stand in for vCPU `index`, whose ring the calling thread made. Called
    /// outside of polls.
    pub(crate) fn begin(
        access: &'a AccessTable,
        index: usize,
        arrivals: &'a Arc<Arrivals>,
    ) -> StandInGuard<'a> {
        let stack = OnStack::begin();
        // SAFETY: the call takes no pointers and cannot fail.
        let thread = unsafe { libc::gettid() } as u32;
        arrivals.owner.store(thread, Ordering::Relaxed);
        // If this loop runs within a poll of another runtime, the permit for that runtime stays in
        // use.
        permit::enter();
        // SAFETY: the permit lives until the drop, because the guard borrows the vCPU's `Arrivals`.
        // The drop restores the former permit, whose use ends only after that.
        let permit = unsafe { permit::hold(&arrivals.permit, HOOKS) };
        permit::enter();
        let previous = OWN_ARRIVALS.replace(Arc::as_ptr(arrivals));
        access.set_arrivals(index, Some(arrivals.clone()));
        StandInGuard {
            access,
            index,
            arrivals,
            permit,
            previous,
            _stack: stack,
        }
    }
}

impl Drop for StandInGuard<'_> {
    fn drop(&mut self) {
        // Takes the entry's lock, and so waits for a vCPU that stands in.
        self.access.set_arrivals(self.index, None);
        self.arrivals.end_stand_in();
        permit::leave();
        OWN_ARRIVALS.set(self.previous);
        // SAFETY: `hold` returned this permit, which the thread held under the contract of `hold`.
        unsafe { permit::restore(self.permit) };
        permit::leave();
    }
}

/// The wait of an idle vCPU for arrivals at the ring of another vCPU.
pub(crate) struct Listening {
    pub(crate) arrivals: Arc<Arrivals>,
    pub(crate) fd: Fd,
    /// The poll operation that waits for an arrival.
    pub(crate) operation: Option<Submission<op::PollAdd>>,
}
