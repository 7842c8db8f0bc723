//! The thread that waits for the ends of children whose handle is gone, so that none stays a
//! zombie.
//!
//! It is one thread of the process, not a coroutine: the runtime that started a child may end
//! before the child does. The thread begins with the first such child and ends with the last. It
//! sleeps in `poll` on the descriptors of the processes and on one that tells of more;
//! O(children) per end.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Child;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use upshift_ring::Fd;

/// A child, and a descriptor that is readable when it has ended.
pub(super) struct Orphan {
    pub(super) child: Child,
    pub(super) pidfd: Fd,
}

impl Orphan {
    /// Does it run on? A child that cannot be waited for has been reaped by someone else.
    fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

/// The children that the thread is given.
struct Reaper {
    /// Wakes the thread; `None`: there is none.
    bell: Option<Arc<OwnedFd>>,
    fresh: Vec<Orphan>,
}

static REAPER: Mutex<Reaper> = Mutex::new(Reaper {
    bell: None,
    fresh: Vec::new(),
});

fn reaper() -> MutexGuard<'static, Reaper> {
    REAPER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for the end of a child that runs. If no thread can be had, the child is left for the
/// thread that the next call starts.
pub(super) fn reap(orphan: Orphan) {
    let mut reaper = reaper();
    reaper.fresh.push(orphan);
    match &reaper.bell {
        Some(bell) => ring(bell),
        None => reaper.bell = start().ok(),
    }
}

fn ring(bell: &OwnedFd) {
    let one = 1u64;
    // SAFETY: a pointer to a local of the size given. A full counter is as good as one more.
    unsafe { libc::write(bell.as_raw_fd(), (&raw const one).cast(), 8) };
}

/// Starts the thread. With the lock, for which the thread waits.
fn start() -> io::Result<Arc<OwnedFd>> {
    // SAFETY: no pointers.
    let bell = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if bell < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened, without another owner.
    let bell = Arc::new(unsafe { OwnedFd::from_raw_fd(bell) });
    let hears = bell.clone();
    thread::Builder::new()
        .name("upshift-reaper".into())
        .stack_size(64 << 10)
        .spawn(move || serve(&hears))?;
    Ok(bell)
}

fn serve(bell: &OwnedFd) {
    let mut children: Vec<Orphan> = Vec::new();
    loop {
        {
            let mut reaper = reaper();
            children.append(&mut reaper.fresh);
            children.retain_mut(Orphan::runs);
            if children.is_empty() {
                reaper.bell = None;
                return;
            }
        }
        wait(bell, &children);
    }
}

/// Returns when one has ended or another has come.
fn wait(bell: &OwnedFd, children: &[Orphan]) {
    let descriptors = children.iter().map(|orphan| orphan.pidfd.as_raw_fd());
    let mut polled: Vec<_> = std::iter::once(bell.as_raw_fd())
        .chain(descriptors)
        .map(|fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        })
        .collect();
    let mut count = 0u64;
    // SAFETY: pointers to locals of the sizes given.
    let ready = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, -1) };
    // SAFETY: as above.
    unsafe { libc::read(bell.as_raw_fd(), (&raw mut count).cast(), 8) };
    if ready < 0 {
        // Interrupted, or refused: more descriptors than RLIMIT_NOFILE allows by now.
        thread::sleep(Duration::from_millis(10));
    }
}
