//! Identifies the *peer*, which is the process at the other end of a socket. All facts come from
//! the kernel, not from the peer.
//!
//! Unsafe code: two socket options that no safe library supports.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::machine::Machine;

#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) pid: i32,
    pub(crate) uid: u32,
    /// The accountable user, which is `uid` or, if a range of subordinate ids contains `uid`, the
    /// owner of this range.
    pub(crate) user: u32,
    pub(crate) groups: Vec<u32>,
    /// Becomes readable when the process ends. Taken from the socket if the kernel can provide it
    /// (Linux 6.5), so that it cannot refer to a later process with the same pid.
    pub(crate) pidfd: OwnedFd,
}

impl Peer {
    pub(crate) fn identify(
        socket: BorrowedFd<'_>,
        machine: &dyn Machine,
        accountable_user: impl Fn(u32) -> u32,
    ) -> io::Result<Peer> {
        let (pid, uid, group) = credentials(socket)?;
        let pidfd = match peer_pidfd(socket) {
            Ok(pidfd) => pidfd,
            Err(_) => machine.pidfd(pid)?,
        };
        // Without the groups, a process could evade a rule that denies a group.
        let mut groups = peer_groups(socket)?;
        groups.push(group);
        Ok(Peer {
            pid,
            uid,
            user: accountable_user(uid),
            groups,
            pidfd,
        })
    }
}

/// Returns pid, user and group of the process that has connected, or that listens. The error is
/// `NotFound` if the process lives in another pid namespace.
pub(crate) fn credentials(socket: BorrowedFd<'_>) -> io::Result<(i32, u32, u32)> {
    let cred = rustix::net::sockopt::socket_peercred(socket)?;
    Ok((
        cred.pid.as_raw_nonzero().get(),
        cred.uid.as_raw(),
        cred.gid.as_raw(),
    ))
}

/// `SO_PEERPIDFD`, which libc does not define on some platforms.
const PEER_PIDFD: i32 = 77;

fn peer_pidfd(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut fd: libc::c_int = -1;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: both pointers are to locals. The kernel writes at most `length` bytes, the size of
    // `fd`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            PEER_PIDFD,
            (&raw mut fd).cast(),
            &raw mut length,
        )
    };
    if result != 0 || fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just created this descriptor for the caller.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Maximum number of groups of a process in Linux.
const MAX_GROUPS: usize = 65_536;

fn peer_groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut groups = vec![0u32; 64];
    loop {
        let mut length = (groups.len() * size_of::<u32>()) as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes to `groups`, a buffer of this length.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        let count = length as usize / size_of::<u32>();
        if result == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        // With this error, the kernel has stored the length that it needs.
        if error.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() || count > MAX_GROUPS
        {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}
