//! What the vCPUs of a runtime know of each other's timers and rings, and the right to work on the ring of one that is in a long poll.

use std::cell::Cell;
use std::ptr::null;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use upshift_core::MAX_VCPUS;
use upshift_elevate::dispatch::{Permit, heavy_barrier, register_barrier};
use upshift_ring::{Fd, Foreign, Ring, Submission, Watch, op};

use crate::preempt::interrupt::{self, OnStack, Sent};
use crate::preempt::permit;
use crate::time::timers::Timers;

/// One vCPU, as the others reach it.
pub(crate) struct Reach {
    timers: Arc<Timers>,
    /// While its loop runs, if the kernel can tell of arrivals.
    pub(crate) arrivals: Option<Arc<Arrivals>>,
}

/// The vCPUs that are served, by index. A thread that works on the ring of one holds its place.
pub(crate) struct Reaches(Box<[Mutex<Option<Reach>>]>);

impl Default for Reaches {
    fn default() -> Reaches {
        Reaches((0..MAX_VCPUS).map(|_| Mutex::new(None)).collect())
    }
}

impl Reaches {
    /// The others may reach vCPU `index`, or not any more.
    pub(crate) fn set(&self, index: usize, timers: Option<&Arc<Timers>>) {
        *self.place(index) = timers.map(|timers| Reach {
            timers: timers.clone(),
            arrivals: None,
        });
    }

    fn set_arrivals(&self, index: usize, arrivals: Option<Arc<Arrivals>>) {
        if let Some(reach) = &mut *self.place(index) {
            reach.arrivals = arrivals;
        }
    }

    pub(crate) fn place(&self, index: usize) -> MutexGuard<'_, Option<Reach>> {
        self.0[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn arrivals(&self, index: usize) -> Option<Arc<Arrivals>> {
        self.place(index).as_ref()?.arrivals.clone()
    }

    pub(crate) fn timers(&self, index: usize) -> Option<Arc<Timers>> {
        Some(self.place(index).as_ref()?.timers.clone())
    }
}

/// The ring of a vCPU whose loop runs.
pub(crate) struct Arrivals {
    permit: Permit,
    pub(crate) watch: Watch,
    ring: *const Ring,
    /// The thread whose loop runs.
    owner: AtomicU32,
    /// The last signal to the owner.
    sent: Sent,
    /// Set while the owner is to enter its ring.
    owes_enter: AtomicBool,
    /// An idle vCPU listens to the ring. Taken back by the owner.
    pub(crate) listened: AtomicBool,
}

// SAFETY: `ring` is used by the owner, or by a thread that holds the vCPU's place in `Reaches` and has revoked the permit; it is
// there as long as the loop runs, which takes the place before it ends. The rest is `Sync`.
unsafe impl Send for Arrivals {}
// SAFETY: as above.
unsafe impl Sync for Arrivals {}

impl Arrivals {
    /// For the ring of the calling thread; `None` where the kernel does not tell of arrivals during a poll.
    pub(crate) fn of(ring: &Ring) -> Option<Arc<Arrivals>> {
        if !ring.tells_of_arrivals() || register_barrier().is_err() {
            return None;
        }
        interrupt::claim().ok()?;
        Some(Arc::new(Arrivals {
            permit: Permit::new(),
            watch: ring.watch().ok()?,
            ring,
            owner: AtomicU32::new(0),
            sent: Sent::default(),
            owes_enter: AtomicBool::new(false),
            listened: AtomicBool::new(false),
        }))
    }

    /// The owner is back at its ring: no other vCPU need listen.
    #[inline]
    pub(crate) fn owner_is_back(&self) {
        if self.listened.load(Ordering::Relaxed) {
            self.listened.store(false, Ordering::Relaxed);
            // A signal that is still on its way finds nothing to do.
            self.owes_enter.store(false, Ordering::Relaxed);
            self.watch.mask();
        }
    }

    /// Works on the ring in place of its owner. Only with its place held.
    pub(crate) fn turn(&self) -> Vec<Foreign> {
        // Twice: the owner may have left between the attempt and the question.
        for _ in 0..2 {
            if self.permit.revoke(heavy_barrier).is_ok() {
                // SAFETY: the owner is outside of all uses, and stays there until the permit is granted; the place is held.
                let turn = unsafe { (*self.ring).stand_in() };
                self.permit.grant();
                self.permit.nudge();
                if turn.owes_call {
                    self.interrupt();
                }
                return turn.wakers;
            }
            // In the middle of a call of the runtime: its end notifies this one.
            if self.permit.ask(heavy_barrier) {
                break;
            }
        }
        Vec::new()
    }

    /// Has the owner enter its ring; the eventfd is signalled when it has.
    pub(crate) fn interrupt(&self) {
        self.owes_enter.store(true, Ordering::SeqCst);
        self.sent.send(self.owner.load(Ordering::Relaxed));
    }
}

thread_local! {
    /// The ring of the loop that runs on this thread.
    static OWN: Cell<*const Arrivals> = const { Cell::new(null()) };
}

/// The calling thread has been interrupted: it enters its ring, if it was asked to.
pub(crate) fn answer_here() {
    // SAFETY: set while the loop runs, which holds it.
    if let Some(own) = unsafe { OWN.get().as_ref() } {
        own.sent.is_answered();
        if own.owes_enter.swap(false, Ordering::SeqCst) {
            own.watch.enter();
        }
    }
}

const CALLS: permit::Calls = permit::Calls {
    tell: notify_own,
    wait: permit::just_wait,
};

/// A use has ended that another vCPU found under way.
fn notify_own() {
    // SAFETY: set while the loop runs, which holds it.
    if let Some(own) = unsafe { OWN.get().as_ref() } {
        own.watch.notify();
    }
}

/// While it lives, other vCPUs may stand in for the one whose loop runs on this thread, in the middle of polls.
pub(crate) struct Reachable<'a> {
    reaches: &'a Reaches,
    index: usize,
    arrivals: &'a Arrivals,
    permit: permit::Before,
    own: *const Arrivals,
    _stack: OnStack,
}

impl<'a> Reachable<'a> {
    /// Of vCPU `index`, whose ring the calling thread made. Outside of polls.
    pub(crate) fn begin(
        reaches: &'a Reaches,
        index: usize,
        arrivals: &'a Arc<Arrivals>,
    ) -> Reachable<'a> {
        let stack = OnStack::begin();
        // SAFETY: cannot fail.
        let thread = unsafe { libc::gettid() } as u32;
        arrivals.owner.store(thread, Ordering::Relaxed);
        // A loop within a poll of another runtime: that one's permit stays in use.
        permit::enter();
        // SAFETY: the drop puts the one before back, and the vCPU keeps this one until then.
        let permit = unsafe { permit::hold(&arrivals.permit, CALLS) };
        permit::enter();
        let own = OWN.replace(Arc::as_ptr(arrivals));
        reaches.set_arrivals(index, Some(arrivals.clone()));
        Reachable {
            reaches,
            index,
            arrivals,
            permit,
            own,
            _stack: stack,
        }
    }
}

impl Drop for Reachable<'_> {
    fn drop(&mut self) {
        // Waits for one that stands in.
        self.reaches.set_arrivals(self.index, None);
        self.arrivals.owner_is_back();
        permit::leave();
        OWN.set(self.own);
        // SAFETY: it was held when this one began.
        unsafe { permit::put_back(self.permit) };
        permit::leave();
    }
}

/// What an idle vCPU hears of the ring of another one.
pub(crate) struct Listening {
    pub(crate) arrivals: Arc<Arrivals>,
    pub(crate) fd: Fd,
    pub(crate) armed: Option<Submission<op::PollAdd>>,
}
