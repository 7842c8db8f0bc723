//! The dispatcher: a thread that sleeps on a vCPU's ring, and announces arrivals while the vCPU's
//! own thread cannot, because other processes run instead of it.
//!
//! An *arrival* is a completion, a wake or a due timer that the vCPU has not processed yet. To
//! *announce* it is to publish its level on the board, the memory shared with the daemon. To *ring
//! the doorbell* is to wake the daemon.
//!
//! The daemon keeps the dispatcher above all threads that compute, so the dispatcher does as little
//! as an interrupt handler. It makes a few loads and an atomic OR, and rings the doorbell if the
//! order on the CPU may change. It is woken only while the vCPU listens (`post.rs`), that is, while
//! other processes compete and arrivals more urgent than the vCPU's poll are possible.

use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};
use std::sync::atomic::fence;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use upshift_board::{NO_LEVEL, Standing, Vcpu};
use upshift_core::Domain;
use upshift_ring::RingWatch;

use super::membership::Membership;
use super::post::Expected;
use crate::affinity;
use crate::host::Linux;
use crate::time::clock;
use crate::time::timers::Timers;

/// Longest time between two checks of the dispatcher for competing processes. The dispatcher must
/// check periodically, because a vCPU that was alone on its CPU does not listen, so nothing wakes
/// the dispatcher when competition begins.
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Handle to the thread. Its drop ends the thread.
pub(super) struct Dispatcher {
    ended: Arc<AtomicBool>,
    watch: RingWatch,
    thread: Option<JoinHandle<()>>,
}

/// Announces arrivals at a vCPU. Used by the dispatcher, or by the watcher of a preemptible vCPU,
/// which has no dispatcher.
pub(crate) struct Announcer {
    pub(super) domain: Domain<Linux>,
    pub(super) name: String,
    pub(super) membership: Arc<Membership>,
    pub(super) index: usize,
    pub(super) cpu: usize,
    pub(super) vcpu: Vcpu,
    pub(super) watch: RingWatch,
    pub(super) timers: Arc<Timers>,
    pub(super) expected: Arc<Expected>,
}

impl Dispatcher {
    /// Starts the thread, pinned to the CPU of the vCPU. Also returns the thread's id.
    pub(super) fn start(announcer: Arc<Announcer>) -> io::Result<(Dispatcher, i32)> {
        let ended = Arc::new(AtomicBool::new(false));
        let watch = announcer.watch.clone();
        let (ready_tx, ready_rx) = mpsc::sync_channel(1);
        let thread = thread::Builder::new()
            .name(format!("{}-{}/dispatcher", announcer.name, announcer.index))
            .stack_size(64 << 10)
            .spawn({
                let ended = ended.clone();
                move || {
                    // SAFETY: the call takes no pointers and cannot fail.
                    let tid = unsafe { libc::gettid() };
                    let pinned = affinity::pin(announcer.cpu);
                    let failed = pinned.is_err();
                    let _ = ready_tx.send(pinned.map(|()| tid));
                    if !failed {
                        announcer.run_until(&ended);
                    }
                }
            })?;
        let dispatcher = Dispatcher {
            ended,
            watch,
            thread: Some(thread),
        };
        let tid = ready_rx
            .recv()
            .map_err(|_| io::Error::other("the thread of a dispatcher died while it started"))??;
        Ok((dispatcher, tid))
    }
}

impl Drop for Dispatcher {
    fn drop(&mut self) {
        self.ended.store(true, Release);
        self.watch.notify();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has reported it already.
            let _ = thread.join();
        }
    }
}

impl Announcer {
    fn run_until(&self, ended: &AtomicBool) {
        while !ended.load(Acquire) {
            self.sleep();
            self.look();
        }
    }

    /// Announces arrivals, and makes further arrivals wake this thread, if other processes compete
    /// and arrivals may outrank the level that the vCPU has published.
    pub(crate) fn look(&self) {
        // While the vCPU sleeps, its published level already includes possible arrivals, so none of
        // them outranks it.
        let most_urgent_expected = self.expected.most_urgent(&self.watch);
        let may_be_outranked = most_urgent_expected < self.vcpu.line().claim().potential();
        if may_be_outranked && self.vcpu.standing() != Standing::UNCONTESTED {
            self.watch.unmask();
            fence(SeqCst);
            self.announce();
        }
    }

    fn sleep(&self) {
        let mut timeout = LOOK_INTERVAL;
        if let Some(deadline) = self.timers.next_deadline() {
            let time_left = Duration::from_nanos(deadline.saturating_sub(clock::now()));
            // A timer that is already due has been announced, so it need not shorten the sleep.
            timeout = timeout.min(time_left.max(Duration::from_millis(1)));
        }
        let mut poll_fd = libc::pollfd {
            fd: self.watch.raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let millis = timeout.as_micros().div_ceil(1000) as libc::c_int;
        // SAFETY: `poll_fd` is a valid array of one entry, and the length passed is one. An error
        // is ignored, because the caller then looks anyway.
        unsafe { libc::poll(&raw mut poll_fd, 1, millis) };
        if poll_fd.revents != 0 {
            self.watch.clear();
        }
    }

    /// Publishes the most urgent level of the arrivals that the vCPU has not seen yet.
    fn announce(&self) {
        let line = self.vcpu.line();
        let mut level = NO_LEVEL;
        if let Some(vcpu) = self.domain.vcpus().nth(self.index) {
            level = vcpu.bitmap().trailing_zeros() as u8;
        }
        let timer = self.timers.next_deadline();
        if self.watch.has_arrivals() || timer.is_some_and(|deadline| deadline <= clock::now()) {
            // The level of an arrival is known only once the vCPU has reaped it, so the most urgent
            // possible level counts.
            level = level.min(self.expected.most_urgent(&self.watch));
        }
        if level < line.claim().runnable() {
            self.membership.count_announcement();
            if self.vcpu.arrive(level).unwrap_or(false) {
                self.membership.count_doorbell();
            }
        }
    }
}
