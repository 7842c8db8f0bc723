//! The interface between the scheduler and its environment.
//!
//! [`Host`] is a trait, so that a Linux process, a kernel and a test can run the same scheduler.

use alloc::boxed::Box;
use core::alloc::Layout;
use core::any::Any;
use core::marker::PhantomData;
use core::ptr::NonNull;
use core::task::RawWakerVTable;

use super::events::{Change, Poll, WaitingWork};

/// Payload of a coroutine's panic.
pub type Panic = Box<dyn Any + Send + 'static>;

/// Address of the vCPU that a thread serves, returned by [`Host::current`] and created from the
/// pointer that [`Executor::vcpu`](crate::Executor::vcpu) returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServedVcpu(pub(crate) NonNull<()>);

/// The calls that the scheduler makes to its environment.
///
/// None of the methods may call back into the domain, except [`Host::catch`] through the closure
/// that it is given.
///
/// # Safety
/// [`Host::current`] returns a vCPU of this host, and only to the thread that has the vCPU's
/// [`Executor`](crate::Executor). [`Host::allocate`] and [`Host::map`] return memory of the
/// requested layout. [`Host::catch`] calls the closure before it returns. It must not return an
/// error instead of calling the closure, which may have to drop a pinned future before the memory
/// of the future is used again. If [`Host::has_heavy_barrier`] returns true,
/// [`Host::heavy_barrier`] does what its description says. [`Host::waker_table`] returns the table
/// that [`waker_table!`](crate::waker_table) makes for this type.
pub unsafe trait Host: Sized + Send + Sync + 'static {
    /// Bytes of a page of the domain's table of coroutines, a power of two. A page consists of
    /// slots of 64 bytes, the first of which is a header. With 4096 the table asks the global
    /// allocator for each page. With a larger size it asks [`Host::map`] for 1, 2, 4, … pages, and
    /// each time for one page more, so that it can align them.
    const TABLE_PAGE: usize = 4096;

    /// Returns the table of the wakers of this host's coroutines, made by
    /// [`waker_table!`](crate::waker_table).
    fn waker_table() -> &'static RawWakerVTable;

    /// Returns whether the host wants calls of [`Host::on_step`] now. A constant false costs
    /// nothing.
    #[inline]
    fn is_tracing(&self) -> bool {
        false
    }

    /// Returns monotonic time in ticks of the host's choice, comparable across vCPUs. Called about
    /// once per poll, and for each wake from another thread, so nanoseconds of cost matter.
    fn now(&self) -> u64;

    /// Returns the time to use when the clock has shown less than `before`, an earlier reading:
    /// `before` or later. A host whose clock may be set back should continue to count from
    /// `before`. The default returns `before`, so the vCPU's clock stands still until the host's
    /// clock has caught up.
    #[cold]
    fn now_after(&self, before: u64) -> u64 {
        before
    }

    /// Returns the vCPU that the calling thread serves, if any. Returns `None` in an interrupt
    /// handler, so that its wakes go through the inbox, like those of other threads.
    fn current(&self) -> Option<ServedVcpu>;

    /// Ends the wait of vCPU `index`, which is parked and has work.
    ///
    /// Called at most once per park, from any thread.
    fn kick(&self, index: usize);

    /// Called in each iteration of a spin loop, with the number of iterations so far. Locks of this
    /// crate are held for a few instructions, but a hypervisor or an oversubscribed kernel may stop
    /// the holder. So after many `spins` an implementation should yield the CPU to other threads.
    fn relax(&self, spins: u32) {
        let _ = spins;
        core::hint::spin_loop();
    }

    /// Returns whether the host has [`Host::heavy_barrier`]. If so, the thread that serves a vCPU
    /// takes the vCPU's lock without an atomic read-modify-write while no other thread takes the
    /// lock. Must always return the same value. A constant false costs nothing.
    #[inline]
    fn has_heavy_barrier(&self) -> bool {
        false
    }

    /// Makes the calling thread and each thread that serves a vCPU, wherever it runs, pass a full
    /// memory barrier before this returns. Called only if [`Host::has_heavy_barrier`] returns true,
    /// and rarely, because it may take microseconds.
    fn heavy_barrier(&self) {}

    /// Begins a critical section. The calling thread is in the middle of a wake or is about to take
    /// a lock of this crate, so other threads would wait if it were interrupted for long. Sections
    /// nest. A host that suspends polls ([`Vcpu::suspend_current`](crate::Vcpu::suspend_current))
    /// or takes interrupts on the stack of a poll must delay suspensions and interrupts until the
    /// matching [`Host::leave_critical`]. Each nanosecond of cost matters. No user code runs inside
    /// a section: no destructor, and no waker of another executor.
    #[inline]
    fn enter_critical() {}

    /// Ends the critical section that [`Host::enter_critical`] began.
    #[inline]
    fn leave_critical() {}

    /// Notifies the host that another thread has made a coroutine ready on vCPU `index`, which is
    /// not parked. Called from any thread, at most once after each request by
    /// [`Vcpu::set_arrival_notice`](crate::Vcpu::set_arrival_notice).
    fn notify_arrival(&self, index: usize) {
        let _ = index;
    }

    /// Reports that the poll under way on the calling thread has made a coroutine ready on the vCPU
    /// that runs the poll, while that vCPU's arrival notice is set. `waits` is the most urgent kind
    /// of work that this poll delays. Must be cheap, because it may be called with every wake.
    fn notify_local_arrival(&self, waits: WaitingWork) {
        let _ = waits;
    }

    /// Reports a step of a coroutine, for traces. Called from the thread or interrupt handler that
    /// makes the step, perhaps with a lock of this crate held. Each step is reported once, before
    /// any other thread can act on it.
    fn on_step(&self, change: &Change) {
        let _ = change;
    }

    /// Reports that a poll on vCPU `index` has ended, at tick `ended`, after a call of
    /// [`Vcpu::watch_current_poll`](crate::Vcpu::watch_current_poll). Called on the thread that
    /// polled, between [`Host::enter_critical`] and [`Host::leave_critical`], so it must be brief.
    fn on_watched_poll_end(&self, index: usize, poll: &Poll, ended: u64) {
        let _ = (index, poll, ended);
    }

    /// Reports that a detached coroutine has panicked in a poll on vCPU `index`. It has no join
    /// handle that could report the panic. Called on the polling thread, as a part of the poll.
    fn on_panic(&self, index: usize, poll: &Poll) {
        let _ = (index, poll);
    }

    /// Allocates memory for a coroutine's future; returns null if there is none. The default is the
    /// global allocator.
    ///
    /// # Safety
    /// The layout is not empty.
    #[inline]
    unsafe fn allocate(layout: Layout) -> *mut u8 {
        // SAFETY: the contract is the caller's.
        unsafe { alloc::alloc::alloc(layout) }
    }

    /// Frees memory of [`Host::allocate`], on any thread.
    ///
    /// # Safety
    /// `memory` came from [`Host::allocate`] with this layout, and is not used any more.
    #[inline]
    unsafe fn free(memory: *mut u8, layout: Layout) {
        // SAFETY: the contract is the caller's.
        unsafe { alloc::alloc::dealloc(memory, layout) }
    }

    /// Maps zeroed memory for pages of the table, if [`Host::TABLE_PAGE`] is above 4096; returns
    /// null if there is none. The memory need not be resident before it is used. Called a few times
    /// in the life of a domain.
    ///
    /// # Safety
    /// The layout is not empty, and its alignment is that of a word.
    unsafe fn map(layout: Layout) -> *mut u8 {
        // SAFETY: the contract is the caller's.
        unsafe { alloc::alloc::alloc_zeroed(layout) }
    }

    /// Unmaps memory of [`Host::map`].
    ///
    /// # Safety
    /// `memory` came from [`Host::map`] with this layout, and is not used any more.
    unsafe fn unmap(memory: *mut u8, layout: Layout) {
        // SAFETY: the contract is the caller's.
        unsafe { alloc::alloc::dealloc(memory, layout) }
    }

    /// Runs `f` and returns its result, or the payload of its panic. If a panic aborts the process,
    /// an implementation just calls `f`, as the default does.
    ///
    /// # Errors
    /// The payload of a panic that unwound out of `f`.
    fn catch<R>(f: impl FnOnce() -> R) -> Result<R, Panic> {
        Ok(f())
    }
}

/// Returns whether pages become resident only when they are used, so that the table asks for large
/// pages. False under Miri, whose symbolic check of alignments refuses computed alignments.
pub(crate) const fn is_lazy<H: Host>() -> bool {
    H::TABLE_PAGE > 4096 && !cfg!(miri)
}

/// # Safety
/// The contract of [`Host::map`], except that any alignment is allowed unless [`is_lazy`].
pub(crate) unsafe fn allocate_zeroed<H: Host>(layout: Layout) -> *mut u8 {
    // SAFETY: the layout is not empty, by the caller's contract, and fits the call that is made.
    unsafe {
        if is_lazy::<H>() {
            H::map(layout)
        } else {
            alloc::alloc::alloc_zeroed(layout)
        }
    }
}

/// # Safety
/// `memory` came from [`allocate_zeroed`] with this layout, and is not used any more.
pub(crate) unsafe fn deallocate<H: Host>(memory: *mut u8, layout: Layout) {
    // SAFETY: `memory` came from the matching call, with this layout.
    unsafe {
        if is_lazy::<H>() {
            H::unmap(memory, layout);
        } else {
            alloc::alloc::dealloc(memory, layout);
        }
    }
}

/// A critical section of the host ([`Host::enter_critical`]), which ends when this value is
/// dropped.
pub(crate) struct Critical<H: Host> {
    host: PhantomData<fn() -> H>,
}

impl<H: Host> Critical<H> {
    #[inline]
    pub(crate) fn enter() -> Critical<H> {
        H::enter_critical();
        Critical { host: PhantomData }
    }

    /// Leaves the section, runs user code, which may take long, and enters again.
    #[cold]
    pub(crate) fn run_outside(self, user_code: impl FnOnce()) -> Critical<H> {
        drop(self);
        user_code();
        Critical::enter()
    }
}

impl<H: Host> Drop for Critical<H> {
    #[inline]
    fn drop(&mut self) {
        H::leave_critical();
    }
}
