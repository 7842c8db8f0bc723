//! Operations that make and accept connections.

use super::outcome;
use crate::address::Address;
use crate::fd::Fd;
use crate::operation::Operation;
use io_uring::{opcode, squeue::Entry};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// Connects a socket.
#[derive(Debug)]
pub struct Connect {
    fd: Fd,
    address: Address,
}

impl Connect {
    /// Connects to `address`, which must be of the socket's family.
    pub fn new(fd: Fd, address: impl Into<Address>) -> Self {
        Self {
            fd,
            address: address.into(),
        }
    }
}

// SAFETY: the address lies in the operation, which does not move, so the pointer stays valid.
unsafe impl Operation for Connect {
    const DROP_RUNS_USER_CODE: bool = false;

    type Output = io::Result<()>;

    fn entry(&mut self) -> Entry {
        opcode::Connect::new(self.fd.target(), self.address.as_ptr(), self.address.len()).build()
    }

    fn complete(self, result: i32, _flags: u32) -> Self::Output {
        outcome(result).map(drop)
    }
}

/// Accepts one connection; resolves to its descriptor, which is close-on-exec and blocking.
/// [`AcceptMulti`](crate::AcceptMulti) costs less if many connections arrive.
#[derive(Debug)]
pub struct Accept {
    fd: Fd,
}

impl Accept {
    /// Accepts at a listening socket.
    pub fn new(fd: Fd) -> Self {
        Self { fd }
    }
}

// SAFETY: the entry has only null pointers.
unsafe impl Operation for Accept {
    const DROP_RUNS_USER_CODE: bool = false;

    type Output = io::Result<OwnedFd>;

    fn entry(&mut self) -> Entry {
        opcode::Accept::new(self.fd.target(), std::ptr::null_mut(), std::ptr::null_mut())
            .flags(libc::SOCK_CLOEXEC)
            .build()
    }

    fn complete(self, result: i32, _flags: u32) -> Self::Output {
        outcome(result)?;
        // SAFETY: the kernel made this descriptor for this operation and no other code knows it, so
        // the `OwnedFd` is its only owner.
        Ok(unsafe { OwnedFd::from_raw_fd(result) })
    }
}
