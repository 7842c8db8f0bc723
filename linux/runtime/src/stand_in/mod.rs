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

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use upshift_ring::{Fd, Submission, op};

use crate::stand_in::arrivals::{Arrivals, Listening, Reach};
use crate::time::clock;
use crate::user_code::foreign;
use crate::worker::Worker;

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
            listening.armed = Some(self.ring.start(readable, u8::MAX));
        }
    }
}
