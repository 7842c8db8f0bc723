//! What the scheduler asks of the place it runs in.
//!
//! A Linux process, a kernel and a test are different hosts of the same source.
//! The trait is the whole difference between them.

use alloc::boxed::Box;
use core::alloc::Layout;
use core::any::Any;
use core::marker::PhantomData;
use core::ptr::NonNull;
use core::task::RawWakerVTable;

use super::events::{Change, Poll, Waits};

/// What a panicking coroutine threw.
pub type Panic = Box<dyn Any + Send + 'static>;

/// Address of the vCPU that a thread serves, the answer of [`Host::current`]. It is made from the
/// pointer of [`Executor::vcpu`](crate::Executor::vcpu).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served(pub(crate) NonNull<()>);

/// The upcalls of the scheduler.
///
/// None of them may call back into the domain, except [`Host::catch`] through
/// the closure it is given.
///
/// # Safety
/// [`Host::current`] names a vCPU of this host, and only to a thread that has its
/// [`Executor`](crate::Executor). [`Host::allocate`] and [`Host::map`] return memory of the layout
/// asked for. [`Host::catch`] calls the closure, which may drop a pinned future.
/// A host that answers true to [`Host::has_heavy_barrier`] has such a barrier.
/// [`Host::waker_table`] is by [`waker_table!`](crate::waker_table), for this type.
pub unsafe trait Host: Sized + Send + Sync + 'static {
    /// Bytes of a page of the domain's table of coroutines, a power of two. Of its places for 64 bytes one is lost. With 4096 the table asks the
    /// global allocator for a page when it needs one. With more it asks for 1, 2, 4, … pages, and one more, by [`Host::map`].
    const TABLE_PAGE: usize = 4096;

    /// The table of the wakers of this host's coroutines, by [`waker_table!`](crate::waker_table).
    fn waker_table() -> &'static RawWakerVTable;

    /// Does the host want [`Host::changed`] now? A constant false costs nothing.
    #[inline]
    fn is_tracing(&self) -> bool {
        false
    }

    /// Monotonic time in ticks of the host's choice, comparable across vCPUs.
    /// Called at most once per poll; nanoseconds of cost matter.
    fn now(&self) -> u64;

    /// Returns the time when the clock has shown less than `before`, an earlier reading: `before`,
    /// or later. A host whose clock may be set back counts on from there; with others the vCPU's
    /// clock stands still until the host's has caught up.
    #[cold]
    fn now_after(&self, before: u64) -> u64 {
        before
    }

    /// The vCPU that the calling thread is serving, if any. An interrupt
    /// handler answers `None`: its wakes then go through the inbox.
    fn current(&self) -> Option<Served>;

    /// The parked vCPU `index` has work: make it come back from its wait.
    ///
    /// Called once per park at most, from any thread.
    fn pend(&self, index: usize);

    /// Called in a spin loop. No lock of this crate is held for longer than
    /// a few instructions, but a hypervisor or an oversubscribed kernel may
    /// stop the holder: after many `spins` give the CPU away.
    fn relax(&self, spins: u32) {
        let _ = spins;
        core::hint::spin_loop();
    }

    /// Has the host [`Host::heavy_barrier`]? Then the lock of a vCPU costs the thread that serves it no atomic step, as long as no other
    /// thread takes it. The same answer at all times. A constant false costs nothing.
    #[inline]
    fn has_heavy_barrier(&self) -> bool {
        false
    }

    /// Makes each thread that serves a vCPU, wherever it is, pass a full memory barrier before this returns, and the calling one too.
    /// Microseconds are good enough. Only if [`Host::has_heavy_barrier`].
    fn heavy_barrier(&self) {}

    /// The calling thread begins something that must not be interrupted for
    /// long, because others would wait for it: a wake that is half done, a lock
    /// of this crate. Nests. A host that suspends polls
    /// ([`Vcpu::suspend_current`](crate::Vcpu::suspend_current)) or takes interrupts on the stack
    /// of a poll holds them back until [`Host::leave`]. A nanosecond matters. No code of
    /// users runs in between: no destructor, and no waker but those of this crate.
    #[inline]
    fn enter() {}

    /// The end of what [`Host::enter`] began.
    #[inline]
    fn leave() {}

    /// Another thread has made something ready on vCPU `index`, which is not
    /// parked. From any thread; once per
    /// [`Vcpu::set_attended`](crate::Vcpu::set_attended), which asks for this call.
    fn attend(&self, index: usize) {
        let _ = index;
    }

    /// The poll that is under way on the calling thread has made something ready
    /// on its own vCPU, which is attended: more urgent than it, as urgent, or, if
    /// nothing of that waits, less. Cheap: it may come with every wake.
    fn waits_here(&self, waits: Waits) {
        let _ = waits;
    }

    /// A coroutine has taken a step, for traces. From whatever thread or handler
    /// did it, perhaps with a lock of this crate held; each step is told once,
    /// where it happens, before any thread can act on it.
    fn changed(&self, change: &Change) {
        let _ = change;
    }

    /// A poll on vCPU `index` has ended, at tick `ended`, after a call of
    /// [`Vcpu::watch_current_poll`](crate::Vcpu::watch_current_poll). On the thread that polled,
    /// between [`Host::enter`] and [`Host::leave`]: be brief.
    fn watched(&self, index: usize, poll: &Poll, ended: u64) {
        let _ = (index, poll, ended);
    }

    /// A detached coroutine has panicked in a poll on vCPU `index`: nobody will be told but the
    /// host. On the thread that polled, as a part of the poll.
    fn panicked(&self, index: usize, poll: &Poll) {
        let _ = (index, poll);
    }

    /// Memory for a coroutine's future; null if there is none. The global allocator's, unless the host knows better.
    ///
    /// # Safety
    /// The layout is not empty.
    #[inline]
    unsafe fn allocate(layout: Layout) -> *mut u8 {
        // SAFETY: passed on.
        unsafe { alloc::alloc::alloc(layout) }
    }

    /// Takes it back, on whatever thread.
    ///
    /// # Safety
    /// It came from [`Host::allocate`] with this layout, and is not used any more.
    #[inline]
    unsafe fn free(memory: *mut u8, layout: Layout) {
        // SAFETY: passed on.
        unsafe { alloc::alloc::dealloc(memory, layout) }
    }

    /// Zeroed memory for pages of the table, of a host whose [`Host::TABLE_PAGE`] is above 4096: it need not be there before it is used. Null if there is
    /// none. Called a few times in the life of a domain.
    ///
    /// # Safety
    /// The layout is not empty, and its alignment that of a word.
    unsafe fn map(layout: Layout) -> *mut u8 {
        // SAFETY: passed on.
        unsafe { alloc::alloc::alloc_zeroed(layout) }
    }

    /// Takes it back.
    ///
    /// # Safety
    /// It came from [`Host::map`] with this layout, and is not used any more.
    unsafe fn unmap(memory: *mut u8, layout: Layout) {
        // SAFETY: passed on.
        unsafe { alloc::alloc::dealloc(memory, layout) }
    }

    /// Runs `f` and returns what it returned, or what it threw. A host whose
    /// panics abort just calls it.
    ///
    /// # Errors
    /// The payload of a panic that unwound out of `f`.
    fn catch<R>(f: impl FnOnce() -> R) -> Result<R, Panic> {
        Ok(f())
    }
}

/// Is memory there only when it is used? Larger pages are for such a system. (Not under Miri, whose symbolic check of alignments takes none that is
/// computed.)
pub(crate) const fn is_lazy<H: Host>() -> bool {
    H::TABLE_PAGE > 4096 && !cfg!(miri)
}

/// Zeroed memory, by [`Host::map`] if that is lazy.
///
/// # Safety
/// As [`Host::map`], but for the alignment where memory is not lazy.
pub(crate) unsafe fn zeroed<H: Host>(layout: Layout) -> *mut u8 {
    // SAFETY: passed on.
    unsafe {
        match is_lazy::<H>() {
            true => H::map(layout),
            false => alloc::alloc::alloc_zeroed(layout),
        }
    }
}

/// Takes it back.
///
/// # Safety
/// It came from [`zeroed`] with this layout, and is not used any more.
pub(crate) unsafe fn take_back<H: Host>(memory: *mut u8, layout: Layout) {
    // SAFETY: passed on.
    unsafe {
        match is_lazy::<H>() {
            true => H::unmap(memory, layout),
            false => alloc::alloc::dealloc(memory, layout),
        }
    }
}

/// What the host must not interrupt; from [`Host::enter`] to its drop.
pub(crate) struct Critical<H: Host> {
    host: PhantomData<fn() -> H>,
}

impl<H: Host> Critical<H> {
    #[inline]
    pub(crate) fn enter() -> Critical<H> {
        H::enter();
        Critical { host: PhantomData }
    }

    /// Leaves for code that may take long, and enters again.
    #[cold]
    pub(crate) fn outside(self, foreign: impl FnOnce()) -> Critical<H> {
        drop(self);
        foreign();
        Critical::enter()
    }
}

impl<H: Host> Drop for Critical<H> {
    #[inline]
    fn drop(&mut self) {
        H::leave();
    }
}
