//! A Linux process as a host of the scheduler.

use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use upshift_core::preempt::Waits;
use upshift_core::{Change, Host, MAX_VCPUS, Panic, Poll, Vcpu};
use upshift_ring::{Remote, Watch};

use crate::clock;
use crate::observe::Longest;
use crate::permit;
use crate::preempt::{self, Preemptible, PreemptionStats};
use crate::trace::Recorder;

thread_local! {
    static SERVED: Cell<Option<NonNull<Vcpu<Linux>>>> = const { Cell::new(None) };
}

/// The calling thread serves this vCPU from now on, or none.
///
/// # Safety
/// The caller has the vCPU's executor until it says otherwise here.
pub(crate) unsafe fn serve(vcpu: Option<NonNull<Vcpu<Linux>>>) {
    SERVED.set(vcpu);
}

/// The vCPU that the calling thread serves.
#[inline]
pub(crate) fn served() -> Option<NonNull<Vcpu<Linux>>> {
    // During the destruction of a thread its locals may be gone.
    SERVED.try_with(Cell::get).ok().flatten()
}

/// The scheduler's view of the process: clock, thread identity, wake-ups.
pub struct Linux {
    /// How to end the wait of each vCPU.
    remotes: Box<[Mutex<Option<Remote>>]>,
    /// How to wake the watcher of each preemptible vCPU.
    bells: Box<[Mutex<Option<Watch>>]>,
    /// The vCPUs that are preemptible.
    preemptible: Box<[Mutex<Option<Arc<Preemptible>>>]>,
    /// What is told of long polls.
    longest: OnceLock<Arc<Longest>>,
    recorder: Recorder,
    clock: clock::Ticks,
}

impl Linux {
    pub(crate) fn new() -> Linux {
        Linux {
            remotes: (0..MAX_VCPUS).map(|_| Mutex::new(None)).collect(),
            bells: (0..MAX_VCPUS).map(|_| Mutex::new(None)).collect(),
            preemptible: (0..MAX_VCPUS).map(|_| Mutex::new(None)).collect(),
            longest: OnceLock::new(),
            recorder: Recorder::new(),
            clock: clock::Ticks::new(),
        }
    }

    pub(crate) fn set_remote(&self, index: usize, remote: Option<Remote>) {
        *self.remotes[index]
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = remote;
    }

    pub(crate) fn set_preemptible(&self, index: usize, vcpu: Option<Arc<Preemptible>>) {
        *self.preemptible(index) = vcpu;
    }

    pub(crate) fn preemptible(&self, index: usize) -> MutexGuard<'_, Option<Arc<Preemptible>>> {
        self.preemptible[index]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the figures of all preemptible vCPUs.
    pub(crate) fn add_preemption_to(&self, stats: &mut PreemptionStats) {
        for index in 0..MAX_VCPUS {
            if let Some(vcpu) = &*self.preemptible(index) {
                vcpu.add_to(stats);
            }
        }
    }

    pub(crate) fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    pub(crate) fn set_longest(&self, longest: Arc<Longest>) {
        let _ = self.longest.set(longest);
    }

    pub(crate) fn set_bell(&self, index: usize, bell: Option<Watch>) {
        *self.bells[index]
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = bell;
    }
}

impl fmt::Debug for Linux {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Linux").finish_non_exhaustive()
    }
}

// SAFETY: `served` is what `serve` was told, whose contract is this one.
unsafe impl Host for Linux {
    #[inline]
    fn waker_table() -> &'static core::task::RawWakerVTable {
        upshift_core::waker_table!(Linux)
    }

    #[inline]
    fn is_tracing(&self) -> bool {
        self.recorder.is_on()
    }

    #[inline]
    fn changed(&self, change: &Change) {
        self.recorder.changed(change);
    }

    #[inline]
    fn now(&self) -> u64 {
        self.clock.ticks()
    }

    #[inline]
    fn current(&self) -> Option<NonNull<Vcpu<Linux>>> {
        served()
    }

    fn pend(&self, index: usize) {
        let remote = self.remotes[index]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(remote) = &*remote {
            remote.kick();
        }
        if let Some(vcpu) = &*self.preemptible(index) {
            vcpu.wake_idle();
        }
    }

    fn relax(&self, spins: u32) {
        if spins < 100 {
            core::hint::spin_loop();
        } else if spins < 200 {
            // The holder of the lock may be waiting for this CPU.
            std::thread::yield_now();
        } else {
            // And it may be less urgent than this thread.
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
    }

    #[inline]
    fn enter() {
        permit::enter();
    }

    #[inline]
    fn leave() {
        permit::leave();
    }

    #[inline]
    fn waits_here(&self, waits: Waits) {
        preempt::waits_here(waits);
    }

    fn attend(&self, index: usize) {
        let bell = self.bells[index]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(bell) = &*bell {
            bell.ring_bell();
        }
    }

    fn watched(&self, index: usize, poll: &Poll, ended: u64) {
        if let Some(longest) = self.longest.get() {
            longest.ended(index, poll, ended);
        }
    }

    #[inline]
    fn catch<R>(f: impl FnOnce() -> R) -> Result<R, Panic> {
        catch_unwind(AssertUnwindSafe(f))
    }
}
