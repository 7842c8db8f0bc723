//! Waits and system calls of the thread that serves a preemptible vCPU, if that thread did not
//! create the vCPU's io_uring, which only the creator may enter. Such a thread waits on a futex,
//! and the ring's thread makes the ring's system calls for it.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use upshift_ring::Proxy;

use super::roles::FIRST;
use super::vcpu::Preemptible;
use crate::futex::{futex_wait_for, futex_wake};
use crate::time::clock;

/// A futex, which is 1 while the current thread waits.
pub(super) struct Idle(AtomicU32);

impl Idle {
    pub(super) fn new() -> Idle {
        Idle(AtomicU32::new(0))
    }
}

impl Preemptible {
    /// Makes the current thread, which cannot wait in the ring, wait until
    /// [`end_idle`](Preemptible::end_idle) or for at most `timeout`.
    fn wait_idle(&self, timeout: Option<Duration>) {
        let Idle(word) = &self.idle;
        word.store(1, SeqCst);
        self.watch().unmask();
        if !self.watch().has_completions() {
            if self.watch().has_arrivals() {
                self.threads[FIRST].request_enter();
            }
            let max_wait = Duration::from_secs(1);
            let time = timeout.unwrap_or(max_wait).min(max_wait);
            futex_wait_for(word, 1, clock::nanos(time).max(1));
        }
        word.store(0, Relaxed);
        self.watch().mask();
    }

    pub(super) fn is_idle(&self) -> bool {
        self.idle.0.load(SeqCst) == 1
    }

    /// Ends the wait of the current thread, if that thread waits on the futex. Async-signal-safe.
    pub(crate) fn end_idle(&self) {
        if self.is_idle() {
            self.idle.0.store(0, SeqCst);
            futex_wake(&self.idle.0);
        }
    }
}

/// Lets the ring's thread make the system calls of the ring for the other threads of the vCPU.
pub(super) struct FirstThreadProxy(pub(super) *const Preemptible);

// SAFETY: the pointer leads to a vCPU whose shared state is `Sync`. The vCPU's ring holds the
// proxy, and only the current thread calls it.
unsafe impl Send for FirstThreadProxy {}
// SAFETY: as for `Send`.
unsafe impl Sync for FirstThreadProxy {}

impl Proxy for FirstThreadProxy {
    fn call(&self, job: &mut dyn FnMut()) -> bool {
        // SAFETY: the vCPU is alive. The ring calls its proxy only on threads that did not make the
        // ring, and these are threads of the vCPU, which keep the vCPU alive while they run. The
        // drop of the ring does not call the proxy, because the thread that made the ring drops it;
        // so the drop is sound even if `start` has failed and the vCPU is gone.
        let vcpu = unsafe { &*self.0 };
        let owner = &vcpu.threads[FIRST];
        // If arrivals have been fetched but the kernel's flag for them is still set
        // (`Ring::submit`), nothing wakes the owner. So completions are checked as well.
        let is_coming = owner.waits_in_ring.load(Relaxed)
            && vcpu.watch().has_arrivals()
            && !vcpu.watch().has_completions()
            && !owner.is_off_the_cpu();
        let grace = if is_coming { vcpu.rule().cost } else { 0 };
        vcpu.service
            .request(job, owner, grace, || vcpu.watch().wake())
    }

    fn wait(&self, timeout: Option<Duration>) {
        // SAFETY: the vCPU is alive, as in `call`.
        unsafe { &*self.0 }.wait_idle(timeout);
    }
}
