//! The few calls of epoll and eventfd that the driver makes.
//!
//! No library has all that the driver needs:
//!
//! * waits to the nanosecond (`mio` rounds up to a millisecond),
//! * no system call besides the wait (`polling` also sets a timerfd and arms its eventfd for each
//!   wait),
//! * interest that stays armed while a stream receives,
//! * an instance that another instance can watch.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub(crate) type Event = libc::epoll_event;

pub(crate) const NO_EVENT: Event = Event { events: 0, u64: 0 };

pub(crate) fn check_result(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

pub(crate) fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: the call takes no pointers, so it has no preconditions.
    let fd = check_result(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes an eventfd readable. Async-signal-safe.
pub(crate) fn signal(eventfd: &OwnedFd) {
    let one = 1u64;
    // SAFETY: the pointer is valid for reading eight bytes. The only possible failure, a counter at
    // its maximum, leaves the eventfd readable.
    unsafe { libc::write(eventfd.as_raw_fd(), (&raw const one).cast(), 8) };
}

pub(crate) fn drain(eventfd: &OwnedFd) {
    let mut count = 0u64;
    // SAFETY: the pointer is valid for writing eight bytes.
    unsafe { libc::read(eventfd.as_raw_fd(), (&raw mut count).cast(), 8) };
}

/// Returns those of `events` for which the descriptor is ready, and its error events. One system
/// call. Async-signal-safe.
pub(crate) fn ready_events(fd: RawFd, events: u32) -> u32 {
    let mut poll = libc::pollfd {
        fd,
        events: events as libc::c_short,
        revents: 0,
    };
    // SAFETY: the pointer is valid for one `pollfd`.
    unsafe { libc::poll(&raw mut poll, 1, 0) };
    u32::from(poll.revents.cast_unsigned())
}

/// Set when `epoll_pwait2` has turned out to be missing or forbidden.
static LACKS_NANOSECONDS: AtomicBool = AtomicBool::new(false);

pub(crate) struct Epoll(OwnedFd);

impl Epoll {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: the call takes no pointers, so it has no preconditions.
        let fd = check_result(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: the descriptor is new and has no other owner.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub(crate) fn raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    fn control(
        &self,
        operation: libc::c_int,
        fd: RawFd,
        events: u32,
        token: u64,
    ) -> io::Result<()> {
        let mut event = Event { events, u64: token };
        // SAFETY: `event` is valid during the call.
        check_result(unsafe { libc::epoll_ctl(self.raw_fd(), operation, fd, &raw mut event) })
            .map(drop)
    }

    pub(crate) fn add(&self, fd: RawFd, events: u32, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, events, token)
    }

    pub(crate) fn change(&self, fd: RawFd, events: u32, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, events, token)
    }

    pub(crate) fn remove(&self, fd: RawFd) {
        // The call fails only if the descriptor is not registered.
        let _ = self.control(libc::EPOLL_CTL_DEL, fd, 0, 0);
    }

    /// Returns whether there are events to fetch. One system call. Async-signal-safe.
    pub(crate) fn is_ready(&self) -> bool {
        ready_events(self.raw_fd(), libc::POLLIN as u32) != 0
    }

    /// Waits for events until `timeout` has passed, and fetches them. With `None` there is no time
    /// limit.
    pub(crate) fn wait(
        &self,
        events: &mut [Event],
        timeout: Option<Duration>,
    ) -> io::Result<usize> {
        let room = events.len() as libc::c_int;
        let millis = match timeout {
            None => -1,
            Some(Duration::ZERO) => 0,
            Some(time) => return self.wait_for(events, time),
        };
        // SAFETY: the slice has room for `room` events.
        let count = unsafe { libc::epoll_wait(self.raw_fd(), events.as_mut_ptr(), room, millis) };
        check_result(count).map(|count| count as usize)
    }

    fn wait_for(&self, events: &mut [Event], time: Duration) -> io::Result<usize> {
        let time = libc::timespec {
            tv_sec: time.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_nsec: time.subsec_nanos().into(),
        };
        let no_mask = ptr::null::<libc::sigset_t>();
        if !LACKS_NANOSECONDS.load(Ordering::Relaxed) {
            // SAFETY: the call writes at most as many events as the slice has, and the time
            // outlives the call.
            let count = unsafe {
                libc::syscall(
                    libc::SYS_epoll_pwait2,
                    self.raw_fd(),
                    events.as_mut_ptr(),
                    events.len(),
                    &raw const time,
                    no_mask,
                    size_of::<u64>(),
                )
            };
            match check_result(count as libc::c_int) {
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
                    // The call is missing before Linux 5.11, or an old seccomp profile forbids it.
                    LACKS_NANOSECONDS.store(true, Ordering::Relaxed);
                }
                result => return result.map(|count| count as usize),
            }
        }
        let mut poll = libc::pollfd {
            fd: self.raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: the pointer is valid for one `pollfd`, and the time outlives the call.
        check_result(unsafe { libc::ppoll(&raw mut poll, 1, &raw const time, no_mask) })?;
        self.wait(events, Some(Duration::ZERO))
    }
}
