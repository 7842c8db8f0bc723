//! [`ProcessMonitor`] reports the ends of processes (by pidfd), and the starts and ends of their
//! threads if the kernel reports them (proc connector).
//!
//! One thread sleeps in `epoll_wait` and wakes the engine's futex. The thread is elevated like the
//! scheduler, so that it runs even if the tasks use every CPU. It costs nothing until a process
//! ends. If the kernel reports threads (with CAP_NET_ADMIN, and in the machine's network
//! namespace), it costs about 3 µs for each thread that starts or ends anywhere on the machine.
//! Otherwise the engine scans.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use upshift_elevate::events::{Event, Events, Interest};
use upshift_elevate::{Elevator, Priority};

use crate::control::{Change, Control};
use crate::error::SchedError;

const STOP: u64 = 1;
const EVENTS: u64 = 2;

/// A monitor of the processes that one engine schedules. Dropping the last handle ends its thread.
#[derive(Debug, Clone)]
pub struct ProcessMonitor {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    epoll: OwnedFd,
    stop: OwnedFd,
    pids: Pids,
    /// Set if the kernel reports threads.
    thread_events: bool,
    thread: Option<thread::JoinHandle<()>>,
}

type Pids = Arc<Mutex<HashSet<i32>>>;

/// A registration of a process, which is removed on drop.
#[derive(Debug)]
pub(crate) struct MonitoredProcess {
    pids: Pids,
    pid: i32,
}

impl Drop for MonitoredProcess {
    fn drop(&mut self) {
        let mut pids = self.pids.lock().unwrap_or_else(PoisonError::into_inner);
        pids.remove(&self.pid);
    }
}

fn forward(events: &Events, pids: &Pids, control: &Control) {
    while let Some(event) = events.next() {
        let pids = pids.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Born {
                parent,
                process,
                thread,
            } if pids.contains(&process) || pids.contains(&parent) => {
                drop(pids);
                control.queue_change(Change::ThreadStarted {
                    parent,
                    process,
                    thread,
                });
            }
            Event::Ended { process, thread } if pids.contains(&process) => {
                drop(pids);
                control.queue_change(Change::ThreadEnded { process, thread });
            }
            Event::Lost => control.request_scan(),
            _ => {}
        }
    }
}

impl ProcessMonitor {
    /// Starts the thread, at `priority` if `elevator` may elevate it. Must be called before the
    /// tasks are elevated.
    ///
    /// # Errors
    /// No descriptors or threads are available.
    pub fn start(
        control: &Control,
        elevator: &Elevator,
        priority: Priority,
    ) -> Result<ProcessMonitor, SchedError> {
        let failed = || SchedError::os("watch for the ends of processes");
        let epoll = descriptor(|| {
            // SAFETY: the call has only integer arguments.
            unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }
        });
        let epoll = epoll.map_err(failed())?;
        let stop = descriptor(|| {
            // SAFETY: the call has only integer arguments.
            unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) }
        });
        let stop = stop.map_err(failed())?;
        add(epoll.as_raw_fd(), stop.as_raw_fd(), STOP, ONCE).map_err(failed())?;
        // Without events the engine scans.
        let events = Events::subscribe(Interest::Threads).ok();
        if let Some(events) = &events {
            let fd = events.as_fd().as_raw_fd();
            add(epoll.as_raw_fd(), fd, EVENTS, libc::EPOLLIN).map_err(failed())?;
        }
        let pids = Pids::default();
        let thread_events = events.is_some();
        let (fd, control, elevator) = (epoll.as_raw_fd(), control.clone(), elevator.clone());
        let scheduled = Arc::clone(&pids);
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = thread::Builder::new()
            .name("upshift-watch".into())
            .spawn(move || {
                control.set_monitor_thread(upshift_elevate::current_tid());
                // Without the right to be elevated, the thread may be as late as an ordinary
                // thread.
                let _elevated = elevator.elevate_current(priority);
                // The calling thread waits for this message.
                let _ = ready.send(());
                loop {
                    match (next(fd), &events) {
                        (Some(STOP), _) => break,
                        (Some(EVENTS), Some(events)) => forward(events, &scheduled, &control),
                        _ => control.request_scan(),
                    }
                }
            });
        let thread = Some(thread.map_err(failed())?);
        // An error means that the thread has already ended, and no process is watched.
        let _ = is_ready.recv();
        Ok(ProcessMonitor {
            shared: Arc::new(Shared {
                epoll,
                stop,
                pids,
                thread_events,
                thread,
            }),
        })
    }

    pub(crate) fn reports_threads(&self) -> bool {
        self.shared.thread_events
    }

    /// Forwards the events of `pid` until the returned value is dropped.
    pub(crate) fn listen(&self, pid: i32) -> MonitoredProcess {
        let pids = Arc::clone(&self.shared.pids);
        let mut known = pids.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(pid);
        drop(known);
        MonitoredProcess { pids, pid }
    }

    /// Wakes the engine once when the process of `pidfd` ends. Closing the descriptor removes it
    /// from the monitor.
    pub(crate) fn add(&self, pidfd: BorrowedFd<'_>) -> io::Result<()> {
        add(self.shared.epoll.as_raw_fd(), pidfd.as_raw_fd(), 0, ONCE)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let word = STOP;
        // SAFETY: the eight bytes of `word` are valid.
        unsafe { libc::write(self.stop.as_raw_fd(), (&raw const word).cast(), 8) };
        if let Some(thread) = self.thread.take() {
            // The thread waits on the descriptors, so they must live longer than the thread.
            let _ = thread.join();
        }
    }
}

fn descriptor(make: impl FnOnce() -> libc::c_int) -> io::Result<OwnedFd> {
    let fd = make();
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `make` has just created the descriptor, so it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

const ONCE: libc::c_int = libc::EPOLLIN | libc::EPOLLONESHOT;

fn add(epoll: libc::c_int, fd: libc::c_int, data: u64, interest: libc::c_int) -> io::Result<()> {
    let mut event = libc::epoll_event {
        events: interest as u32,
        u64: data,
    };
    // SAFETY: `event` is valid for the duration of the call; both descriptors are open.
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
    // SAFETY: `event` has space for the one event that the kernel writes. The descriptor is open as
    // long as this thread runs.
    let count = unsafe { libc::epoll_wait(epoll, &raw mut event, 1, -1) };
    match count {
        1 => Some(event.u64),
        // An error other than an interruption would repeat for ever.
        _ if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => None,
        _ => Some(STOP),
    }
}

/// Opens a descriptor that becomes readable when `pid` ends.
pub(crate) fn pidfd(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: the call has only integer arguments.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    descriptor(|| fd as libc::c_int)
}

/// Returns whether the process of `pidfd` has ended. This costs one system call.
pub(crate) fn has_ended(pidfd: BorrowedFd<'_>) -> bool {
    let mut poll = libc::pollfd {
        fd: pidfd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: `poll` is one valid entry.
    unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
}
