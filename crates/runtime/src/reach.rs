//! What the other vCPUs of a runtime do for one that is in a long poll.
//!
//! A vCPU that computes serves neither its timers nor its ring. An idle one that finds it so ([`Vcpu::look`]) stands in
//! for it, without any rights:
//!
//! * **Timers** are behind a lock of their own; any thread may expire them.
//! * **The ring** is worked on by one thread at a time, and entered by the one that made it. The idle vCPU
//!   takes the owner's permit (`permit`), which says that its thread is in the middle of a poll and outside of the
//!   runtime; works on the queues; gives the permit back, and only then wakes what waited: wakers are foreign code, which may
//!   wait for a lock that the owner's poll holds. What is left to the kernel the owner does in a signal handler
//!   (`interrupt`), and no thread waits for it: it rings the bell.
//!
//! ```text
//!   data arrives ─► the kernel rings the bell of the ring ─► idle vCPU: signal to the owner
//!     ─► owner, in the handler: one enter, bell ─► idle vCPU: permit, reap, permit back, wake
//! ```
//!
//! The idle vCPU does not poll for arrivals: it unmasks the eventfd of the ring, which the kernel signals while its owner
//! computes, and waits for it on its own ring. The owner masks it at its next turn.
//!
//! A poll that is interrupted by the signal goes on as if nothing had happened, but for system calls that the kernel does not
//! restart after a handler (`epoll_wait`, `poll`, `nanosleep`; see signal(7)): they return EINTR, as they may at any time.
//!
//! [`Vcpu::look`]: upshift_core::Vcpu::look

use std::cell::Cell;
use std::os::fd::BorrowedFd;
use std::ptr::null;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use upshift_core::MAX_VCPUS;
use upshift_elevate::dispatch::{Permit, heavy_barrier, register_barrier};
use upshift_ring::{Fd, Foreign, Ring, Submission, Watch, op};

use crate::clock;
use crate::foreign;
use crate::interrupt;
use crate::permit;
use crate::time::Timers;
use crate::worker::Worker;

/// One vCPU, as the others reach it.
struct Reach {
    timers: Arc<Timers>,
    /// While its loop runs, if the kernel can tell of arrivals.
    arrivals: Option<Arc<Arrivals>>,
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

    fn place(&self, index: usize) -> MutexGuard<'_, Option<Reach>> {
        self.0[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn arrivals(&self, index: usize) -> Option<Arc<Arrivals>> {
        self.place(index).as_ref()?.arrivals.clone()
    }

    fn timers(&self, index: usize) -> Option<Arc<Timers>> {
        Some(self.place(index).as_ref()?.timers.clone())
    }
}

/// The ring of a vCPU whose loop runs.
pub(crate) struct Arrivals {
    permit: Permit,
    watch: Watch,
    ring: *const Ring,
    /// The thread whose loop runs.
    owner: AtomicU32,
    /// A signal is on its way to it.
    interrupted: AtomicBool,
    /// An idle vCPU listens to the ring. Taken back by the owner.
    listened: AtomicBool,
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
            interrupted: AtomicBool::new(false),
            listened: AtomicBool::new(false),
        }))
    }

    /// The owner is back at its ring: no other vCPU need listen.
    #[inline]
    pub(crate) fn owner_is_back(&self) {
        if self.listened.load(Ordering::Relaxed) {
            self.listened.store(false, Ordering::Relaxed);
            // A signal that is still on its way finds nothing to do.
            self.interrupted.store(false, Ordering::Relaxed);
            self.watch.mask();
        }
    }

    /// Works on the ring in place of its owner. Only with its place held.
    fn turn(&self) -> Vec<Foreign> {
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
            // In the middle of a call of the runtime: its end rings the bell.
            if self.permit.ask(heavy_barrier) {
                break;
            }
        }
        Vec::new()
    }

    /// Has the owner enter its ring; the bell rings when it has.
    fn interrupt(&self) {
        if !self.interrupted.swap(true, Ordering::SeqCst) {
            interrupt::send(self.owner.load(Ordering::Relaxed));
        }
    }
}

thread_local! {
    /// The ring of the loop that runs on this thread.
    static OWN: Cell<*const Arrivals> = const { Cell::new(null()) };
}

/// The calling thread has been interrupted: it enters its ring, if it was asked to.
pub(crate) fn answer_here() {
    // SAFETY: set while the loop runs, which holds it.
    if let Some(own) = unsafe { OWN.get().as_ref() }
        && own.interrupted.swap(false, Ordering::SeqCst)
    {
        own.watch.enter();
    }
}

const CALLS: permit::Calls = permit::Calls {
    tell: ring_own_bell,
    wait: permit::just_wait,
};

/// A use has ended that another vCPU found under way.
fn ring_own_bell() {
    // SAFETY: set while the loop runs, which holds it.
    if let Some(own) = unsafe { OWN.get().as_ref() } {
        own.watch.ring_bell();
    }
}

/// While it lives, other vCPUs may stand in for the one whose loop runs on this thread, in the middle of polls.
pub(crate) struct Reachable<'a> {
    worker: &'a Worker,
    arrivals: &'a Arrivals,
    permit: permit::Before,
    own: *const Arrivals,
}

impl<'a> Reachable<'a> {
    /// Outside of polls. `None`: without arrivals, or all signals are taken.
    pub(crate) fn begin(worker: &'a Worker) -> Option<Reachable<'a>> {
        let arrivals = worker
            .arrivals
            .get_or_init(|| Arrivals::of(&worker.ring))
            .as_ref()?;
        // SAFETY: cannot fail.
        let thread = unsafe { libc::gettid() } as u32;
        arrivals.owner.store(thread, Ordering::Relaxed);
        // A loop within a poll of another runtime: that one's permit stays in use.
        permit::enter();
        // SAFETY: the drop puts the one before back, and the worker keeps this one until then.
        let permit = unsafe { permit::hold(&arrivals.permit, CALLS) };
        permit::enter();
        let own = OWN.replace(Arc::as_ptr(arrivals));
        let reaches = &worker.shared.reaches;
        reaches.set_arrivals(worker.executor.index(), Some(arrivals.clone()));
        Some(Reachable {
            worker,
            arrivals,
            permit,
            own,
        })
    }
}

impl Drop for Reachable<'_> {
    fn drop(&mut self) {
        // Waits for one that stands in.
        let reaches = &self.worker.shared.reaches;
        reaches.set_arrivals(self.worker.executor.index(), None);
        self.arrivals.owner_is_back();
        permit::leave();
        OWN.set(self.own);
        // SAFETY: it was held when this one began.
        unsafe { permit::put_back(self.permit) };
        permit::leave();
    }
}

/// What an idle vCPU hears of the ring of another one.
pub(crate) struct Bell {
    arrivals: Arc<Arrivals>,
    fd: Fd,
    armed: Option<Submission<op::PollAdd>>,
}

impl Worker {
    /// Does what vCPU `index` would do if it were not in a long poll. True: something became ready. Sets `next` to when it is to be called
    /// again, ns, if nothing else calls it.
    pub(crate) fn stand_in_for(&self, index: usize, next: &mut Option<u64>) -> bool {
        let reaches = &self.shared.reaches;
        let mut sooner = |at: u64| *next = Some(next.map_or(at, |next| next.min(at)));
        let Some(timers) = reaches.timers(index) else {
            return false;
        };
        let mut late = Vec::new();
        let mut found = timers.expire(clock::now(), |foreign| late.push(foreign)) != 0;
        timers.next_deadline().map(&mut sooner);
        foreign::run(self.executor.domain(), late);
        let Some(arrivals) = reaches.arrivals(index) else {
            return found;
        };
        let first = !arrivals.listened.swap(true, Ordering::SeqCst);
        if first {
            arrivals.watch.unmask();
        }
        self.listen(index, &arrivals);
        fence(Ordering::SeqCst);
        // The first time also for what earlier polls have asked of the kernel, and is not handed over.
        if first || arrivals.watch.has_completions() {
            let wakers = match &*reaches.place(index) {
                Some(Reach {
                    arrivals: Some(there),
                    ..
                }) if Arc::ptr_eq(there, &arrivals) => there.turn(),
                _ => Vec::new(),
            };
            found |= !wakers.is_empty();
            foreign::run(self.executor.domain(), wakers);
        } else if arrivals.watch.has_arrivals() {
            arrivals.interrupt();
        }
        found
    }

    /// From now on arrivals at that vCPU's ring end the waits of this one.
    fn listen(&self, index: usize, arrivals: &Arc<Arrivals>) {
        let mut bells = self.bells.borrow_mut();
        if bells.len() <= index {
            bells.resize_with(index + 1, || None);
        }
        let place = &mut bells[index];
        if !place
            .as_ref()
            .is_some_and(|bell| Arc::ptr_eq(&bell.arrivals, arrivals))
        {
            // SAFETY: the watch keeps its descriptor open.
            let fd = unsafe { BorrowedFd::borrow_raw(arrivals.watch.raw_fd()) };
            *place = fd.try_clone_to_owned().ok().map(|fd| Bell {
                arrivals: arrivals.clone(),
                fd: Fd::new(fd),
                armed: None,
            });
        }
        let Some(bell) = place else { return };
        if bell.armed.as_ref().is_none_or(Submission::is_complete) {
            bell.arrivals.watch.clear();
            let readable = op::PollAdd::new(bell.fd.clone(), libc::POLLIN as u32);
            bell.armed = Some(self.ring.start(readable, u8::MAX));
        }
    }
}
