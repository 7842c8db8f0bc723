//! A watch, through which other threads learn that a ring has completions to read (*arrivals*). An
//! eventfd signals them.
//!
//! The kernel signals the eventfd when it has the first completion to hand over, even while the
//! ring's thread is busy and does not enter. One bit in memory shared with the kernel masks the
//! eventfd, so a watch costs nothing but the signals that its user wants.
//!
//! The kernel signals only when an empty list becomes non-empty. So after [`RingWatch::unmask`] the
//! caller must check [`RingWatch::has_arrivals`]; otherwise an earlier arrival stays unnoticed
//! until the ring is entered. A full barrier is needed between the two calls; `unmask` contains it.
//!
//! The kernel signals while the ring's thread is busy only in
//! [`Mode::DeferTaskrun`](crate::Mode::DeferTaskrun). In the other modes of io_uring the
//! completions and the signal come when that thread enters the kernel or is interrupted. The
//! readiness driver always signals (`readiness/notifier.rs`).

use crate::backlog::LEVELS;
use crate::cq_positions::CqPositions;
use crate::readiness::epoll;
use crate::readiness::notifier::Notifier;
use crate::remote::Kick;
use io_uring::cqueue::CompletionQueue;
use io_uring::squeue::SubmissionQueue;
use io_uring::types::Timespec;
use io_uring::{EnterFlags, IoUring};
use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::{fmt, io};

/// A watch on a ring, for other threads; made by [`Ring::watch`](crate::Ring::watch). It may be
/// used on any thread, and stays valid, without signals, when the ring is gone.
#[derive(Clone)]
pub struct RingWatch {
    kind: Kind,
    levels: Arc<AtomicU64>,
}

#[derive(Clone)]
enum Kind {
    Kernel(Arc<Instance>),
    Readiness(Arc<Notifier>),
}

use Kind::{Kernel, Readiness};

impl RingWatch {
    pub(crate) fn new(
        ring: Arc<IoUring>,
        levels: Arc<AtomicU64>,
        kick: Arc<Kick>,
    ) -> io::Result<Self> {
        let kind = Kernel(Arc::new(Instance::new(ring, kick)?));
        Ok(Self { kind, levels })
    }

    pub(crate) fn from_notifier(notifier: Arc<Notifier>, levels: Arc<AtomicU64>) -> Self {
        let kind = Readiness(notifier);
        Self { kind, levels }
    }

    /// Returns a descriptor for `poll`, readable once an arrival was signalled.
    pub fn raw_fd(&self) -> RawFd {
        match &self.kind {
            Kernel(instance) => instance.eventfd.as_raw_fd(),
            Readiness(notifier) => notifier.raw_fd(),
        }
    }

    /// Signals the descriptor, masked or not. One `write`.
    pub fn notify(&self) {
        match &self.kind {
            Kernel(instance) => epoll::signal(&instance.eventfd),
            Readiness(notifier) => notifier.notify(),
        }
    }

    /// Clears the signal. One `read`; with the readiness driver up to two system calls.
    pub fn clear(&self) {
        match &self.kind {
            Kernel(instance) => epoll::drain(&instance.eventfd),
            Readiness(notifier) => notifier.clear(),
        }
    }

    /// Stops signals of arrivals. With the readiness driver the next arrival may still signal. One
    /// atomic operation if signals were on.
    #[inline]
    pub fn mask(&self) {
        match &self.kind {
            Kernel(instance) => instance.mask(),
            Readiness(notifier) => notifier.mask(),
        }
    }

    /// Lets the next arrival signal. Is a full barrier. One atomic operation; with the readiness
    /// driver sometimes a system call.
    #[inline]
    pub fn unmask(&self) {
        match &self.kind {
            Kernel(instance) => instance.unmask(),
            Readiness(notifier) => notifier.unmask(),
        }
    }

    /// Returns whether there are arrivals that the ring's owner has not seen. A few loads; with the
    /// readiness driver a system call.
    #[inline]
    pub fn has_arrivals(&self) -> bool {
        match &self.kind {
            Kernel(instance) => {
                instance.sq.taskrun()
                    || instance.sq.cq_overflow()
                    || instance.positions.unread() != 0
            }
            Readiness(notifier) => notifier.has_arrivals(),
        }
    }

    /// Returns whether there are completions that another thread can read while it stands in for
    /// the owner. With the readiness driver all arrivals are such completions. A few loads; with
    /// the readiness driver a system call.
    #[inline]
    pub fn has_completions(&self) -> bool {
        match &self.kind {
            Kernel(instance) => instance.positions.unread() != 0,
            Readiness(notifier) => notifier.has_arrivals(),
        }
    }

    /// Hands over published entries, has the kernel post the completions that it holds back, and
    /// signals. Called on the thread that made the ring; async-signal-safe. Two system calls and a
    /// `write`.
    pub fn enter(&self) {
        if let Kernel(instance) = &self.kind {
            instance.enter();
        }
        self.notify();
    }

    /// Has the kernel post the completions that it holds back, if there are any. Called on the
    /// thread that made the ring; async-signal-safe. At most one system call.
    pub fn fetch(&self) {
        if let Kernel(instance) = &self.kind {
            instance.fetch();
        }
    }

    /// Hands over published entries, if there are any. Called on the thread that made the ring;
    /// async-signal-safe. At most one system call.
    pub fn hand_over(&self) {
        if let Kernel(instance) = &self.kind {
            instance.hand_over();
        }
    }

    /// Hands over published entries, and waits for a completion to read or for a signal that `mask`
    /// (the kernel's set, with bit *n* - 1 for signal *n*) does not block. If completions are
    /// unread already, waits for further ones, for at most 20 ms. Called on the thread that made
    /// the ring; async-signal-safe. One system call, and another if there are published entries.
    ///
    /// With the readiness driver, whose arrivals any owner may fetch, the call waits for the signal
    /// alone. [`wake`](Self::wake) ends the wait with both drivers.
    ///
    /// # Errors
    /// Those of `io_uring_enter`; EINTR for a signal.
    pub fn wait(&self, mask: u64) -> io::Result<()> {
        match &self.kind {
            Kernel(instance) => instance.wait(mask),
            Readiness(notifier) => notifier.wait_for_wake(mask),
        }
    }

    /// Ends the [`wait`](Self::wait) under way, or the next one, by an eventfd instead of a signal.
    /// With io_uring the ring polls this eventfd, so the owner then reaps a completion that belongs
    /// to no operation. One `write`. May be called on any thread; async-signal-safe.
    pub fn wake(&self) {
        match &self.kind {
            Kernel(instance) => instance.kick.signal(),
            Readiness(notifier) => notifier.wake(),
        }
    }

    /// Returns the bitmap of levels in flight: bit L is set iff an operation or an armed stream
    /// that was started at level L has not completed. One load.
    #[inline]
    pub fn levels_in_flight(&self) -> u64 {
        self.levels.load(Ordering::Relaxed)
    }
}

/// An io_uring as seen from other threads.
struct Instance {
    eventfd: OwnedFd,
    sq: ManuallyDrop<SubmissionQueue<'static>>,
    cq: ManuallyDrop<CompletionQueue<'static>>,
    positions: CqPositions,
    /// The eventfd that the ring polls.
    kick: Arc<Kick>,
    /// Keeps the queues mapped.
    ring: Arc<IoUring>,
}

// SAFETY: the methods called on the views only load words shared with the kernel, or change them
// atomically, so threads cannot race on them. The views are never dropped, so they never write back
// positions of their own. The mapping lives as long as `ring`.
unsafe impl Send for Instance {}
// SAFETY: as above.
unsafe impl Sync for Instance {}

impl Instance {
    fn new(ring: Arc<IoUring>, kick: Arc<Kick>) -> io::Result<Self> {
        let eventfd = epoll::eventfd()?;
        // SAFETY: the views stay within a struct that owns the instance, and nothing is pushed or
        // popped through them.
        let (sq, cq): (SubmissionQueue<'static>, CompletionQueue<'static>) = unsafe {
            let instance: &'static IoUring = &*Arc::as_ptr(&ring);
            (instance.submission_shared(), instance.completion_shared())
        };
        let (sq, cq) = (ManuallyDrop::new(sq), ManuallyDrop::new(cq));
        // SAFETY: the positions are used only while the instance lives, because they lie in a
        // struct that owns it.
        let positions = unsafe { CqPositions::new(&cq) };
        cq.disable_eventfd();
        ring.submitter().register_eventfd(eventfd.as_raw_fd())?;
        Ok(Self {
            eventfd,
            sq,
            cq,
            positions,
            kick,
            ring,
        })
    }

    #[inline]
    fn mask(&self) {
        if !self.cq.eventfd_disabled() {
            self.cq.disable_eventfd();
        }
    }

    #[inline]
    fn unmask(&self) {
        if !self.cq.eventfd_disabled() {
            fence(SeqCst);
            return;
        }
        self.cq.enable_eventfd();
        // On x86-64 the atomic operation is a full barrier.
        if !cfg!(target_arch = "x86_64") {
            fence(SeqCst);
        }
    }

    fn enter(&self) {
        let submitter = self.ring.submitter();
        let fetch = EnterFlags::GETEVENTS.bits();
        // Entries and completions need separate calls, because a call that takes fewer entries than
        // it announces returns before it fetches. The owner's next enter returns any error.
        // SAFETY: the call passes no argument block, so no memory must be valid.
        unsafe {
            let _ = submitter.enter::<libc::sigset_t>(u32::MAX, 0, 0, None);
            let _ = submitter.enter::<libc::sigset_t>(0, 0, fetch, None);
        }
    }

    fn fetch(&self) {
        if !self.sq.taskrun() {
            return;
        }
        let fetch = EnterFlags::GETEVENTS.bits();
        let submitter = self.ring.submitter();
        // SAFETY: the call passes no argument block, so no memory must be valid.
        let _ = unsafe { submitter.enter::<libc::sigset_t>(0, 0, fetch, None) };
    }

    fn hand_over(&self) {
        if self.has_published() {
            let submitter = self.ring.submitter();
            // The owner's next enter returns any error.
            // SAFETY: the call passes no argument block, so no memory must be valid.
            let _ = unsafe { submitter.enter::<libc::sigset_t>(u32::MAX, 0, 0, None) };
        }
    }

    fn wait(&self, mask: u64) -> io::Result<()> {
        // If another thread reads completions between this load and the system call, the number of
        // completions that the call waits for is never reached. Therefore there is a timeout, which
        // is longer than a tick so that it needs no timer of its own. Arrivals signal the eventfd
        // even then.
        static UNREAD_TIMEOUT: Timespec = Timespec::new().nsec(20_000_000);
        self.hand_over();
        let submitter = self.ring.submitter();
        let unread = self.positions.unread();
        let argument = Argument {
            mask: &raw const mask as u64,
            mask_size: size_of::<u64>() as u32,
            reserved: 0,
            time: match unread {
                0 => 0,
                _ => &raw const UNREAD_TIMEOUT as u64,
            },
        };
        let flags = EnterFlags::GETEVENTS | EnterFlags::EXT_ARG;
        // SAFETY: the argument has the type that EXT_ARG announces. The argument and the values
        // that it points to outlive the call.
        unsafe { submitter.enter(0, unread + 1, flags.bits(), Some(&argument)) }.map(drop)
    }

    /// Returns whether there are entries that the kernel has not taken.
    fn has_published(&self) -> bool {
        // SAFETY: the view is only read, and is not dropped, so it writes nothing back to the queue
        // that the owner uses.
        let view = ManuallyDrop::new(unsafe { self.ring.submission_shared() });
        !view.is_empty()
    }
}

impl fmt::Debug for RingWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RingWatch")
            .field("fd", &self.raw_fd())
            .field("has_arrivals", &self.has_arrivals())
            .finish_non_exhaustive()
    }
}

/// The kernel's `struct io_uring_getevents_arg`.
#[repr(C)]
struct Argument {
    mask: u64,
    mask_size: u32,
    reserved: u32,
    time: u64,
}

/// Numbers of operations in flight by level, written by the owner.
pub(crate) struct InFlight {
    counts: [Cell<u32>; LEVELS],
    total: Cell<usize>,
    levels: Arc<AtomicU64>,
}

impl InFlight {
    pub(crate) fn new() -> Self {
        Self {
            counts: [const { Cell::new(0) }; LEVELS],
            total: Cell::new(0),
            levels: Arc::default(),
        }
    }

    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.total.get()
    }

    /// Returns the bitmap: bit L is set iff an operation of level L is in flight. One load.
    #[inline]
    pub(crate) fn bitmap(&self) -> u64 {
        self.levels.load(Ordering::Relaxed)
    }

    pub(crate) fn levels(&self) -> Arc<AtomicU64> {
        self.levels.clone()
    }

    #[inline]
    pub(crate) fn begin(&self, level: u8) {
        self.total.set(self.total.get() + 1);
        let count = &self.counts[usize::from(level) % LEVELS];
        count.set(count.get() + 1);
        if count.get() == 1 {
            self.publish(level);
        }
    }

    #[inline]
    pub(crate) fn end(&self, level: u8) {
        self.total.set(self.total.get() - 1);
        let count = &self.counts[usize::from(level) % LEVELS];
        count.set(count.get() - 1);
        if count.get() == 0 {
            self.publish(level);
        }
    }

    fn publish(&self, level: u8) {
        let bit = 1 << (usize::from(level) % LEVELS);
        let old = self.levels.load(Ordering::Relaxed);
        // The owner is the only writer, so it needs no read-modify-write.
        self.levels.store(old ^ bit, Ordering::Relaxed);
    }
}
