//! Operations that move bytes between a descriptor and one buffer.

use super::outcome;
use crate::buffer::{IoBuf, IoBufMut, clamp};
use crate::fd::Fd;
use crate::operation::Operation;
use io_uring::{opcode, squeue::Entry};
use std::io;

/// Returns the result and the buffer of a transfer into a buffer whose first `prefilled` bytes were
/// filled earlier.
fn finish_read<B: IoBufMut>(result: i32, prefilled: u32, mut buffer: B) -> (io::Result<usize>, B) {
    let prefilled = prefilled as usize;
    let result = match outcome(result) {
        // After an error, the bytes of earlier reads are still in the buffer.
        Err(_) if prefilled > 0 => Ok(prefilled),
        result => result.map(|count| prefilled + count),
    };
    if let Ok(count) = result {
        // SAFETY: the first `count` bytes are initialised, and `count` is at most the capacity.
        unsafe { buffer.set_filled(count) };
    }
    (result, buffer)
}

/// Reads from a file at an offset into the start of a buffer. A result of 0 bytes is the end of the
/// file.
#[derive(Debug)]
pub struct ReadAt<B> {
    fd: Fd,
    buffer: B,
    offset: u64,
    prefilled: u32,
    ioprio: u16,
}

impl<B: IoBufMut> ReadAt<B> {
    /// Reads at `offset` in bytes. `u64::MAX` means the file's own position, and suits pipes and
    /// other streams.
    pub fn new(fd: Fd, buffer: B, offset: u64) -> Self {
        Self {
            fd,
            buffer,
            offset,
            prefilled: 0,
            ioprio: 0,
        }
    }

    /// Declares that the first `count` bytes at the offset are in the buffer already. The operation
    /// reads the bytes that follow, and resolves to the total number of bytes. If the kernel
    /// reports an error and `count` is not 0, the operation resolves to `count`; the next read
    /// meets the error again.
    ///
    /// # Safety
    ///
    /// The first `count` bytes of the buffer are initialised, and `count` is at most its capacity.
    #[must_use]
    pub unsafe fn prefilled(mut self, count: u32) -> Self {
        self.prefilled = count;
        self
    }

    /// Sets the I/O priority, as `ioprio_set(2)` encodes it; 0 is the thread's own.
    #[must_use]
    pub fn ioprio(mut self, ioprio: u16) -> Self {
        self.ioprio = ioprio;
        self
    }
}

// SAFETY: the operation owns the buffer, and the buffer guarantees that its memory stays valid.
unsafe impl<B: IoBufMut> Operation for ReadAt<B> {
    const DROP_RUNS_USER_CODE: bool = B::DROP_RUNS_USER_CODE;

    type Output = (io::Result<usize>, B);

    fn entry(&mut self) -> Entry {
        let prefilled = self.prefilled as usize;
        let length = clamp(self.buffer.io_capacity() - prefilled);
        // SAFETY: the sum is within the buffer, because `prefilled` is at most the capacity.
        let start = unsafe { self.buffer.io_mut_ptr().add(prefilled) };
        opcode::Read::new(self.fd.target(), start, length)
            .offset(match self.prefilled {
                // The offset may be `u64::MAX`, the file's own position.
                0 => self.offset,
                prefilled => self.offset + u64::from(prefilled),
            })
            .ioprio(self.ioprio)
            .build()
    }

    fn complete(self, result: i32, _flags: u32) -> Self::Output {
        finish_read(result, self.prefilled, self.buffer)
    }
}

/// Writes a buffer to a file at an offset. May write only a part.
#[derive(Debug)]
pub struct WriteAt<B> {
    fd: Fd,
    buffer: B,
    offset: u64,
    ioprio: u16,
    is_copied: bool,
}

impl<B: IoBuf> WriteAt<B> {
    /// Writes at `offset` in bytes. `u64::MAX` means the file's own position, and suits pipes and
    /// other streams.
    pub fn new(fd: Fd, buffer: B, offset: u64) -> Self {
        Self {
            fd,
            buffer,
            offset,
            ioprio: 0,
            is_copied: false,
        }
    }

    /// Declares whether the write goes through the page cache. If it does, the kernel copies the
    /// bytes, and the ring [may delay the write](Operation::copied_bytes).
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

// SAFETY: the operation owns the buffer, and the buffer guarantees that its memory stays valid.
unsafe impl<B: IoBuf> Operation for WriteAt<B> {
    const DROP_RUNS_USER_CODE: bool = B::DROP_RUNS_USER_CODE;

    type Output = (io::Result<usize>, B);

    fn copied_bytes(&self) -> u32 {
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

/// Receives once from a connected socket into the start of a buffer. A result of 0 bytes means that
/// the peer has finished.
#[derive(Debug)]
pub struct Recv<B> {
    fd: Fd,
    buffer: B,
    flags: i32,
}

impl<B: IoBufMut> Recv<B> {
    /// Receives the bytes that are available and fit.
    pub fn new(fd: Fd, buffer: B) -> Self {
        Self {
            fd,
            buffer,
            flags: 0,
        }
    }

    /// Waits until the buffer is full, the peer has finished, or an error occurs.
    #[must_use]
    pub fn all(mut self) -> Self {
        self.flags |= libc::MSG_WAITALL;
        self
    }
}

// SAFETY: the operation owns the buffer, and the buffer guarantees that its memory stays valid.
unsafe impl<B: IoBufMut> Operation for Recv<B> {
    const DROP_RUNS_USER_CODE: bool = B::DROP_RUNS_USER_CODE;

    type Output = (io::Result<usize>, B);

    fn entry(&mut self) -> Entry {
        let length = clamp(self.buffer.io_capacity());
        opcode::Recv::new(self.fd.target(), self.buffer.io_mut_ptr(), length)
            .flags(self.flags)
            .build()
    }

    fn complete(self, result: i32, _flags: u32) -> Self::Output {
        finish_read(result, 0, self.buffer)
    }
}

/// Sends a buffer on a connected socket. If the peer is gone, the error is EPIPE, and no signal is
/// raised.
#[derive(Debug)]
pub struct Send<B> {
    fd: Fd,
    buffer: B,
    flags: i32,
}

impl<B: IoBuf> Send<B> {
    /// Sends as many bytes as the socket takes at once.
    pub fn new(fd: Fd, buffer: B) -> Self {
        Self {
            fd,
            buffer,
            flags: libc::MSG_NOSIGNAL,
        }
    }

    /// Waits until everything is sent, with one completion even if the peer is slow.
    #[must_use]
    pub fn all(mut self) -> Self {
        self.flags |= libc::MSG_WAITALL;
        self
    }

    /// Announces that more data follows soon (`MSG_MORE`).
    #[must_use]
    pub fn more(mut self) -> Self {
        self.flags |= libc::MSG_MORE;
        self
    }
}

// SAFETY: the operation owns the buffer, and the buffer guarantees that its memory stays valid.
unsafe impl<B: IoBuf> Operation for Send<B> {
    const DROP_RUNS_USER_CODE: bool = B::DROP_RUNS_USER_CODE;

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
