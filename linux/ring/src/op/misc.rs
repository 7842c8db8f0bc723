//! Operations that transfer no data.

use super::outcome;
use crate::fd::Fd;
use crate::operation::Operation;
use io_uring::{opcode, squeue::Entry};
use std::io;

/// Does nothing, successfully.
#[derive(Debug, Default)]
pub struct Nop(());

impl Nop {
    /// Creates the operation.
    pub fn new() -> Self {
        Self(())
    }
}

// SAFETY: the entry has no pointers, so no memory must stay valid.
unsafe impl Operation for Nop {
    const DROP_RUNS_USER_CODE: bool = false;

    type Output = io::Result<()>;

    fn entry(&mut self) -> Entry {
        opcode::Nop::new().build()
    }

    fn complete(self, result: i32, _flags: u32) -> Self::Output {
        outcome(result).map(drop)
    }
}

/// Waits once for a descriptor to become ready; resolves to the events that occurred.
#[derive(Debug)]
pub struct PollAdd {
    fd: Fd,
    events: u32,
}

impl PollAdd {
    /// Waits for one of `events`, as in `poll(2)`: `POLLIN`, `POLLOUT`, …
    pub fn new(fd: Fd, events: u32) -> Self {
        Self { fd, events }
    }
}

// SAFETY: the entry has no pointers, so no memory must stay valid.
unsafe impl Operation for PollAdd {
    const DROP_RUNS_USER_CODE: bool = false;

    type Output = io::Result<u32>;

    fn entry(&mut self) -> Entry {
        opcode::PollAdd::new(self.fd.target(), self.events).build()
    }

    fn complete(self, result: i32, _flags: u32) -> Self::Output {
        outcome(result).map(|events| events as u32)
    }
}
