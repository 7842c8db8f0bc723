//! Notifies other threads of *arrivals*, which are ready descriptors that the ring's owner has not
//! handled yet.
//!
//! The ring has its own, *inner* epoll instance. It is readable while a descriptor is ready and the
//! owner has not fetched this event. The notifier adds an *outer* epoll instance. Registered with
//! the outer instance are the inner one, with EPOLLONESHOT, and an eventfd for explicit
//! notifications. A thread that sleeps on the outer instance is therefore woken once per arming,
//! even while the owner is busy.
//!
//! | | unmasked | masked |
//! |---|---|---|
//! | armed in the kernel | the next arrival notifies | the next arrival may notify needlessly |
//! | not armed | an arrival has notified already | arrivals do not notify |
//!
//! If [`has_arrivals`](Notifier::has_arrivals) returns `false` while arrivals are unmasked, the
//! next arrival makes the descriptor of the outer instance readable.
//!
//! Masking is one store and no system call, so that it is cheap for a thread that polls repeatedly
//! without a fetch. A fetch disarms a masked notifier that is still armed, at the cost of a second
//! system call.

use crate::readiness::epoll::{self, Epoll, Event, NO_EVENT};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::Duration;

const ARRIVAL: u64 = 0;
const EXPLICIT: u64 = 1;

/// The notifier of a ring, which it may outlive. Methods may be called on any thread unless marked
/// "Owner only".
pub(crate) struct Notifier {
    pub(crate) epoll: Epoll,
    /// Number of completions in the queue. Written by the owner.
    unread: AtomicU32,
    /// Set while arrivals are unmasked.
    is_unmasked: AtomicBool,
    /// Set while the inner instance is armed in the outer one.
    is_armed: AtomicBool,
    /// Set when the notification of an arrival was cleared; unset when the owner fetches.
    arrival_notified: AtomicBool,
    outer: OnceLock<Outer>,
}

struct Outer {
    epoll: Epoll,
    /// The eventfd that [`Notifier::notify`] makes readable.
    eventfd: OwnedFd,
    /// The eventfd that ends [`Notifier::wait_for_wake`].
    wake: OwnedFd,
}

impl Notifier {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: Epoll::new()?,
            unread: AtomicU32::new(0),
            is_unmasked: AtomicBool::new(false),
            is_armed: AtomicBool::new(false),
            arrival_notified: AtomicBool::new(false),
            outer: OnceLock::new(),
        })
    }

    /// Creates the outer instance, and registers the inner one and the eventfd with it. Arrivals
    /// are masked. Fails with EBUSY the second time.
    pub(crate) fn register(&self) -> io::Result<()> {
        let outer = Outer {
            epoll: Epoll::new()?,
            eventfd: epoll::eventfd()?,
            wake: epoll::eventfd()?,
        };
        let readable = libc::EPOLLIN as u32;
        outer
            .epoll
            .add(outer.eventfd.as_raw_fd(), readable, EXPLICIT)?;
        outer.epoll.add(self.epoll.raw_fd(), 0, ARRIVAL)?;
        let registered = self.outer.set(outer);
        registered.map_err(|_| io::Error::from_raw_os_error(libc::EBUSY))
    }

    /// Returns the descriptor of the outer instance, which is readable from a notification until
    /// [`clear`](Self::clear). Returns -1 before [`register`](Self::register).
    pub(crate) fn raw_fd(&self) -> RawFd {
        self.outer.get().map_or(-1, |outer| outer.epoll.raw_fd())
    }

    /// Notifies, masked or not. Async-signal-safe.
    pub(crate) fn notify(&self) {
        if let Some(outer) = self.outer.get() {
            epoll::signal(&outer.eventfd);
        }
    }

    /// Ends the [wait](Self::wait_for_wake) under way, or the next one. Async-signal-safe.
    pub(crate) fn wake(&self) {
        if let Some(outer) = self.outer.get() {
            epoll::signal(&outer.wake);
        }
    }

    /// Waits for [`wake`](Self::wake), or for a signal that `mask` does not block.
    /// Async-signal-safe.
    pub(crate) fn wait_for_wake(&self, mask: u64) -> io::Result<()> {
        let Some(outer) = self.outer.get() else {
            return Ok(());
        };
        let mut event = libc::pollfd {
            fd: outer.wake.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let no_timeout = ptr::null::<libc::timespec>();
        // The system call is made directly, because libc's `sigset_t` is larger than the kernel's
        // set of 64 bits.
        // SAFETY: the pointers to one `pollfd` and to the set are valid during the call; the null
        // pointer means no timeout.
        let result = unsafe {
            libc::syscall(
                libc::SYS_ppoll,
                &raw mut event,
                1,
                no_timeout,
                &raw const mask,
                size_of::<u64>(),
            )
        };
        epoll::check_result(result as libc::c_int)?;
        epoll::drain(&outer.wake);
        Ok(())
    }

    /// Makes the descriptor of [`raw_fd`](Self::raw_fd) unreadable. Up to two system calls.
    pub(crate) fn clear(&self) {
        let Some(outer) = self.outer.get() else {
            return;
        };
        let mut events = [NO_EVENT; 2];
        let fetched = outer.epoll.wait(&mut events, Some(Duration::ZERO));
        for event in &events[..fetched.unwrap_or(0)] {
            let Event { u64: token, .. } = *event;
            match token {
                ARRIVAL => {
                    self.arrival_notified.store(true, SeqCst);
                    self.is_armed.store(false, SeqCst);
                }
                _ => epoll::drain(&outer.eventfd),
            }
        }
    }

    /// Stops notifications of arrivals. Async-signal-safe.
    #[inline]
    pub(crate) fn mask(&self) {
        self.is_unmasked.store(false, Relaxed);
    }

    /// Lets the next arrival notify. Is a full barrier. An arrival that has notified does not
    /// notify again before the owner fetches it. Until then [`is_notified`](Self::is_notified)
    /// reports this arrival to the owner, and [`has_arrivals`](Self::has_arrivals) to other
    /// threads.
    #[inline]
    pub(crate) fn unmask(&self) {
        self.is_unmasked.swap(true, SeqCst);
        let is_notified = || self.arrival_notified.load(SeqCst) && self.epoll.is_ready();
        if !self.is_armed.load(SeqCst) && !is_notified() {
            self.arm();
        }
    }

    /// Returns whether there are ready descriptors that the owner has not fetched, or completions
    /// that the owner has not read. Usually one system call.
    pub(crate) fn has_arrivals(&self) -> bool {
        if self.has_unread() || self.epoll.is_ready() {
            return true;
        }
        self.arm_if_unmasked();
        false
    }

    /// Returns whether an arrival has notified and has not been fetched.
    #[inline]
    pub(crate) fn is_notified(&self) -> bool {
        self.arrival_notified.load(Relaxed)
    }

    #[inline]
    pub(crate) fn has_unread(&self) -> bool {
        self.unread.load(Relaxed) != 0
    }

    #[inline]
    pub(crate) fn set_unread(&self, unread: usize) {
        let unread = u32::try_from(unread).unwrap_or(u32::MAX);
        self.unread.store(unread, Release);
    }

    /// Prepares for a fetch, which may sleep. While arrivals are masked, those that the fetch waits
    /// for must not notify. Owner only.
    #[inline]
    pub(crate) fn begin_fetch(&self) {
        if self.arrival_notified.load(Relaxed) {
            self.arrival_notified.store(false, Relaxed);
        }
        if self.is_armed.load(Relaxed) && !self.is_unmasked.load(Relaxed) {
            self.disarm();
        }
    }

    #[inline]
    pub(crate) fn end_fetch(&self) {
        self.arm_if_unmasked();
    }

    #[inline]
    fn arm_if_unmasked(&self) {
        if self.is_unmasked.load(SeqCst) && !self.is_armed.load(SeqCst) {
            self.arm();
        }
    }

    fn arm(&self) {
        if let Some(outer) = self.outer.get() {
            self.is_armed.store(true, SeqCst);
            let once = (libc::EPOLLIN | libc::EPOLLONESHOT) as u32;
            let _ = outer.epoll.change(self.epoll.raw_fd(), once, ARRIVAL);
        }
    }

    #[cold]
    fn disarm(&self) {
        if let Some(outer) = self.outer.get() {
            self.is_armed.store(false, SeqCst);
            let _ = outer.epoll.change(self.epoll.raw_fd(), 0, ARRIVAL);
            // Another thread may have unmasked meanwhile. It saw the notifier armed, and did not
            // arm it.
            self.arm_if_unmasked();
        }
    }
}
