//! Waits for the ends of children whose [`Child`](super::Child) was dropped, so that none stays a
//! zombie.
//!
//! One thread does this for the whole process. It is not a coroutine, because the runtime that
//! started a child may end before the child does. The thread starts with the first such child and
//! exits after the last child has ended. It sleeps in `poll` on the descriptors of the children and
//! on an eventfd that announces more children. Each exit of a child costs time in proportion to the
//! number of children.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Child;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use upshift_ring::Fd;

/// A child whose [`Child`](super::Child) was dropped before it ended.
pub(super) struct Orphan {
    pub(super) child: Child,
    pub(super) pidfd: Fd,
}

impl Orphan {
    /// Returns true if the child is running. A child that cannot be waited for has been reaped
    /// elsewhere.
    fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

struct Reaper {
    /// Wakes the thread; `None` if there is no thread.
    eventfd: Option<Arc<OwnedFd>>,
    incoming: Vec<Orphan>,
}

static REAPER: Mutex<Reaper> = Mutex::new(Reaper {
    eventfd: None,
    incoming: Vec::new(),
});

fn reaper() -> MutexGuard<'static, Reaper> {
    REAPER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Hands a running child over to the reaper thread, without blocking. If the thread cannot be
/// started, the child is left for the thread that a later call starts.
pub(super) fn reap(orphan: Orphan) {
    let mut reaper = reaper();
    reaper.incoming.push(orphan);
    match &reaper.eventfd {
        Some(eventfd) => notify(eventfd),
        None => reaper.eventfd = start().ok(),
    }
}

fn notify(eventfd: &OwnedFd) {
    let increment = 1u64;
    // SAFETY: `increment` is a local of eight bytes. An error is ignored, because a full counter
    // wakes the thread, too.
    unsafe { libc::write(eventfd.as_raw_fd(), (&raw const increment).cast(), 8) };
}

/// Starts the thread. The caller holds the lock, so the thread waits until the caller has stored
/// the eventfd.
fn start() -> io::Result<Arc<OwnedFd>> {
    // SAFETY: the call takes no pointers.
    let eventfd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if eventfd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just opened, and nothing else owns it.
    let eventfd = Arc::new(unsafe { OwnedFd::from_raw_fd(eventfd) });
    let reaper_eventfd = eventfd.clone();
    thread::Builder::new()
        .name("upshift-reaper".into())
        .stack_size(64 << 10)
        .spawn(move || run(&reaper_eventfd))?;
    Ok(eventfd)
}

fn run(eventfd: &OwnedFd) {
    let mut children: Vec<Orphan> = Vec::new();
    loop {
        {
            let mut reaper = reaper();
            children.append(&mut reaper.incoming);
            children.retain_mut(Orphan::is_running);
            if children.is_empty() {
                reaper.eventfd = None;
                return;
            }
        }
        wait(eventfd, &children);
    }
}

fn wait(eventfd: &OwnedFd, children: &[Orphan]) {
    let descriptors = children.iter().map(|orphan| orphan.pidfd.as_raw_fd());
    let mut poll_fds: Vec<_> = std::iter::once(eventfd.as_raw_fd())
        .chain(descriptors)
        .map(|fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        })
        .collect();
    let mut count = 0u64;
    // SAFETY: the pointer and the length are those of the vector `poll_fds`.
    let ready = unsafe { libc::poll(poll_fds.as_mut_ptr(), poll_fds.len() as libc::nfds_t, -1) };
    // SAFETY: `count` is a local of eight bytes, and the eventfd does not block.
    unsafe { libc::read(eventfd.as_raw_fd(), (&raw mut count).cast(), 8) };
    if ready < 0 {
        // `poll` was interrupted, or RLIMIT_NOFILE has become smaller than the number of
        // descriptors.
        thread::sleep(Duration::from_millis(10));
    }
}
