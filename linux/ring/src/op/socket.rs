//! Making and ending connections.

use super::outcome;
use crate::address::Address;
use crate::fd::Fd;
use crate::operation::Operation;
use io_uring::{opcode, squeue::Entry};
use std::io;
use std::net::Shutdown as How;
use std::os::fd::{FromRawFd, OwnedFd};

/// Connects a socket.
#[derive(Debug)]
pub struct Connect {
    fd: Fd,
    address: Address,
}

impl Connect {
    /// To `address`, of the socket's own family.
    pub fn new(fd: Fd, address: impl Into<Address>) -> Self {
        Self {
            fd,
            address: address.into(),
        }
    }
}

// SAFETY: the address lies in the operation.
unsafe impl Operation for Connect {
    const FOREIGN: bool = false;

    type Output = io::Result<()>;

    fn entry(&mut self) -> Entry {
        opcode::Connect::new(self.fd.target(), self.address.as_ptr(), self.address.len()).build()
    }

    fn complete(self, result: i32, _flags: u32) -> Self::Output {
        outcome(result).map(drop)
    }
}

/// Accepts one connection; resolves to it and to the peer's address. The descriptor is close-on-exec and blocking.
#[derive(Debug)]
pub struct Accept {
    fd: Fd,
    address: Address,
}

impl Accept {
    /// From a listening socket.
    pub fn new(fd: Fd) -> Self {
        Self {
            fd,
            address: Address::unset(),
        }
    }
}

// SAFETY: the address lies in the operation.
unsafe impl Operation for Accept {
    const FOREIGN: bool = false;

    type Output = io::Result<(OwnedFd, Address)>;

    fn entry(&mut self) -> Entry {
        let (address, length) = self.address.parts_mut();
        opcode::Accept::new(self.fd.target(), address, length)
            .flags(libc::SOCK_CLOEXEC)
            .build()
    }

    fn complete(self, result: i32, _flags: u32) -> Self::Output {
        outcome(result)?;
        // SAFETY: the kernel made this descriptor for us, and it is known here only.
        Ok((unsafe { OwnedFd::from_raw_fd(result) }, self.address))
    }
}

/// Ends one or both directions of a connection.
#[derive(Debug)]
pub struct Shutdown {
    fd: Fd,
    how: How,
}

impl Shutdown {
    /// `how` as in the standard library.
    pub fn new(fd: Fd, how: How) -> Self {
        Self { fd, how }
    }
}

// SAFETY: the entry points to nothing.
unsafe impl Operation for Shutdown {
    const FOREIGN: bool = false;

    type Output = io::Result<()>;

    fn entry(&mut self) -> Entry {
        let how = match self.how {
            How::Read => libc::SHUT_RD,
            How::Write => libc::SHUT_WR,
            How::Both => libc::SHUT_RDWR,
        };
        opcode::Shutdown::new(self.fd.target(), how).build()
    }

    fn complete(self, result: i32, _flags: u32) -> Self::Output {
        outcome(result).map(drop)
    }
}
