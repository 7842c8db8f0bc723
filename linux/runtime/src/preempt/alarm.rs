//! The timer with which a vCPU's watcher looks at polls when no event wakes it, and the watcher's
//! *rests*, times in which arrivals of I/O do not wake it.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU64, fence};
use std::time::Duration;

use crate::notice::explained;
use crate::time::clock;

/// Expiry of a timer that is not set.
pub(super) const NEVER: u64 = u64::MAX;

/// The timer of a watcher, and the end of its rest.
pub(super) struct Alarm {
    timer: OwnedFd,
    /// Time at which the timer goes off in ns, or NEVER.
    expiry: AtomicU64,
    /// The same time in ticks, or a time in the past. This is only a hint; `expiry` decides.
    expiry_ticks: AtomicU64,
    /// End of the watcher's rest in ticks, or 0.
    rest_end: AtomicU64,
    /// Time to which a poll has last postponed the timer during a rest, ns.
    postponed_expiry: AtomicU64,
}

impl Alarm {
    pub(super) fn new() -> io::Result<Alarm> {
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: the call takes no pointers.
        let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) };
        if fd < 0 {
            let error = io::Error::last_os_error();
            let text = format!("no preemption: cannot create the timer of a watcher: {error}");
            return Err(explained(&error, text));
        }
        Ok(Alarm {
            // SAFETY: the descriptor was just created, and nothing else owns it.
            timer: unsafe { OwnedFd::from_raw_fd(fd) },
            expiry: AtomicU64::new(NEVER),
            expiry_ticks: AtomicU64::new(0),
            rest_end: AtomicU64::new(0),
            postponed_expiry: AtomicU64::new(NEVER),
        })
    }

    pub(super) fn raw_fd(&self) -> RawFd {
        self.timer.as_raw_fd()
    }

    /// Waits until the timer goes off.
    pub(super) fn wait(&self) {
        let mut event = libc::pollfd {
            fd: self.raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: `event` is a valid array of one entry, and the length passed is one.
        unsafe { libc::poll(&raw mut event, 1, -1) };
    }

    /// Sets the timer to `expiry` (`CLOCK_MONOTONIC`, ns), unless it goes off earlier. Callable
    /// from any thread of the vCPU.
    #[inline]
    pub(super) fn arm(&self, expiry: u64) {
        if expiry < self.expiry.load(Relaxed) {
            self.arm_earlier(expiry);
        }
    }

    #[cold]
    fn arm_earlier(&self, expiry: u64) {
        // Zero would stop the timer.
        let expiry = expiry.max(1);
        if expiry < self.expiry.fetch_min(expiry, SeqCst) {
            self.set_and_check(expiry);
        }
    }

    /// Sets the timer, and sets it again if another thread has meanwhile chosen an earlier time.
    fn set_and_check(&self, mut expiry: u64) {
        loop {
            let time_left = Duration::from_nanos(expiry.saturating_sub(clock::now()));
            let ticks = clock::ticks() + clock::to_ticks(time_left);
            // Stored before the timer is set, because `take` resets this word when the timer has
            // gone off.
            self.expiry_ticks.store(ticks, SeqCst);
            self.set(expiry);
            let earliest = self.expiry.load(SeqCst);
            if earliest >= expiry {
                return;
            }
            expiry = earliest;
        }
    }

    /// Makes the watcher look at a poll before the poll has run for `wait` ticks. The poll begins
    /// at the tick `poll_start`.
    #[inline]
    pub(super) fn look_within(&self, poll_start: u64, wait: u64) {
        let expiry = self.expiry_ticks.load(Relaxed);
        if expiry <= poll_start || expiry > poll_start + wait {
            let ticks_left = (poll_start + wait).saturating_sub(clock::ticks());
            self.arm(clock::now() + clock::nanos(clock::from_ticks(ticks_left)));
        }
    }

    fn set(&self, expiry: u64) {
        // SAFETY: all-zero is a valid value of this plain struct.
        let mut time: libc::itimerspec = unsafe { std::mem::zeroed() };
        time.it_value.tv_sec = (expiry / 1_000_000_000) as i64;
        time.it_value.tv_nsec = (expiry % 1_000_000_000) as i64;
        let flags = libc::TFD_TIMER_ABSTIME;
        // SAFETY: one pointer is to a local, and the other is null, which the call allows.
        unsafe {
            libc::timerfd_settime(self.raw_fd(), flags, &raw const time, std::ptr::null_mut())
        };
    }

    /// Reads the timer, which has gone off. A poll that began before this call need not set the
    /// timer, because the look that follows sees that poll.
    pub(super) fn take(&self) {
        let mut count = 0u64;
        // SAFETY: the pointer is to a local of the size given. The descriptor does not block.
        let result =
            unsafe { libc::read(self.raw_fd(), (&raw mut count).cast(), size_of::<u64>()) };
        // A failed read means that the timer has been set again meanwhile.
        if result > 0 {
            self.expiry.store(NEVER, SeqCst);
            self.expiry_ticks.store(0, SeqCst);
            fence(SeqCst);
        }
    }

    /// Sets the end of the watcher's rest, ns. The watcher does not listen during polls that begin
    /// before that time.
    pub(super) fn set_rest(&self, now: u64, until: u64) {
        let ticks = match until.checked_sub(now) {
            Some(ns) if ns != 0 => clock::ticks() + clock::to_ticks(Duration::from_nanos(ns)),
            _ => 0,
        };
        if self.rest_end.load(Relaxed) != ticks {
            self.rest_end.store(ticks, SeqCst);
        }
    }

    /// Returns whether the watcher rests at the tick `poll_start`, at which a poll begins.
    ///
    /// During a rest, each poll that begins postpones the timer. So the timer goes off only during
    /// a poll that has lasted for at least `min_age` ticks, and before the poll has lasted for
    /// twice that time.
    #[inline]
    pub(super) fn is_resting(&self, poll_start: u64, min_age: u64) -> bool {
        let is_resting = self.rest_end.load(Relaxed) > poll_start;
        if is_resting {
            // If the timer has just gone off, either the watcher's look sees this poll, or this
            // thread sees that the timer is not set any more.
            fence(SeqCst);
            if self.expiry_ticks.load(Relaxed) < poll_start + min_age {
                self.postpone(2 * min_age);
            }
        }
        is_resting
    }

    /// Makes the timer go off in `ticks`, even if it was set for an earlier time by a previous
    /// call. A time that was set for another reason is only ever made earlier.
    #[cold]
    fn postpone(&self, ticks: u64) {
        let new_expiry = clock::now() + clock::nanos(clock::from_ticks(ticks));
        let previous = self.postponed_expiry.load(Relaxed);
        self.postponed_expiry.store(new_expiry, Relaxed);
        let expiry = self.expiry.load(SeqCst);
        if expiry != previous || expiry == NEVER {
            return self.arm(new_expiry);
        }
        if self
            .expiry
            .compare_exchange(expiry, new_expiry, SeqCst, SeqCst)
            .is_ok()
        {
            self.set_and_check(new_expiry);
        }
    }
}
