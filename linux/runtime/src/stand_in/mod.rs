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
//!   (`interrupt`), and no thread waits for it: it signals the eventfd of the ring.
//!
//! ```text
//!   data arrives ─► the kernel signals the eventfd of the ring ─► idle vCPU: signal to the owner
//!     ─► owner, in the handler: one enter, eventfd ─► idle vCPU: permit, reap, permit back, wake
//! ```
//!
//! The idle vCPU does not poll for arrivals: it unmasks the eventfd of the ring, which the kernel signals while its owner
//! computes, and waits for it on its own ring. The owner masks it at its next turn.
//!
//! A poll that is interrupted by the signal goes on as if nothing had happened, but for system calls that the kernel does not
//! restart after a handler (`epoll_wait`, `poll`, `nanosleep`; see signal(7)): they return EINTR, as they may at any time.
//!
//! [`Vcpu::look`]: upshift_core::Vcpu::look

pub(crate) mod arrivals;

use std::cell::{Cell, OnceCell, RefCell};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use upshift_ring::{Fd, Foreign, Ring, Submission, op};

use crate::stand_in::arrivals::{Arrivals, Listening, Reach, Reachable, Reaches};
use crate::time::clock;

/// The other vCPUs of a runtime, as one of them knows them. Used by its own thread.
#[derive(Default)]
pub(crate) struct Neighbours {
    /// Its ring as the others reach it; made when there are others.
    arrivals: OnceCell<Option<Arc<Arrivals>>>,
    /// Its watches over the rings of the others, by index.
    listening: RefCell<Vec<Option<Listening>>>,
    /// When a timer of a vCPU in a long poll is due, ns, as far as the last look has shown.
    next_deadline: Cell<Option<u64>>,
}

impl Neighbours {
    /// Lets the others stand in for the vCPU with this `ring` until the result is dropped. `None`
    /// where the kernel does not tell of arrivals during a poll.
    pub(crate) fn reachable<'a>(
        &'a self,
        reaches: &'a Reaches,
        index: usize,
        ring: &Ring,
    ) -> Option<Reachable<'a>> {
        let arrivals = self.arrivals.get_or_init(|| Arrivals::of(ring));
        (arrivals.as_ref()).map(|arrivals| Reachable::begin(reaches, index, arrivals))
    }

    /// The vCPU is at its ring: no other one need listen to that.
    #[inline]
    pub(crate) fn owner_is_back(&self) {
        if let Some(Some(arrivals)) = self.arrivals.get() {
            arrivals.owner_is_back();
        }
    }

    /// When the vCPU is to look at the others again, ns, if nothing else has it look.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.next_deadline.get()
    }

    /// Has arrivals at the ring of vCPU `index` end the waits in `ring`.
    fn listen(&self, ring: &Ring, index: usize, arrivals: &Arc<Arrivals>) {
        let mut listening = self.listening.borrow_mut();
        if listening.len() <= index {
            listening.resize_with(index + 1, || None);
        }
        let place = &mut listening[index];
        if !place
            .as_ref()
            .is_some_and(|it| Arc::ptr_eq(&it.arrivals, arrivals))
        {
            // SAFETY: the watch keeps its descriptor open.
            let fd = unsafe { BorrowedFd::borrow_raw(arrivals.watch.raw_fd()) };
            *place = fd.try_clone_to_owned().ok().map(|fd| Listening {
                arrivals: arrivals.clone(),
                fd: Fd::new(fd),
                armed: None,
            });
        }
        let Some(listening) = place else { return };
        if listening.armed.as_ref().is_none_or(Submission::is_complete) {
            listening.arrivals.watch.clear();
            let readable = op::PollAdd::new(listening.fd.clone(), libc::POLLIN as u32);
            listening.armed = Some(ring.start(readable, u8::MAX));
        }
    }
}

/// A look of an idle vCPU, with its ring, at the others.
pub(crate) struct Look<'a> {
    neighbours: &'a Neighbours,
    reaches: &'a Reaches,
    ring: &'a Ring,
}

impl<'a> Look<'a> {
    pub(crate) fn new(
        neighbours: &'a Neighbours,
        reaches: &'a Reaches,
        ring: &'a Ring,
    ) -> Look<'a> {
        neighbours.next_deadline.set(None);
        Look {
            neighbours,
            reaches,
            ring,
        }
    }

    fn look_again_at(&self, time: u64) {
        let next = &self.neighbours.next_deadline;
        next.set(Some(next.get().map_or(time, |next| next.min(time))));
    }

    /// Does the work of vCPU `index`, which is in a long poll; `run` calls the wakers. True:
    /// something became ready.
    pub(crate) fn stand_in_for(&mut self, index: usize, run: impl Fn(Vec<Foreign>)) -> bool {
        let Some(timers) = self.reaches.timers(index) else {
            return false;
        };
        let mut late = Vec::new();
        let mut found = timers.expire(clock::now(), |foreign| late.push(foreign)) != 0;
        if let Some(deadline) = timers.next_deadline() {
            self.look_again_at(deadline);
        }
        run(late);
        let Some(arrivals) = self.reaches.arrivals(index) else {
            return found;
        };
        let first = !arrivals.listened.swap(true, Ordering::SeqCst);
        if first {
            arrivals.watch.unmask();
        }
        self.neighbours.listen(self.ring, index, &arrivals);
        fence(Ordering::SeqCst);
        // The first time also for operations of earlier polls that are not handed over.
        if first || arrivals.watch.has_completions() {
            let wakers = match &*self.reaches.place(index) {
                Some(Reach {
                    arrivals: Some(there),
                    ..
                }) if Arc::ptr_eq(there, &arrivals) => there.turn(),
                _ => Vec::new(),
            };
            found |= !wakers.is_empty();
            run(wakers);
        } else if arrivals.watch.has_arrivals() {
            arrivals.interrupt();
        }
        found
    }
}
