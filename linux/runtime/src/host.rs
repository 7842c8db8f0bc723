//! Implements [`Host`], the operating system's services that the scheduler in `upshift_core` needs,
//! for a Linux process.

use std::alloc::Layout;
use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;

use upshift_core::preempt::WaitingWork;
use upshift_core::{
    Change, CoroutineId, Domain, Host, Level, MAX_VCPUS, Panic, Poll, ServedVcpu, Vcpu,
};
use upshift_elevate::dispatch::{heavy_barrier, register_barrier};
use upshift_ring::{Remote, RingWatch};

use crate::memory::mapping;
use crate::observe::{self, LongestPolls, NamedPoll, Names};
use crate::preempt::permit::{self, Critical};
use crate::preempt::{self, PreemptionStats};
use crate::time::clock;
use crate::trace::recorder::Recorder;

thread_local! {
    static SERVED: Cell<Option<NonNull<Vcpu<Linux>>>> = const { Cell::new(None) };
}

/// Records the vCPU that the calling thread serves from now on; `None` for no vCPU.
///
/// # Safety
/// The calling thread has the vCPU's [`Executor`](upshift_core::Executor) until it calls this
/// function again.
pub(crate) unsafe fn serve(vcpu: Option<NonNull<Vcpu<Linux>>>) {
    SERVED.set(vcpu);
}

#[inline]
pub(crate) fn served_vcpu() -> Option<NonNull<Vcpu<Linux>>> {
    // During the destruction of a thread its locals may be gone.
    SERVED.try_with(Cell::get).ok().flatten()
}

#[inline]
pub(crate) fn current_id() -> Option<CoroutineId> {
    let _critical = Critical::enter();
    // SAFETY: the pointer is valid, because a vCPU exists while a thread serves it.
    served_vcpu().and_then(|vcpu| unsafe { vcpu.as_ref() }.current_id())
}

#[inline]
pub(crate) fn current_level() -> Option<Level> {
    let _critical = Critical::enter();
    // SAFETY: the pointer is valid, because a vCPU exists while a thread serves it.
    served_vcpu().and_then(|vcpu| unsafe { vcpu.as_ref() }.running_level())
}

/// Returns whether the waker is a coroutine's. If so, cloning or dropping the waker runs no user
/// code.
#[inline]
pub(crate) fn is_own_waker(waker: &Waker) -> bool {
    Domain::<Linux>::is_own_waker(waker)
}

/// A preemptible vCPU, as the rest of the runtime uses it. Dynamic calls are cheap enough, because
/// no method is called in every poll.
pub(crate) trait PreemptibleVcpu: Send + Sync {
    /// Serves the vCPU on the thread that created it, until `done` returns true, which is checked
    /// after each of its polls and waits.
    fn run(&self, done: &dyn Fn() -> bool);
    /// Returns the levels, as a bitmap, of pinned coroutines that have been picked from their queue
    /// and wait only for the vCPU.
    fn waiting_pinned_levels(&self) -> u64;
    /// Returns whether the vCPU has a thread for pinned coroutines.
    fn has_main_thread(&self) -> bool;
    /// Returns whether the calling thread is the thread for pinned coroutines, and serves the vCPU.
    fn polls_pinned_here(&self) -> bool;
    fn has_stopped_polls(&self) -> bool;
    /// Ends the vCPU's threads; called on the first thread. Returns false if a poll is still
    /// stopped. The threads are then left alone, so that stopped polls continue without the
    /// watcher.
    fn end(&self) -> bool;
    /// Ends the wait of the current thread, if that thread waits on a futex because it cannot enter
    /// the ring.
    fn wake_idle(&self);
    fn add_to(&self, stats: &mut PreemptionStats);
}

type MaybePreemptible = Option<Arc<dyn PreemptibleVcpu>>;

/// The services of the process that the scheduler uses, such as the clock, the identity of threads,
/// and wake-ups.
pub struct Linux {
    /// Handles that end the waits of vCPUs, by index.
    remotes: Box<[Mutex<Option<Remote>>]>,
    /// Handles that wake the watchers of preemptible vCPUs, by index.
    watches: Box<[Mutex<Option<RingWatch>>]>,
    preemptible: Box<[Mutex<MaybePreemptible>]>,
    longest: OnceLock<Arc<LongestPolls>>,
    recorder: Recorder,
    names: Names,
    /// Set if the runtime reports panics of detached coroutines.
    reports_panics: OnceLock<()>,
    clock: clock::Ticks,
    has_barrier: bool,
}

impl Linux {
    pub(crate) fn new() -> Linux {
        Linux {
            remotes: (0..MAX_VCPUS).map(|_| Mutex::new(None)).collect(),
            watches: (0..MAX_VCPUS).map(|_| Mutex::new(None)).collect(),
            preemptible: (0..MAX_VCPUS).map(|_| Mutex::new(None)).collect(),
            longest: OnceLock::new(),
            recorder: Recorder::new(),
            names: Names::default(),
            reports_panics: OnceLock::new(),
            clock: clock::Ticks::new(),
            // Without the barrier, each lock costs one more atomic operation; nothing else changes.
            has_barrier: register_barrier().is_ok(),
        }
    }

    pub(crate) fn set_remote(&self, index: usize, remote: Option<Remote>) {
        *self.remotes[index]
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = remote;
    }

    pub(crate) fn set_preemptible(&self, index: usize, vcpu: MaybePreemptible) {
        *self.preemptible(index) = vcpu;
    }

    pub(crate) fn preemptible(&self, index: usize) -> MutexGuard<'_, MaybePreemptible> {
        self.preemptible[index]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

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

    pub(crate) fn names(&self) -> &Names {
        &self.names
    }

    pub(crate) fn report_panics(&self) {
        let _ = self.reports_panics.set(());
    }

    pub(crate) fn set_longest(&self, longest: Arc<LongestPolls>) {
        let _ = self.longest.set(longest);
    }

    pub(crate) fn set_watch(&self, index: usize, watch: Option<RingWatch>) {
        *self.watches[index]
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = watch;
    }
}

impl Linux {
    fn named(&self, poll: &Poll) -> NamedPoll {
        NamedPoll::new(poll, self.names.last_work(poll))
    }
}

impl fmt::Debug for Linux {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Linux").finish_non_exhaustive()
    }
}

// SAFETY: `current` returns the vCPU that was passed to `serve`, by whose contract the calling
// thread has the vCPU's executor. `map` maps memory of the requested layout, `catch` calls its
// closure before it returns, `has_heavy_barrier` returns true only if the barrier has been
// registered, and `waker_table` returns the table of the macro.
unsafe impl Host for Linux {
    /// A megabyte, because unused address space costs nothing, and the page's number takes only one
    /// slot of 16,384.
    const TABLE_PAGE: usize = 1 << 20;

    #[inline]
    fn waker_table() -> &'static core::task::RawWakerVTable {
        upshift_core::waker_table!(Linux)
    }

    #[inline]
    fn is_tracing(&self) -> bool {
        self.recorder.is_on()
    }

    #[inline]
    fn on_step(&self, change: &Change) {
        self.recorder.changed(change);
    }

    #[inline]
    fn now(&self) -> u64 {
        self.clock.ticks()
    }

    fn now_after(&self, before: u64) -> u64 {
        clock::ticks_after(before)
    }

    #[inline]
    fn current(&self) -> Option<ServedVcpu> {
        served_vcpu().map(ServedVcpu::from)
    }

    fn kick(&self, index: usize) {
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
            // The holder may be less urgent than this thread.
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
    }

    #[inline]
    fn has_heavy_barrier(&self) -> bool {
        self.has_barrier
    }

    fn heavy_barrier(&self) {
        heavy_barrier();
    }

    #[inline]
    fn enter_critical() {
        permit::begin_use();
    }

    #[inline]
    fn leave_critical() {
        permit::end_use();
    }

    #[inline]
    fn notify_local_arrival(&self, waits: WaitingWork) {
        preempt::notify_local_arrival(waits);
    }

    fn notify_arrival(&self, index: usize) {
        let watch = self.watches[index]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(watch) = &*watch {
            watch.notify();
        }
    }

    fn on_watched_poll_end(&self, index: usize, poll: &Poll, ended: u64) {
        if let Some(longest) = self.longest.get() {
            longest.record_end(index, &self.named(poll), ended);
        }
    }

    fn on_panic(&self, index: usize, poll: &Poll) {
        if self.reports_panics.get().is_some() {
            observe::report_panic(index, &self.named(poll));
        }
    }

    unsafe fn map(layout: Layout) -> *mut u8 {
        mapping::map(layout)
    }

    unsafe fn unmap(memory: *mut u8, layout: Layout) {
        // SAFETY: the caller meets the contract of `Host::unmap`, which is also that of
        // `mapping::unmap`.
        unsafe { mapping::unmap(memory, layout) }
    }

    #[inline]
    fn catch<R>(f: impl FnOnce() -> R) -> Result<R, Panic> {
        catch_unwind(AssertUnwindSafe(f))
    }
}
