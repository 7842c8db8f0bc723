//! The credentials of the process at the other end.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The process and user at the other end of a connection, at the time when it was established.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UCred {
    pid: libc::pid_t,
    uid: libc::uid_t,
    gid: libc::gid_t,
}

impl UCred {
    /// Returns the process id, or `None` if the peer has no id in this process's PID namespace.
    #[must_use]
    pub fn pid(&self) -> Option<i32> {
        (self.pid != 0).then_some(self.pid)
    }

    /// Returns the effective user id.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Returns the effective group id.
    #[must_use]
    pub fn gid(&self) -> u32 {
        self.gid
    }
}

pub(super) fn peer_credentials(socket: BorrowedFd<'_>) -> io::Result<UCred> {
    let mut answer = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: both pointers are to locals, and `length` is the size of `answer`, so the kernel
    // writes within `answer`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut answer).cast(),
            &raw mut length,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(UCred {
        pid: answer.pid,
        uid: answer.uid,
        gid: answer.gid,
    })
}
