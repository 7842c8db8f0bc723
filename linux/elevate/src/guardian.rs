//! Starts and ends the guardian, a small process that restores every recorded thread when its owner
//! dies, however the owner dies. The *owner* is the process that made the
//! [`Elevator`](crate::Elevator).
//!
//! ```text
//! owner                                        guardian (forked, no exec)
//!   start ── fork ───────────────────────────▶ signals blocked, own session, other descriptors
//!     │  ◀─────────────── ready ────────────── closed, all CPUs, SCHED_FIFO 49 if permitted
//!     │  records, elevates, restores           sleeps
//!   dies (any signal, abort, _exit), or execs
//!     └── pidfd readable, or end of file ────▶ restores every record, exits
//! ```
//!
//! * The guardian runs even if the threads that it guards burn every CPU, because its priority is
//!   above theirs (threads of other processes get at most 48).
//! * The guardian is invisible to `SIGCHLD` handlers and `wait` loops of the owner, because it is
//!   waited for with `__WCLONE`.
//! * The guardian acts only once no thread of the owner can make another system call, that is, when
//!   the owner is dead or its descriptors are closed. An `exec` of the owner closes the descriptors
//!   as well. The guardian then also lowers the main thread, which has inherited the policy of the
//!   thread that called `exec`.
//! * If a program closes all its descriptors without `exec`, the guardian restores all threads and
//!   ends. The next elevation of another process's thread starts a new guardian.
//! * If an owner with a heartbeat ([`Builder::heartbeat`](crate::Builder::heartbeat)) misses it,
//!   because the owner was stopped or hangs, the guardian moves the threads of other processes to
//!   SCHED_OTHER. The threads stay recorded. The guardian checks four times per heartbeat while any
//!   such thread is recorded, and sleeps otherwise.
//! * If the guardian dies first, the next elevation of another process's thread, or
//!   [`ensure_guardian`](crate::Elevator::ensure_guardian), starts a new one over the same records.
//!
//! A guardian that is killed together with its owner (by `cgroup.kill`, `systemctl kill -s KILL`,
//! or a memory cgroup with `oom.group`) restores nothing. If permitted, the guardian exempts itself
//! from the OOM killer.
//!
//! A guardian should be started early, because it keeps the memory that the process has at the fork
//! (copy-on-write).

mod child;

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::fence;
use std::time::{Duration, Instant};

use crate::priority::Priority;
use crate::sys::Sys;
use crate::table::Table;

/// Maximum time that the owner waits until the guardian is ready, and until the guardian has ended.
const GUARDIAN_TIMEOUT: Duration = Duration::from_secs(2);

/// The owner's handle of its guardian.
#[derive(Debug)]
pub(crate) struct Guardian {
    pid: libc::pid_t,
    /// The owner's end of the pair. Closing it wakes the guardian.
    socket: OwnedFd,
}

impl Guardian {
    /// Forks a guardian of `table`, and waits until the guardian watches `owner`, the caller.
    /// `heartbeat` is the longest time between two signs of life of the owner.
    pub(crate) fn start(
        table: &Table,
        sys: &dyn Sys,
        owner: libc::pid_t,
        heartbeat: Option<Duration>,
    ) -> io::Result<Guardian> {
        // The new guardian has not seen the requests to its predecessor.
        table.header().armed.store(0, SeqCst);
        let mut sockets = [-1; 2];
        // SAFETY: the kernel writes two descriptors into the array.
        let result = unsafe {
            libc::socketpair(
                libc::AF_UNIX,
                libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC,
                0,
                sockets.as_mut_ptr(),
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: both descriptors were opened above and have no other owner.
        let [socket, child_socket] = sockets.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        let signals = SignalsBlocked::new();
        // SAFETY: the child only calls `child::run`, which is safe after a fork and never returns.
        let pid = unsafe { sys.fork_without_sigchld() }?;
        if pid == 0 {
            child::run(table, child_socket.as_raw_fd(), owner, heartbeat);
        }
        drop(signals);
        drop(child_socket);
        // The guardian also raises itself, but it would get no CPU to do so if elevated threads
        // already burn every CPU.
        let fifo = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
        let _ = sys.sched_setscheduler(pid, fifo, i32::from(Priority::MAX.get()));
        let guardian = Guardian { pid, socket };
        match guardian.wait_until_ready() {
            Ok(()) => Ok(guardian),
            Err(error) => {
                guardian.stop();
                Err(error)
            }
        }
    }

    fn wait_until_ready(&self) -> io::Result<()> {
        let deadline = Instant::now() + GUARDIAN_TIMEOUT;
        loop {
            let mut byte = 0u8;
            // SAFETY: at most one byte is written to `byte`.
            let received = unsafe {
                libc::recv(
                    self.socket.as_raw_fd(),
                    (&raw mut byte).cast(),
                    1,
                    libc::MSG_DONTWAIT,
                )
            };
            if received == 1 {
                return Ok(());
            }
            if received == 0 || !self.is_alive() {
                return Err(io::Error::other(
                    "the guardian ended before it was ready: raise the limits on memory and descriptors",
                ));
            }
            if Instant::now() > deadline {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "the guardian was not ready in time: the machine is overloaded",
                ));
            }
            let mut poll = libc::pollfd {
                fd: self.socket.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: `poll` is an array of one `pollfd`.
            unsafe { libc::poll(&raw mut poll, 1, 50) };
        }
    }

    pub(crate) fn pid(&self) -> libc::pid_t {
        self.pid
    }

    /// Returns whether the guardian still runs. Reaps a guardian that has ended. One system call.
    pub(crate) fn is_alive(&self) -> bool {
        // SAFETY: the pointer is null, so the call writes no status.
        unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), libc::WNOHANG | libc::__WALL) == 0 }
    }

    /// Announces that a thread of another process has been recorded, so that the guardian checks
    /// the heartbeat. One system call if the guardian was not armed, otherwise none.
    ///
    /// No record is missed. The guardian disarms itself, and only then checks whether a thread is
    /// recorded. The caller records a thread, and only then checks whether the guardian is armed.
    /// So at least one of them sees the other's change.
    pub(crate) fn arm(&self, table: &Table) {
        fence(SeqCst);
        if table.header().armed.swap(1, SeqCst) == 0 {
            // SAFETY: the pointer is valid for one byte. If the socket is full, its earlier bytes
            // wake the guardian.
            unsafe {
                let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
                libc::send(self.socket.as_raw_fd(), [1u8].as_ptr().cast(), 1, flags)
            };
        }
    }

    /// Ends the guardian, which first restores the threads that are still recorded. A guardian that
    /// has not ended after two seconds is killed.
    pub(crate) fn stop(self) {
        // SAFETY: the call takes no pointers. The shutdown reaches the guardian even if a fork of
        // this process holds the descriptor, too.
        unsafe { libc::shutdown(self.socket.as_raw_fd(), libc::SHUT_RDWR) };
        let deadline = Instant::now() + GUARDIAN_TIMEOUT;
        while self.is_alive() {
            if Instant::now() > deadline + GUARDIAN_TIMEOUT {
                // The guardian is stuck in the kernel, and ends when it leaves the kernel.
                return;
            }
            if Instant::now() > deadline {
                // SAFETY: the process is an unreaped child of this one, so the pid is still valid.
                unsafe { libc::kill(self.pid, libc::SIGKILL) };
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// Blocks every signal of the calling thread, so that no handler of the owner runs in the guardian.
struct SignalsBlocked(libc::sigset_t);

impl SignalsBlocked {
    fn new() -> SignalsBlocked {
        // SAFETY: a `sigset_t` of zeroes is valid, and both calls write only to the sets that are
        // passed.
        unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            let mut former: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut former);
            SignalsBlocked(former)
        }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: the pointer is to a valid set, which `new` has filled in.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut());
        }
    }
}
