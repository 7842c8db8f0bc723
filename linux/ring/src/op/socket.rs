//! Connecting sockets.

use super::outcome;
use crate::address::Address;
use crate::fd::Fd;
use crate::operation::Operation;
use io_uring::{opcode, squeue::Entry};
use std::io;

/// Connects a socket.
#[derive(Debug)]
pub struct Connect {
    fd: Fd,
    address: Address,
}

impl Connect {
    /// Connects to `address`, whose family is that of the socket.
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
