//! When the watcher of a vCPU comes unasked: its timer, and what keeps it from listening or from looking by the clock.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU64, fence};
use std::time::Duration;

use upshift_core::preempt::KEPT;

use crate::notice::told;
use crate::time::clock;

/// No timer is set.
pub(super) const NEVER: u64 = u64::MAX;

/// See the module. Written by the watcher and by the current thread.
pub(super) struct Alarm {
    timer: OwnedFd,
    /// When the timer goes off, ns; NEVER.
    armed: AtomicU64,
    /// By this tick the watcher looks at a poll behind which something waits.
    comes_by: AtomicU64,
    /// By this tick it looks whether a poll sleeps behind which something less urgent waits.
    sees_by: AtomicU64,
    /// Before this tick it is not to look by the clock: see [`Policy::timers_wait`](upshift_core::preempt::Policy::timers_wait).
    looks_from: AtomicU64,
    /// It does not listen before this time, ticks and ns.
    deaf_until: AtomicU64,
    deaf_until_ns: AtomicU64,
}

impl Alarm {
    pub(super) fn new() -> io::Result<Alarm> {
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: no pointers.
        let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) };
        if fd < 0 {
            let error = io::Error::last_os_error();
            let words = format!("no preemption: the watcher's timer: {error}");
            return Err(told(&error, words));
        }
        Ok(Alarm {
            // SAFETY: just made, and ours.
            timer: unsafe { OwnedFd::from_raw_fd(fd) },
            armed: AtomicU64::new(NEVER),
            comes_by: AtomicU64::new(0),
            sees_by: AtomicU64::new(0),
            looks_from: AtomicU64::new(0),
            deaf_until: AtomicU64::new(0),
            deaf_until_ns: AtomicU64::new(0),
        })
    }

    /// Readable when the timer has gone off; for `poll`.
    pub(super) fn raw_fd(&self) -> RawFd {
        self.timer.as_raw_fd()
    }

    /// Waits until the timer has gone off.
    pub(super) fn wait(&self) {
        let mut event = libc::pollfd {
            fd: self.raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: a pointer to a local.
        unsafe { libc::poll(&raw mut event, 1, -1) };
    }

    /// Has the timer go off at a time of `CLOCK_MONOTONIC`, ns, or before. From any thread of the vCPU.
    pub(super) fn arm(&self, at: u64) {
        // To set it to 0 would stop it for ever.
        let at = at.max(1);
        if at >= self.armed.load(Relaxed) || at >= self.armed.fetch_min(at, SeqCst) {
            return;
        }
        // What another thread has set meanwhile is earlier, and may have been overwritten.
        let mut at = at;
        loop {
            self.set(at);
            let armed = self.armed.load(SeqCst);
            if armed >= at {
                return;
            }
            at = armed;
        }
    }

    fn set(&self, at: u64) {
        // SAFETY: all-zero is a valid value of this plain struct.
        let mut time: libc::itimerspec = unsafe { std::mem::zeroed() };
        time.it_value.tv_sec = (at / 1_000_000_000) as i64;
        time.it_value.tv_nsec = (at % 1_000_000_000) as i64;
        let flags = libc::TFD_TIMER_ABSTIME;
        // SAFETY: a pointer to a local.
        unsafe {
            libc::timerfd_settime(self.raw_fd(), flags, &raw const time, std::ptr::null_mut())
        };
    }

    /// The timer is readable. A poll that begins, and takes for granted that it is still to go off, is seen by the look that follows.
    pub(super) fn take(&self) {
        let mut count = 0u64;
        // SAFETY: a pointer to a local of the size given; the descriptor does not block.
        let read = unsafe { libc::read(self.raw_fd(), (&raw mut count).cast(), size_of::<u64>()) };
        // Else it has been set anew meanwhile.
        if read > 0 {
            self.armed.store(NEVER, SeqCst);
            self.comes_by.store(0, SeqCst);
            self.sees_by.store(0, SeqCst);
            fence(SeqCst);
        }
    }

    /// Something waits behind a poll of this tick, and perhaps nothing comes, or rings: the watcher looks `cost` ns later, or as soon as it may.
    #[inline]
    pub(super) fn come_before_long(&self, ticks: u64, cost: impl FnOnce() -> u64) {
        if self.comes_by.load(Relaxed) <= ticks {
            self.come_by(ticks, cost());
        }
    }

    #[cold]
    fn come_by(&self, ticks: u64, cost: u64) {
        let cost = clock::to_ticks(Duration::from_nanos(cost));
        let by = (ticks + cost).max(self.looks_from.load(Relaxed));
        // Before the timer, as its end takes this back: what it says never outlives a timer that is set.
        self.comes_by.store(by, SeqCst);
        let wait = clock::from_ticks(by.saturating_sub(clock::ticks()));
        self.arm(clock::now() + clock::nanos(wait));
    }

    /// Something less urgent waits behind a poll of this tick, for its end or for its sleep: the watcher looks before it has slept for long.
    #[inline]
    pub(super) fn see_sleep(&self, ticks: u64) {
        if self.sees_by.load(Relaxed) <= ticks {
            let by = ticks + clock::to_ticks(Duration::from_nanos(KEPT));
            self.sees_by.store(by, SeqCst);
            self.arm(clock::now() + KEPT);
        }
    }

    /// Something has come that waits less: what was said before is not early enough.
    pub(super) fn comes_earlier(&self) {
        self.comes_by.store(0, Relaxed);
    }

    /// The watcher is not to look by the clock for `wait` ns.
    pub(super) fn looks_after(&self, wait: u64) {
        let from = match wait {
            0 => 0,
            _ => clock::ticks() + clock::to_ticks(Duration::from_nanos(wait)),
        };
        if self.looks_from.load(Relaxed) != from {
            self.looks_from.store(from, Relaxed);
        }
    }

    /// The watcher has looked too often for nothing, and hears again in `deaf` ns from `now`.
    pub(super) fn hears_after(&self, now: u64, deaf: u64) {
        if deaf == 0 && self.deaf_until_ns.load(Relaxed) == 0 {
            return;
        }
        let (ticks, until) = match deaf {
            0 => (0, 0),
            _ => (
                clock::ticks() + clock::to_ticks(Duration::from_nanos(deaf)),
                now + deaf,
            ),
        };
        self.deaf_until_ns.store(until, Relaxed);
        self.deaf_until.store(ticks, SeqCst);
    }

    /// At this tick, does the watcher not listen?
    #[inline]
    pub(super) fn is_deaf(&self, ticks: u64) -> bool {
        self.deaf_until.load(Relaxed) > ticks
    }

    /// When it does again, ns; `None`: it does.
    pub(super) fn deaf_until(&self) -> Option<u64> {
        Some(self.deaf_until_ns.load(Relaxed)).filter(|until| *until != 0)
    }
}
