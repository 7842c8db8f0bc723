//! Watching a ring from another thread: what has arrived, and a bell that rings when something does.
//!
//! The kernel signals an eventfd when it has the first completion to hand over, also while the ring's thread is busy and does
//! not enter. One bit in memory shared with the kernel masks it, so listening costs nothing but the signals one wants.
//!
//! The kernel signals only what makes an empty list non-empty: after [`Watch::unmask`] look at [`Watch::has_arrivals`], or
//! what came before is not noticed until the ring is entered. The caller puts a full barrier between the two.
//!
//! The kernel signals while the ring's thread is busy only in [`Mode::DeferTaskrun`](crate::Mode::DeferTaskrun): in the other
//! modes completions are made, and the bell rings, when that thread enters the kernel or is interrupted.

use crate::backlog::LEVELS;
use crate::ends::Ends;
use io_uring::cqueue::CompletionQueue;
use io_uring::squeue::SubmissionQueue;
use io_uring::types::Timespec;
use io_uring::{EnterFlags, IoUring};
use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::{fmt, io};

/// See [`Ring::watch`](crate::Ring::watch). Any thread; stays valid, and silent, when the ring is gone.
#[derive(Clone)]
pub struct Watch(Arc<Shared>);

struct Shared {
    bell: OwnedFd,
    levels: Arc<AtomicU64>,
    sq: ManuallyDrop<SubmissionQueue<'static>>,
    cq: ManuallyDrop<CompletionQueue<'static>>,
    ends: Ends,
    /// Keeps the queues mapped.
    ring: Arc<IoUring>,
}

// SAFETY: of the views only methods are called that load, or change atomically, words that are shared with the kernel. They are
// never dropped, so they never write back positions of their own. The mapping lives as long as `ring`.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Watch {
    /// A masked bell for this instance.
    pub(crate) fn new(ring: Arc<IoUring>, levels: Arc<AtomicU64>) -> io::Result<Self> {
        // SAFETY: no pointers involved.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a fresh descriptor without another owner.
        let bell = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: the views stay within a struct that owns the instance, and nothing is pushed or popped through them.
        let (sq, cq): (SubmissionQueue<'static>, CompletionQueue<'static>) = unsafe {
            let instance: &'static IoUring = &*Arc::as_ptr(&ring);
            (instance.submission_shared(), instance.completion_shared())
        };
        let (sq, cq) = (ManuallyDrop::new(sq), ManuallyDrop::new(cq));
        // SAFETY: used while the instance lives.
        let ends = unsafe { Ends::of(&cq) };
        cq.disable_eventfd();
        ring.submitter().register_eventfd(fd)?;
        Ok(Self(Arc::new(Shared {
            bell,
            levels,
            sq,
            cq,
            ends,
            ring,
        })))
    }

    /// Readable when the bell has rung; for `poll`.
    pub fn raw_fd(&self) -> RawFd {
        self.0.bell.as_raw_fd()
    }

    /// Rings the bell, masked or not. One `write`.
    pub fn ring_bell(&self) {
        let one = 1u64;
        // SAFETY: eight readable bytes. The only possible failure, a counter at its maximum, leaves it readable.
        unsafe { libc::write(self.raw_fd(), (&raw const one).cast(), 8) };
    }

    /// Silences the bell. One `read`.
    pub fn clear(&self) {
        let mut count = 0u64;
        // SAFETY: eight writable bytes; the descriptor does not block.
        unsafe { libc::read(self.raw_fd(), (&raw mut count).cast(), 8) };
    }

    /// From now on arrivals do not ring. One atomic step if they did.
    #[inline]
    pub fn mask(&self) {
        if !self.0.cq.eventfd_disabled() {
            self.0.cq.disable_eventfd();
        }
    }

    /// From now on the next arrival rings. One atomic step; a full barrier.
    #[inline]
    pub fn unmask(&self) {
        if !self.0.cq.eventfd_disabled() {
            fence(SeqCst);
            return;
        }
        self.0.cq.enable_eventfd();
        // There the atomic step is one.
        if !cfg!(target_arch = "x86_64") {
            fence(SeqCst);
        }
    }

    /// Is there anything that the ring's owner has not seen? A few loads.
    #[inline]
    pub fn has_arrivals(&self) -> bool {
        self.0.sq.taskrun() || self.0.sq.cq_overflow() || self.0.ends.unread() != 0
    }

    /// Are there completions to read? A few loads.
    #[inline]
    pub fn has_completions(&self) -> bool {
        self.0.ends.unread() != 0
    }

    /// Hands over what has been published, has the kernel make completions that it holds back, and rings the bell. On the thread that
    /// made the ring, and async-signal-safe: two system calls and a `write`.
    pub fn enter(&self) {
        let submitter = self.0.ring.submitter();
        let fetch = EnterFlags::GETEVENTS.bits();
        // A call that takes fewer entries than it says returns before it fetches. What fails is for the owner to meet.
        // SAFETY: no argument block.
        unsafe {
            let _ = submitter.enter::<libc::sigset_t>(u32::MAX, 0, 0, None);
            let _ = submitter.enter::<libc::sigset_t>(0, 0, fetch, None);
        }
        self.ring_bell();
    }

    /// Has the kernel make the completions that it holds back, if there are any. On the thread that made the ring, and async-signal-safe: at
    /// most one system call.
    pub fn fetch(&self) {
        if !self.0.sq.taskrun() {
            return;
        }
        let fetch = EnterFlags::GETEVENTS.bits();
        let submitter = self.0.ring.submitter();
        // SAFETY: no argument block.
        let _ = unsafe { submitter.enter::<libc::sigset_t>(0, 0, fetch, None) };
    }

    /// Hands over what has been published, if anything has. On the thread that made the ring, and async-signal-safe: at most one system call.
    pub fn hand_over(&self) {
        if self.has_published() {
            let submitter = self.0.ring.submitter();
            // What fails is for the owner to meet.
            // SAFETY: no argument block.
            let _ = unsafe { submitter.enter::<libc::sigset_t>(u32::MAX, 0, 0, None) };
        }
    }

    /// Hands over what has been published, and waits until there are completions to read, or a signal arrives that `mask` (the
    /// kernel's set: bit *n* - 1 for signal *n*) does not block. While completions wait to be read, until there are more, or for
    /// a millisecond. On the thread that made the ring, and async-signal-safe: one system call, and one for what has been published.
    ///
    /// # Errors
    /// Those of `io_uring_enter`; EINTR for a signal.
    pub fn wait(&self, mask: u64) -> io::Result<()> {
        // What another thread reads meanwhile moves the goal: hence the time.
        static UNREAD: Timespec = Timespec::new().nsec(1_000_000);
        self.hand_over();
        let submitter = self.0.ring.submitter();
        let unread = self.0.ends.unread();
        let argument = Argument {
            mask: &raw const mask as u64,
            mask_size: size_of::<u64>() as u32,
            reserved: 0,
            time: match unread {
                0 => 0,
                _ => &raw const UNREAD as u64,
            },
        };
        let flags = EnterFlags::GETEVENTS | EnterFlags::EXT_ARG;
        // SAFETY: the argument is what EXT_ARG announces, and it and what it points to live for the length of the call.
        unsafe { submitter.enter(0, unread + 1, flags.bits(), Some(&argument)) }.map(drop)
    }

    /// Are there entries that the kernel has not taken?
    fn has_published(&self) -> bool {
        // SAFETY: a view of its own, which is not dropped, so it writes nothing back.
        let view = ManuallyDrop::new(unsafe { self.0.ring.submission_shared() });
        !view.is_empty()
    }

    /// Bit L is set iff an operation or an armed stream that was started at level L has not completed. One load.
    #[inline]
    pub fn levels_in_flight(&self) -> u64 {
        self.0.levels.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("bell", &self.raw_fd())
            .field("has_arrivals", &self.has_arrivals())
            .finish_non_exhaustive()
    }
}

/// The kernel's `io_uring_getevents_arg`.
#[repr(C)]
struct Argument {
    mask: u64,
    mask_size: u32,
    reserved: u32,
    time: u64,
}

/// How many operations of each level are in flight; written by the owner.
pub(crate) struct Flights {
    counts: [Cell<u32>; LEVELS],
    all: Cell<usize>,
    levels: Arc<AtomicU64>,
}

impl Flights {
    pub(crate) fn new() -> Self {
        Self {
            counts: [const { Cell::new(0) }; LEVELS],
            all: Cell::new(0),
            levels: Arc::default(),
        }
    }

    /// How many there are, of all levels.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.all.get()
    }

    /// The bitmap of levels, for a [`Watch`].
    pub(crate) fn levels(&self) -> Arc<AtomicU64> {
        self.levels.clone()
    }

    #[inline]
    pub(crate) fn begin(&self, level: u8) {
        self.all.set(self.all.get() + 1);
        let count = &self.counts[usize::from(level) % LEVELS];
        count.set(count.get() + 1);
        if count.get() == 1 {
            self.publish(level);
        }
    }

    #[inline]
    pub(crate) fn end(&self, level: u8) {
        self.all.set(self.all.get() - 1);
        let count = &self.counts[usize::from(level) % LEVELS];
        count.set(count.get() - 1);
        if count.get() == 0 {
            self.publish(level);
        }
    }

    fn publish(&self, level: u8) {
        let bit = 1 << (usize::from(level) % LEVELS);
        let before = self.levels.load(Ordering::Relaxed);
        // One writer: no read-modify-write needed.
        self.levels.store(before ^ bit, Ordering::Relaxed);
    }
}
