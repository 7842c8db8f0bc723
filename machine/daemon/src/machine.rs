//! The system calls of the daemon behind a trait, so that tests can inject failures. The scheduling
//! calls are in [`upshift_elevate::sys::Sys`].

use std::fmt;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, PidfdFlags};
use upshift_board::LocalPage;
use upshift_board::os::{self, Mapping};

/// System calls of the daemon.
pub trait Machine: Send + Sync + fmt::Debug {
    /// Opens the *clock* of thread `tid` of process `pid`, which is the thread's record of CPU
    /// time. Success proves that the thread belongs to the process.
    fn thread_clock(&self, pid: i32, tid: i32) -> io::Result<OwnedFd>;
    /// Reads a clock, and returns the thread's CPU time until now, ns. Fails with `ESRCH` if the
    /// thread has ended.
    fn cpu_time(&self, clock: BorrowedFd<'_>) -> io::Result<u64>;
    /// Returns the CPU time of process `pid`, including threads that have ended, ns.
    fn process_time(&self, pid: i32) -> io::Result<u64>;
    /// Opens the directory of a process in `/proc`.
    fn process(&self, pid: i32) -> io::Result<OwnedFd>;
    /// Returns the real, effective, saved and file system user of the process with this directory.
    fn users(&self, process: BorrowedFd<'_>) -> io::Result<[u32; 4]>;
    /// Returns the effective user of the process, faster than `users`.
    fn user(&self, process: BorrowedFd<'_>) -> io::Result<u32>;
    /// Opens a descriptor that becomes readable when the process ends.
    fn pidfd(&self, pid: i32) -> io::Result<OwnedFd>;
    /// Creates a doorbell.
    fn doorbell(&self) -> io::Result<OwnedFd>;
    /// Checks that `file` is a sealed page, and maps it for reading. Fails with `InvalidInput` if
    /// `file` is not a sealed page.
    fn local_page(&self, file: BorrowedFd<'_>) -> io::Result<Mapping<LocalPage>>;
    /// Adds a doorbell to an epoll, edge-triggered.
    fn watch(&self, epoll: BorrowedFd<'_>, eventfd: BorrowedFd<'_>, key: u64) -> io::Result<()>;
}

/// Flags that open another process's file without waiting for its owner (see
/// [`upshift_elevate::sys::read_at_once`]).
const AT_ONCE: OFlags = OFlags::RDONLY
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK);

/// The system calls of the kernel.
#[derive(Debug, Clone, Copy, Default)]
pub struct Real;

impl Machine for Real {
    fn thread_clock(&self, pid: i32, tid: i32) -> io::Result<OwnedFd> {
        let path = format!("/proc/{pid}/task/{tid}/schedstat");
        Ok(rustix::fs::open(path, AT_ONCE, Mode::empty())?)
    }

    fn cpu_time(&self, clock: BorrowedFd<'_>) -> io::Result<u64> {
        let mut text = [0u8; 64];
        let length = rustix::io::pread(clock, &mut text, 0)?;
        let first = text[..length].split(u8::is_ascii_whitespace).next();
        first
            .and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok())
            .ok_or(io::ErrorKind::InvalidData.into())
    }

    fn process_time(&self, pid: i32) -> io::Result<u64> {
        upshift_elevate::sys::process_time(pid)
    }

    fn process(&self, pid: i32) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(rustix::fs::open(
            format!("/proc/{pid}"),
            flags,
            Mode::empty(),
        )?)
    }

    fn users(&self, process: BorrowedFd<'_>) -> io::Result<[u32; 4]> {
        let status = rustix::fs::openat(process, "status", AT_ONCE, Mode::empty())?;
        let mut text = Vec::new();
        std::fs::File::from(status).read_to_end(&mut text)?;
        // The name in this file may not be UTF-8.
        let text = String::from_utf8_lossy(&text);
        let line = text.lines().find_map(|line| line.strip_prefix("Uid:"));
        let users = line.into_iter().flat_map(str::split_ascii_whitespace);
        let users: Vec<u32> = users.filter_map(|user| user.parse().ok()).collect();
        <[u32; 4]>::try_from(users).map_err(|_| io::ErrorKind::InvalidData.into())
    }

    fn user(&self, process: BorrowedFd<'_>) -> io::Result<u32> {
        // The kernel takes the user from the process at each call, regardless of the modes of the
        // process's files.
        Ok(rustix::fs::fstat(process)?.st_uid)
    }

    fn pidfd(&self, pid: i32) -> io::Result<OwnedFd> {
        let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(rustix::process::pidfd_open(pid, PidfdFlags::empty())?)
    }

    fn doorbell(&self) -> io::Result<OwnedFd> {
        os::doorbell()
    }

    fn local_page(&self, file: BorrowedFd<'_>) -> io::Result<Mapping<LocalPage>> {
        let page = Mapping::local_for_reading(file)?;
        // Without the right to lock memory, a read may wait for a disk.
        let _ = page.lock_in_memory();
        Ok(page)
    }

    fn watch(&self, epoll: BorrowedFd<'_>, eventfd: BorrowedFd<'_>, key: u64) -> io::Result<()> {
        use rustix::event::epoll::{EventData, EventFlags, add};
        let flags = EventFlags::IN | EventFlags::ET;
        Ok(add(epoll.as_fd(), eventfd, EventData::new_u64(key), flags)?)
    }
}
