//! Notification of other threads about arrivals: an epoll instance that watches the ring's own
//! instance, and an eventfd.
//!
//! The ring's instance is readable when a descriptor is ready that the owner has not fetched. The
//! *notifier* is a second instance that contains the first, one-shot. So an arrival wakes a thread
//! that sleeps on the notifier although the owner is busy, and wakes it once.
//!
//! | | unmasked (`wanted`) | masked |
//! |---|---|---|
//! | armed in the kernel | an arrival notifies | the next arrival may notify needlessly |
//! | not armed | an arrival has notified | silence |
//!
//! A masked notifier is disarmed before the owner fetches.
//!
//! Masking is one store, so a thread that polls repeatedly without a fetch makes no system call to
//! mask; a fetch with the notifier armed costs two system calls. If
//! [`has_arrivals`](Notifier::has_arrivals) returns `false`, the next arrival notifies the caller.

use crate::readiness::epoll::{self, Epoll, Event, NO_EVENT};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::Duration;

const ARRIVAL: u64 = 0;
const NOTIFIED: u64 = 1;

/// The notifier of a ring. Methods may be called on any thread unless marked "Owner only". It
/// outlives the ring.
pub(crate) struct Notifier {
    /// The ring's own instance; fetched from by the owner only.
    pub(crate) epoll: Epoll,
    /// Number of completions in the queue. Written by the owner.
    unread: AtomicU32,
    wanted: AtomicBool,
    armed: AtomicBool,
    /// Set when an arrival has notified, until the owner fetches.
    notified: AtomicBool,
    outer: OnceLock<Outer>,
}

struct Outer {
    epoll: Epoll,
    eventfd: OwnedFd,
    /// Ends the owner's wait for a signal.
    wake: OwnedFd,
}

impl Notifier {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: Epoll::new()?,
            unread: AtomicU32::new(0),
            wanted: AtomicBool::new(false),
            armed: AtomicBool::new(false),
            notified: AtomicBool::new(false),
            outer: OnceLock::new(),
        })
    }

    /// Registers the ring with the notifier, masked. EBUSY the second time.
    pub(crate) fn register(&self) -> io::Result<()> {
        let outer = Outer {
            epoll: Epoll::new()?,
            eventfd: epoll::eventfd()?,
            wake: epoll::eventfd()?,
        };
        let readable = libc::EPOLLIN as u32;
        outer
            .epoll
            .add(outer.eventfd.as_raw_fd(), readable, NOTIFIED)?;
        outer.epoll.add(self.epoll.raw_fd(), 0, ARRIVAL)?;
        let registered = self.outer.set(outer);
        registered.map_err(|_| io::Error::from_raw_os_error(libc::EBUSY))
    }

    /// Returns a descriptor that is readable when the notifier is notified.
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
        // The system call is made directly, because the kernel's set of signals has 64 bits.
        // SAFETY: one descriptor, no timeout, and a set that lives for the length of the call.
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

    /// Makes the descriptor unreadable. Up to two system calls.
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
                    self.notified.store(true, SeqCst);
                    self.armed.store(false, SeqCst);
                }
                _ => epoll::drain(&outer.eventfd),
            }
        }
    }

    /// Stops notifications of arrivals. Async-signal-safe.
    #[inline]
    pub(crate) fn mask(&self) {
        self.wanted.store(false, Relaxed);
    }

    /// Lets the next arrival notify; a full barrier. An arrival that has notified does not notify
    /// again before it is fetched: the owner sees it in [`is_notified`](Self::is_notified), other
    /// threads in [`has_arrivals`](Self::has_arrivals).
    #[inline]
    pub(crate) fn unmask(&self) {
        self.wanted.swap(true, SeqCst);
        let is_notified = || self.notified.load(SeqCst) && self.epoll.is_ready();
        if !self.armed.load(SeqCst) && !is_notified() {
            self.arm();
        }
    }

    /// Returns whether there are ready descriptors that the owner has not fetched, or completions
    /// that it has not read. One system call.
    pub(crate) fn has_arrivals(&self) -> bool {
        if self.has_unread() || self.epoll.is_ready() {
            return true;
        }
        self.arm_if_wanted();
        false
    }

    /// Returns whether an arrival has notified and has not been fetched.
    #[inline]
    pub(crate) fn is_notified(&self) -> bool {
        self.notified.load(Relaxed)
    }

    #[inline]
    pub(crate) fn has_unread(&self) -> bool {
        self.unread.load(Relaxed) != 0
    }

    /// Publishes the number of unread completions. Owner only.
    #[inline]
    pub(crate) fn set_unread(&self, unread: usize) {
        let unread = u32::try_from(unread).unwrap_or(u32::MAX);
        self.unread.store(unread, Release);
    }

    /// Announces a fetch, which may sleep. Arrivals that it fetches must not notify. Owner only.
    #[inline]
    pub(crate) fn begin_fetch(&self) {
        if self.notified.load(Relaxed) {
            self.notified.store(false, Relaxed);
        }
        if self.armed.load(Relaxed) && !self.wanted.load(Relaxed) {
            self.disarm();
        }
    }

    /// Ends a fetch. Owner only.
    #[inline]
    pub(crate) fn end_fetch(&self) {
        self.arm_if_wanted();
    }

    #[inline]
    fn arm_if_wanted(&self) {
        if self.wanted.load(SeqCst) && !self.armed.load(SeqCst) {
            self.arm();
        }
    }

    fn arm(&self) {
        if let Some(outer) = self.outer.get() {
            self.armed.store(true, SeqCst);
            let once = (libc::EPOLLIN | libc::EPOLLONESHOT) as u32;
            let _ = outer.epoll.change(self.epoll.raw_fd(), once, ARRIVAL);
        }
    }

    #[cold]
    fn disarm(&self) {
        if let Some(outer) = self.outer.get() {
            self.armed.store(false, SeqCst);
            let _ = outer.epoll.change(self.epoll.raw_fd(), 0, ARRIVAL);
            // Another thread may have unmasked meanwhile and seen the notifier armed.
            self.arm_if_wanted();
        }
    }
}
