//! The timer with which a vCPU's watcher looks at polls when no event wakes it, and the watcher's
//! *rests*, times in which arrivals of I/O do not wake it.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU64, fence};
use std::time::Duration;

use crate::notice::explained;
use crate::time::clock;

pub(super) const NEVER: u64 = u64::MAX;

pub(super) struct Alarm {
    timer: OwnedFd,
    /// Time at which the timer goes off in ns, or NEVER.
    armed: AtomicU64,
    /// The same time in ticks, or a time in the past. This is only a hint; `armed` decides.
    armed_ticks: AtomicU64,
    /// End of the watcher's rest in ticks, or 0.
    rests_until: AtomicU64,
    /// Time to which a poll has last postponed the timer during a rest, ns.
    postponed: AtomicU64,
}

impl Alarm {
    pub(super) fn new() -> io::Result<Alarm> {
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: the call takes no pointers.
        let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) };
        if fd < 0 {
            let error = io::Error::last_os_error();
            let text = format!("no preemption: no timer for a watcher: {error}");
            return Err(explained(&error, text));
        }
        Ok(Alarm {
            // SAFETY: the descriptor was just created, and nothing else owns it.
            timer: unsafe { OwnedFd::from_raw_fd(fd) },
            armed: AtomicU64::new(NEVER),
            armed_ticks: AtomicU64::new(0),
            rests_until: AtomicU64::new(0),
            postponed: AtomicU64::new(NEVER),
        })
    }

    pub(super) fn raw_fd(&self) -> RawFd {
        self.timer.as_raw_fd()
    }

    pub(super) fn wait(&self) {
        let mut event = libc::pollfd {
            fd: self.raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: `event` is a valid array of one entry, and the length passed is one.
        unsafe { libc::poll(&raw mut event, 1, -1) };
    }

    /// Sets the timer to `at` (`CLOCK_MONOTONIC`, ns), unless it goes off earlier. Callable from
    /// any thread of the vCPU.
    #[inline]
    pub(super) fn arm(&self, at: u64) {
        if at < self.armed.load(Relaxed) {
            self.arm_earlier(at);
        }
    }

    #[cold]
    fn arm_earlier(&self, at: u64) {
        // Zero would stop the timer.
        let at = at.max(1);
        if at < self.armed.fetch_min(at, SeqCst) {
            self.set_and_check(at);
        }
    }

    fn set_and_check(&self, mut at: u64) {
        loop {
            let left = Duration::from_nanos(at.saturating_sub(clock::now()));
            let ticks = clock::ticks() + clock::to_ticks(left);
            // Stored before the timer is set, because `take` resets this word when the timer has
            // gone off.
            self.armed_ticks.store(ticks, SeqCst);
            self.set(at);
            let armed = self.armed.load(SeqCst);
            if armed >= at {
                return;
            }
            at = armed;
        }
    }

    /// Makes the watcher look at a poll before the poll has run for `wait` ticks. The poll begins
    /// at the tick `begins`.
    #[inline]
    pub(super) fn look_within(&self, begins: u64, wait: u64) {
        let armed = self.armed_ticks.load(Relaxed);
        if armed <= begins || armed > begins + wait {
            let left = (begins + wait).saturating_sub(clock::ticks());
            self.arm(clock::now() + clock::nanos(clock::from_ticks(left)));
        }
    }

    fn set(&self, at: u64) {
        // SAFETY: all-zero is a valid value of this plain struct.
        let mut time: libc::itimerspec = unsafe { std::mem::zeroed() };
        time.it_value.tv_sec = (at / 1_000_000_000) as i64;
        time.it_value.tv_nsec = (at % 1_000_000_000) as i64;
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
        let read = unsafe { libc::read(self.raw_fd(), (&raw mut count).cast(), size_of::<u64>()) };
        // A failed read means that the timer has been set again meanwhile.
        if read > 0 {
            self.armed.store(NEVER, SeqCst);
            self.armed_ticks.store(0, SeqCst);
            fence(SeqCst);
        }
    }

    /// Sets the end of the watcher's rest, ns. The watcher does not listen during polls that begin
    /// before that time.
    pub(super) fn set_rest(&self, now: u64, until: u64) {
        let ticks = match until.checked_sub(now) {
            Some(left) if left != 0 => clock::ticks() + clock::to_ticks(Duration::from_nanos(left)),
            _ => 0,
        };
        if self.rests_until.load(Relaxed) != ticks {
            self.rests_until.store(ticks, SeqCst);
        }
    }

    /// Returns whether the watcher rests at the tick `begins`, at which a poll begins.
    ///
    /// During a rest, each poll that begins postpones the timer. So the timer goes off only during
    /// a poll that has lasted for at least `least` ticks, and before the poll has lasted for twice
    /// that time.
    #[inline]
    pub(super) fn is_resting(&self, begins: u64, least: u64) -> bool {
        let rests = self.rests_until.load(Relaxed) > begins;
        if rests {
            // If the timer has just gone off, either the watcher's look sees this poll, or this
            // thread sees that the timer is not set any more.
            fence(SeqCst);
            if self.armed_ticks.load(Relaxed) < begins + least {
                self.postpone(2 * least);
            }
        }
        rests
    }

    /// Makes the timer go off in `ticks`, even if it was set for an earlier time by a previous
    /// call. A time that was set for another reason is only ever made earlier.
    #[cold]
    fn postpone(&self, ticks: u64) {
        let at = clock::now() + clock::nanos(clock::from_ticks(ticks));
        let before = self.postponed.load(Relaxed);
        self.postponed.store(at, Relaxed);
        let armed = self.armed.load(SeqCst);
        if armed != before || armed == NEVER {
            return self.arm(at);
        }
        if self
            .armed
            .compare_exchange(armed, at, SeqCst, SeqCst)
            .is_ok()
        {
            self.set_and_check(at);
        }
    }
}
