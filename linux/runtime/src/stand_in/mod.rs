//! Lets idle vCPUs of a runtime serve the timers and the io_uring of a vCPU that is in a long poll.
//! This is called *standing in*.
//!
//! A vCPU in a long poll does not process its timers and its ring. An idle vCPU that finds such a
//! vCPU ([`Vcpu::look`]) stands in for it. The process needs no privileges. The *owner* is the
//! thread of the vCPU in the long poll.
//!
//! * **Timers** have a lock of their own, so any thread may expire them.
//! * **The ring** may be used by one thread at a time, and entered only by the owner, which made
//!   it. The idle vCPU first revokes the owner's *permit*, the right to use the ring (module
//!   `permit`). This succeeds only while the owner is in the middle of a poll and outside of the
//!   runtime. The idle vCPU then works on the ring's queues and grants the permit again. Only then
//!   does it call the wakers, because they are user code, which may wait for a lock that the poll
//!   of the owner holds. The owner makes the system calls, in a signal handler (`interrupt`). No
//!   thread waits for that, because the handler signals the eventfd of the ring.
//!
//! ```text
//!   data arrives ─► the kernel signals the eventfd of the ring ─► idle vCPU: signal to the owner
//!     ─► owner, in the handler: one enter, eventfd ─► idle vCPU: permit, reap, permit back, wake
//! ```
//!
//! The idle vCPU does not spin for arrivals. It unmasks the eventfd of the owner's ring, which the
//! kernel then signals while the owner computes, and waits for that eventfd on its own ring. The
//! owner masks the eventfd when its poll has ended and it serves its ring again.
//!
//! A poll that the signal interrupts continues unchanged, except that system calls which the kernel
//! does not restart after a handler (`epoll_wait`, `poll`, `nanosleep`; see signal(7)) return
//! EINTR, as they may at any time.
//!
//! [`Vcpu::look`]: upshift_core::Vcpu::look

pub(crate) mod arrivals;

use std::cell::{Cell, OnceCell, RefCell};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use upshift_ring::{DeferredCall, Fd, Ring, Submission, op};

use crate::stand_in::arrivals::{AccessTable, Arrivals, Listening, StandInGuard, VcpuAccess};
use crate::time::clock;

/// State that a vCPU keeps about the other vCPUs. Only the vCPU's own thread uses it.
#[derive(Default)]
pub(crate) struct Neighbours {
    /// The vCPU's ring as the other vCPUs use it; created when there are other vCPUs.
    arrivals: OnceCell<Option<Arc<Arrivals>>>,
    listening: RefCell<Vec<Option<Listening>>>,
    /// Earliest timer of a vCPU in a long poll, in ns, as seen by the last look.
    next_deadline: Cell<Option<u64>>,
}

impl Neighbours {
    /// Lets other vCPUs stand in for the vCPU with this `ring` until the guard is dropped. Returns
    /// `None` if the kernel does not announce arrivals during a poll.
    pub(crate) fn allow_stand_in<'a>(
        &'a self,
        access: &'a AccessTable,
        index: usize,
        ring: &Ring,
    ) -> Option<StandInGuard<'a>> {
        let arrivals = self.arrivals.get_or_init(|| Arrivals::for_ring(ring));
        (arrivals.as_ref()).map(|arrivals| StandInGuard::begin(access, index, arrivals))
    }

    #[inline]
    pub(crate) fn end_stand_in(&self) {
        if let Some(Some(arrivals)) = self.arrivals.get() {
            arrivals.end_stand_in();
        }
    }

    /// Returns the time (ns) of the next look at the other vCPUs, unless something else causes a
    /// look before.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.next_deadline.get()
    }

    /// Makes arrivals at the ring of vCPU `index` end waits in `ring`, which is this vCPU's.
    fn listen(&self, ring: &Ring, index: usize, arrivals: &Arc<Arrivals>) {
        let mut listening = self.listening.borrow_mut();
        if listening.len() <= index {
            listening.resize_with(index + 1, || None);
        }
        let slot = &mut listening[index];
        if !slot
            .as_ref()
            .is_some_and(|listening| Arc::ptr_eq(&listening.arrivals, arrivals))
        {
            // SAFETY: the descriptor is open while it is borrowed, because `arrivals.watch` keeps
            // it open.
            let fd = unsafe { BorrowedFd::borrow_raw(arrivals.watch.raw_fd()) };
            *slot = fd.try_clone_to_owned().ok().map(|fd| Listening {
                arrivals: arrivals.clone(),
                fd: Fd::new(fd),
                operation: None,
            });
        }
        let Some(listening) = slot else { return };
        if listening
            .operation
            .as_ref()
            .is_none_or(Submission::is_complete)
        {
            listening.arrivals.watch.clear();
            let readable = op::PollAdd::new(listening.fd.clone(), libc::POLLIN as u32);
            listening.operation = Some(ring.start(readable, u8::MAX));
        }
    }
}

/// A look of an idle vCPU at the vCPUs that are in long polls.
pub(crate) struct Look<'a> {
    neighbours: &'a Neighbours,
    access: &'a AccessTable,
    ring: &'a Ring,
}

impl<'a> Look<'a> {
    pub(crate) fn new(
        neighbours: &'a Neighbours,
        access: &'a AccessTable,
        ring: &'a Ring,
    ) -> Look<'a> {
        neighbours.next_deadline.set(None);
        Look {
            neighbours,
            access,
            ring,
        }
    }

    fn look_again_at(&self, time: u64) {
        let next = &self.neighbours.next_deadline;
        next.set(Some(next.get().map_or(time, |next| next.min(time))));
    }

    /// Serves the timers and the ring of vCPU `index`, which is in a long poll. `run` is called
    /// with the wakers. Returns true if something became ready.
    pub(crate) fn stand_in_for(&mut self, index: usize, run: impl Fn(Vec<DeferredCall>)) -> bool {
        let Some(timers) = self.access.timers(index) else {
            return false;
        };
        let mut expired = Vec::new();
        let mut made_ready = timers.expire(clock::now(), |call| expired.push(call)) != 0;
        if let Some(deadline) = timers.next_deadline() {
            self.look_again_at(deadline);
        }
        run(expired);
        let Some(arrivals) = self.access.arrivals(index) else {
            return made_ready;
        };
        let is_first_time = !arrivals.is_listened_to.swap(true, Ordering::SeqCst);
        if is_first_time {
            arrivals.watch.unmask();
        }
        self.neighbours.listen(self.ring, index, &arrivals);
        fence(Ordering::SeqCst);
        // The ring is always served the first time, because operations of earlier polls may not be
        // submitted yet.
        if is_first_time || arrivals.watch.has_completions() {
            let wakers = match &*self.access.entry(index) {
                Some(VcpuAccess {
                    arrivals: Some(entry),
                    ..
                }) if Arc::ptr_eq(entry, &arrivals) => entry.serve_ring(),
                _ => Vec::new(),
            };
            made_ready |= !wakers.is_empty();
            run(wakers);
        } else if arrivals.watch.has_arrivals() {
            arrivals.interrupt();
        }
        made_ready
    }
}
