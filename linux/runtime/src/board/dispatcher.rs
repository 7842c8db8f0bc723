//! The dispatcher of a vCPU: a thread that sleeps behind its ring and announces what arrives while the vCPU's own thread is
//! behind other processes and cannot.
//!
//! The daemon keeps it above all that computes, so it does as little as an interrupt handler: some loads, an atomic or, and a
//! ring if that may change the order. It is woken only while the vCPU listens (`post.rs`): while something more urgent than
//! what it runs may come, and others compete.

use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};
use std::sync::atomic::fence;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use upshift_board::{NOTHING, Standing, Vcpu};
use upshift_core::Domain;
use upshift_ring::Watch;

use super::membership::Membership;
use super::post::Expected;
use crate::affinity;
use crate::host::Linux;
use crate::time::clock;
use crate::time::timers::Timers;

/// So often it looks whether others have come to compete since the vCPU decided not to listen.
pub(crate) const LOOK: Duration = Duration::from_millis(100);

/// Ends the thread when dropped.
pub(super) struct Dispatcher {
    ended: Arc<AtomicBool>,
    watch: Watch,
    thread: Option<JoinHandle<()>>,
}

/// What it looks at. A preemptible vCPU has a watcher, which looks as well, and no dispatcher.
pub(crate) struct Eyes {
    pub(super) domain: Domain<Linux>,
    /// Of the runtime; for the names of threads.
    pub(super) name: String,
    pub(super) membership: Arc<Membership>,
    pub(super) index: usize,
    pub(super) cpu: usize,
    pub(super) vcpu: Vcpu,
    pub(super) watch: Watch,
    pub(super) timers: Arc<Timers>,
    pub(super) expected: Arc<Expected>,
}

impl Dispatcher {
    /// Starts the thread; with it, its id.
    pub(super) fn start(eyes: Arc<Eyes>) -> io::Result<(Dispatcher, i32)> {
        let ended = Arc::new(AtomicBool::new(false));
        let watch = eyes.watch.clone();
        let (ready, is_ready) = mpsc::sync_channel(1);
        let thread = thread::Builder::new()
            .name(format!("{}-{}/dispatcher", eyes.name, eyes.index))
            .stack_size(64 << 10)
            .spawn({
                let ended = ended.clone();
                move || {
                    // SAFETY: cannot fail.
                    let tid = unsafe { libc::gettid() };
                    let pinned = affinity::pin(eyes.cpu);
                    let failed = pinned.is_err();
                    let _ = ready.send(pinned.map(|()| tid));
                    if !failed {
                        eyes.look_until(&ended);
                    }
                }
            })?;
        let dispatcher = Dispatcher {
            ended,
            watch,
            thread: Some(thread),
        };
        let tid = is_ready
            .recv()
            .map_err(|_| io::Error::other("the thread of a dispatcher ended before it began"))??;
        Ok((dispatcher, tid))
    }
}

impl Drop for Dispatcher {
    fn drop(&mut self) {
        self.ended.store(true, Release);
        self.watch.notify();
        if let Some(thread) = self.thread.take() {
            // One that panicked has said so already.
            let _ = thread.join();
        }
    }
}

impl Eyes {
    fn look_until(&self, ended: &AtomicBool) {
        while !ended.load(Acquire) {
            self.sleep();
            self.look();
        }
    }

    /// Announces what has come, and listens on, if others compete and something may come that outranks what the vCPU has said of itself.
    pub(crate) fn look(&self) {
        // A sleeper keeps the rank of what may come.
        let may_come = self.expected.most_urgent(&self.watch);
        let outranks = may_come < self.vcpu.line().claim().potential();
        if outranks && self.vcpu.standing() != Standing::ALONE {
            self.watch.unmask();
            fence(SeqCst);
            self.announce();
        }
    }

    fn sleep(&self) {
        let mut timeout = LOOK;
        if let Some(deadline) = self.timers.next_deadline() {
            let left = Duration::from_nanos(deadline.saturating_sub(clock::now()));
            // One that is due has been announced.
            timeout = timeout.min(left.max(Duration::from_millis(1)));
        }
        let mut polled = libc::pollfd {
            fd: self.watch.raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let millis = timeout.as_micros().div_ceil(1000) as libc::c_int;
        // SAFETY: a pointer to a local, of the length given. An error means: look.
        unsafe { libc::poll(&raw mut polled, 1, millis) };
        if polled.revents != 0 {
            self.watch.clear();
        }
    }

    /// Publishes what has come since the vCPU looked last.
    fn announce(&self) {
        let line = self.vcpu.line();
        let mut level = NOTHING;
        if let Some(vcpu) = self.domain.vcpus().nth(self.index) {
            level = vcpu.bitmap().trailing_zeros() as u8;
        }
        let timer = self.timers.next_deadline();
        if self.watch.has_arrivals() || timer.is_some_and(|deadline| deadline <= clock::now()) {
            // Which coroutine it is for is known only when it has been reaped.
            level = level.min(self.expected.most_urgent(&self.watch));
        }
        if level < line.claim().runnable() {
            self.membership.count_announcement();
            if self.vcpu.arrive(level).unwrap_or(false) {
                self.membership.count_ring();
            }
        }
    }
}
