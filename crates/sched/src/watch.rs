//! [`Watch`]: says when processes end, by pidfd.
//!
//! One thread sleeps in `epoll_wait` and rings the engine's bell; it costs nothing until a process ends. It is elevated like
//! the scheduler, so that it hears of an end also where the tasks burn every CPU.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::thread;

use upshift_elevate::{Elevator, Priority};

use crate::control::Control;
use crate::error::SchedError;

/// What the event of the stop descriptor carries.
const STOP: u64 = 1;

/// Watches the processes of one engine. Dropping the last handle ends the thread.
#[derive(Debug, Clone)]
pub struct Watch {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    epoll: OwnedFd,
    stop: OwnedFd,
    thread: Option<thread::JoinHandle<()>>,
}

impl Watch {
    /// Starts the thread, at `priority` if `elevator` may. Start it before the tasks are elevated.
    ///
    /// # Errors
    /// No descriptors or threads are left.
    pub fn start(
        control: &Control,
        elevator: &Elevator,
        priority: Priority,
    ) -> Result<Watch, SchedError> {
        let failed = || SchedError::os("watch for the ends of processes");
        let epoll = descriptor(|| {
            // SAFETY: integers only.
            unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }
        });
        let epoll = epoll.map_err(failed())?;
        let stop = descriptor(|| {
            // SAFETY: integers only.
            unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) }
        });
        let stop = stop.map_err(failed())?;
        add(epoll.as_raw_fd(), stop.as_raw_fd(), STOP).map_err(failed())?;
        let (fd, control, elevator) = (epoll.as_raw_fd(), control.clone(), elevator.clone());
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = thread::Builder::new()
            .name("upshift-watch".into())
            .spawn(move || {
                // Without the right it is as late as ordinary threads are.
                let _elevated = elevator.elevate_current(priority);
                // Whoever started it waits for this.
                let _ = ready.send(());
                while next(fd) != Some(STOP) {
                    control.process_ended();
                }
            });
        let thread = Some(thread.map_err(failed())?);
        // An error means that it has ended already, and nobody is watched.
        let _ = is_ready.recv();
        Ok(Watch {
            shared: Arc::new(Shared {
                epoll,
                stop,
                thread,
            }),
        })
    }

    /// Rings when the process of `pidfd` ends; once. Closing the descriptor ends that.
    pub(crate) fn add(&self, pidfd: BorrowedFd<'_>) -> io::Result<()> {
        add(self.shared.epoll.as_raw_fd(), pidfd.as_raw_fd(), 0)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let word = STOP;
        // SAFETY: eight bytes of a live word.
        unsafe { libc::write(self.stop.as_raw_fd(), (&raw const word).cast(), 8) };
        if let Some(thread) = self.thread.take() {
            // The descriptors outlive the thread that waits on them.
            let _ = thread.join();
        }
    }
}

fn descriptor(make: impl FnOnce() -> libc::c_int) -> io::Result<OwnedFd> {
    let fd = make();
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was just made and belongs to nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn add(epoll: libc::c_int, fd: libc::c_int, data: u64) -> io::Result<()> {
    let mut event = libc::epoll_event {
        events: (libc::EPOLLIN | libc::EPOLLONESHOT) as u32,
        u64: data,
    };
    // SAFETY: a live event; both descriptors are open.
    let done = unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event) };
    if done < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Waits for the next event; `None` if the wait was interrupted.
fn next(epoll: libc::c_int) -> Option<u64> {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: room for one event, which the kernel fills in. The descriptor is open as long as this thread runs.
    let found = unsafe { libc::epoll_wait(epoll, &raw mut event, 1, -1) };
    match found {
        1 => Some(event.u64),
        // A failure that is no interruption cannot end by itself.
        _ if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => None,
        _ => Some(STOP),
    }
}

/// A descriptor that becomes readable when `pid` ends.
pub(crate) fn pidfd(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: integers only.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    descriptor(|| fd as libc::c_int)
}

/// Whether the process of `pidfd` has ended. One system call.
pub(crate) fn has_ended(pidfd: BorrowedFd<'_>) -> bool {
    let mut poll = libc::pollfd {
        fd: pidfd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one live entry.
    unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
}
