//! Moving bytes between a descriptor and one buffer.

use super::outcome;
use crate::buffer::{IoBuf, IoBufMut, clamp};
use crate::fd::Fd;
use crate::operation::Operation;
use io_uring::{opcode, squeue::Entry};
use std::io;

/// Result and buffer of a transfer that fills the buffer behind its first `before` bytes, which are there already.
fn filled<B: IoBufMut>(result: i32, before: u32, mut buffer: B) -> (io::Result<usize>, B) {
    let before = before as usize;
    let result = match outcome(result) {
        // What is there is there.
        Err(_) if before > 0 => Ok(before),
        result => result.map(|count| before + count),
    };
    if let Ok(count) = result {
        // SAFETY: so many bytes from the first one on have been written, and never more than there was room for.
        unsafe { buffer.set_filled(count) };
    }
    (result, buffer)
}

/// Reads from a file at a position, into a buffer from its first byte on. 0 bytes: end of file.
#[derive(Debug)]
pub struct ReadAt<B> {
    fd: Fd,
    buffer: B,
    offset: u64,
    before: u32,
    ioprio: u16,
}

impl<B: IoBufMut> ReadAt<B> {
    /// `offset` in bytes; `u64::MAX` means the file's own position, and is right for pipes and the like.
    pub fn new(fd: Fd, buffer: B, offset: u64) -> Self {
        Self {
            fd,
            buffer,
            offset,
            before: 0,
            ioprio: 0,
        }
    }

    /// Of what is to be read, the first `count` bytes are in the buffer already: reads what comes behind them, and resolves to the
    /// bytes of both. An error is then told by the next read.
    ///
    /// # Safety
    ///
    /// The first `count` bytes of the buffer are initialised, and there is room for so many.
    #[must_use]
    pub unsafe fn behind(mut self, count: u32) -> Self {
        self.before = count;
        self
    }

    /// Sets the I/O priority, as `ioprio_set(2)` encodes it; 0 is the thread's own.
    #[must_use]
    pub fn ioprio(mut self, ioprio: u16) -> Self {
        self.ioprio = ioprio;
        self
    }
}

// SAFETY: the buffer vouches for its memory and lies in the operation.
unsafe impl<B: IoBufMut> Operation for ReadAt<B> {
    const FOREIGN: bool = B::FOREIGN;

    type Output = (io::Result<usize>, B);

    fn entry(&mut self) -> Entry {
        let before = self.before as usize;
        let length = clamp(self.buffer.io_capacity() - before);
        // SAFETY: there is room for what is there already.
        let start = unsafe { self.buffer.io_mut_ptr().add(before) };
        opcode::Read::new(self.fd.target(), start, length)
            .offset(match self.before {
                // Perhaps the file's own position.
                0 => self.offset,
                before => self.offset + u64::from(before),
            })
            .ioprio(self.ioprio)
            .build()
    }

    fn complete(self, result: i32, _flags: u32) -> Self::Output {
        filled(result, self.before, self.buffer)
    }
}

/// Writes a buffer to a file at a position. May write less than all of it.
#[derive(Debug)]
pub struct WriteAt<B> {
    fd: Fd,
    buffer: B,
    offset: u64,
    ioprio: u16,
    is_copied: bool,
}

impl<B: IoBuf> WriteAt<B> {
    /// `offset` in bytes; `u64::MAX` means the file's own position, and is right for pipes and the like.
    pub fn new(fd: Fd, buffer: B, offset: u64) -> Self {
        Self {
            fd,
            buffer,
            offset,
            ioprio: 0,
            is_copied: false,
        }
    }

    /// The file is written through the page cache: so the kernel copies the bytes, and [may be handed them later](Operation::copies).
    #[must_use]
    pub fn copied(mut self, is_copied: bool) -> Self {
        self.is_copied = is_copied;
        self
    }

    /// Sets the I/O priority, as `ioprio_set(2)` encodes it; 0 is the thread's own.
    #[must_use]
    pub fn ioprio(mut self, ioprio: u16) -> Self {
        self.ioprio = ioprio;
        self
    }
}

// SAFETY: the buffer vouches for its memory and lies in the operation.
unsafe impl<B: IoBuf> Operation for WriteAt<B> {
    const FOREIGN: bool = B::FOREIGN;

    type Output = (io::Result<usize>, B);

    fn copies(&self) -> u32 {
        if self.is_copied {
            clamp(self.buffer.io_len())
        } else {
            0
        }
    }

    fn entry(&mut self) -> Entry {
        let length = clamp(self.buffer.io_len());
        opcode::Write::new(self.fd.target(), self.buffer.io_ptr(), length)
            .offset(self.offset)
            .ioprio(self.ioprio)
            .build()
    }

    fn complete(self, result: i32, _flags: u32) -> Self::Output {
        (outcome(result), self.buffer)
    }
}

/// Receives once from a connected socket, into a buffer from its first byte on. 0 bytes: the peer has finished.
#[derive(Debug)]
pub struct Recv<B> {
    fd: Fd,
    buffer: B,
    flags: i32,
}

impl<B: IoBufMut> Recv<B> {
    /// As much as there is and as fits.
    pub fn new(fd: Fd, buffer: B) -> Self {
        Self {
            fd,
            buffer,
            flags: 0,
        }
    }

    /// Waits until the buffer is full, the peer has finished, or an error.
    #[must_use]
    pub fn all(mut self) -> Self {
        self.flags |= libc::MSG_WAITALL;
        self
    }
}

// SAFETY: the buffer vouches for its memory and lies in the operation.
unsafe impl<B: IoBufMut> Operation for Recv<B> {
    const FOREIGN: bool = B::FOREIGN;

    type Output = (io::Result<usize>, B);

    fn entry(&mut self) -> Entry {
        let length = clamp(self.buffer.io_capacity());
        opcode::Recv::new(self.fd.target(), self.buffer.io_mut_ptr(), length)
            .flags(self.flags)
            .build()
    }

    fn complete(self, result: i32, _flags: u32) -> Self::Output {
        filled(result, 0, self.buffer)
    }
}

/// Sends a buffer on a connected socket. A peer that has gone is the error EPIPE, never a signal.
#[derive(Debug)]
pub struct Send<B> {
    fd: Fd,
    buffer: B,
    flags: i32,
}

impl<B: IoBuf> Send<B> {
    /// As much as the socket takes at once.
    pub fn new(fd: Fd, buffer: B) -> Self {
        Self {
            fd,
            buffer,
            flags: libc::MSG_NOSIGNAL,
        }
    }

    /// Waits until everything is sent: one completion however slow the peer is.
    #[must_use]
    pub fn all(mut self) -> Self {
        self.flags |= libc::MSG_WAITALL;
        self
    }

    /// Says that more follows soon (`MSG_MORE`).
    #[must_use]
    pub fn more(mut self) -> Self {
        self.flags |= libc::MSG_MORE;
        self
    }
}

// SAFETY: the buffer vouches for its memory and lies in the operation.
unsafe impl<B: IoBuf> Operation for Send<B> {
    const FOREIGN: bool = B::FOREIGN;

    type Output = (io::Result<usize>, B);

    #[inline]
    fn entry(&mut self) -> Entry {
        let length = clamp(self.buffer.io_len());
        opcode::Send::new(self.fd.target(), self.buffer.io_ptr(), length)
            .flags(self.flags)
            .build()
    }

    #[inline]
    fn complete(self, result: i32, _flags: u32) -> Self::Output {
        (outcome(result), self.buffer)
    }
}
