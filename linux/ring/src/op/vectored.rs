//! Operations that move bytes between a descriptor and several buffers.

use super::outcome;
use crate::buffer::{IoBuf, IoBufMut, clamp};
use crate::fd::Fd;
use crate::operation::Operation;
use io_uring::{opcode, squeue::Entry};
use std::{fmt, io, ptr};

/// Descriptions of an operation's buffers for the kernel, made when the operation has its final
/// address.
struct Vectors(Vec<libc::iovec>);

// SAFETY: the pointers are only passed to the kernel, so any thread may hold them. The operation
// that owns the vectors owns the buffers, too.
unsafe impl std::marker::Send for Vectors {}

impl Vectors {
    /// Describes buffers from which the kernel takes bytes.
    fn from_sources<B: IoBuf>(buffers: &[B]) -> Self {
        let vector = |buffer: &B| libc::iovec {
            iov_base: buffer.io_ptr().cast_mut().cast(),
            iov_len: buffer.io_len(),
        };
        Self(buffers.iter().map(vector).collect())
    }

    /// Describes buffers that the kernel fills.
    fn from_targets<B: IoBufMut>(buffers: &mut [B]) -> Self {
        let vector = |buffer: &mut B| libc::iovec {
            iov_base: buffer.io_mut_ptr().cast(),
            iov_len: buffer.io_capacity(),
        };
        Self(buffers.iter_mut().map(vector).collect())
    }
}

macro_rules! debug {
    ($($type:ident),*) => { $(
        impl<B> fmt::Debug for $type<B> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($type))
                    .field("fd", &self.fd)
                    .field("buffers", &self.buffers.len())
                    .finish_non_exhaustive()
            }
        }
    )* };
}

debug!(ReadVectored, WriteVectored, SendVectored);

macro_rules! at_position {
    ($type:ident, $buffer:ident $(, $field:ident: $value:expr)?) => {
        impl<B: $buffer> $type<B> {
            /// Transfers at `offset` in bytes; `u64::MAX` means the file's own position.
            pub fn new(fd: Fd, buffers: Vec<B>, offset: u64) -> Self {
                Self {
                    fd,
                    buffers,
                    vectors: Vectors(Vec::new()),
                    offset,
                    ioprio: 0,
                    $($field: $value,)?
                }
            }

            /// Sets the I/O priority, as `ioprio_set(2)` encodes it; 0 is the thread's own.
            #[must_use]
            pub fn ioprio(mut self, ioprio: u16) -> Self {
                self.ioprio = ioprio;
                self
            }
        }
    };
}

/// Reads from a file at a position into several buffers, one after the other. At most 1024 buffers.
pub struct ReadVectored<B> {
    fd: Fd,
    buffers: Vec<B>,
    vectors: Vectors,
    offset: u64,
    ioprio: u16,
}

at_position!(ReadVectored, IoBufMut);

// SAFETY: the operation owns the heap memory that holds the buffers and the vectors, so the
// pointers to them stay valid. By the contract of `IoBufMut`, so do the buffers' own pointers.
unsafe impl<B: IoBufMut> Operation for ReadVectored<B> {
    const DROP_RUNS_USER_CODE: bool = B::DROP_RUNS_USER_CODE;

    type Output = (io::Result<usize>, Vec<B>);

    fn entry(&mut self) -> Entry {
        self.vectors = Vectors::from_targets(&mut self.buffers);
        let vectors = &self.vectors.0;
        opcode::Readv::new(self.fd.target(), vectors.as_ptr(), vectors.len() as u32)
            .offset(self.offset)
            .ioprio(self.ioprio)
            .build()
    }

    fn complete(mut self, result: i32, _flags: u32) -> Self::Output {
        let result = outcome(result);
        let mut remaining = *result.as_ref().unwrap_or(&0);
        if result.is_ok() {
            for buffer in &mut self.buffers {
                let count = remaining.min(buffer.io_capacity());
                // SAFETY: the kernel fills the buffers in order, so it has initialised the first
                // `count` bytes of this one.
                unsafe { buffer.set_filled(count) };
                remaining -= count;
            }
        }
        (result, self.buffers)
    }
}

/// Writes several buffers to a file at a position, one after the other. At most 1024 buffers.
pub struct WriteVectored<B> {
    fd: Fd,
    buffers: Vec<B>,
    vectors: Vectors,
    offset: u64,
    ioprio: u16,
    is_copied: bool,
}

at_position!(WriteVectored, IoBuf, is_copied: false);

impl<B: IoBuf> WriteVectored<B> {
    /// Declares whether the write goes through the page cache; see
    /// [`WriteAt::copied`](super::WriteAt::copied).
    #[must_use]
    pub fn copied(mut self, is_copied: bool) -> Self {
        self.is_copied = is_copied;
        self
    }
}

// SAFETY: as for `ReadVectored`.
unsafe impl<B: IoBuf> Operation for WriteVectored<B> {
    const DROP_RUNS_USER_CODE: bool = B::DROP_RUNS_USER_CODE;

    type Output = (io::Result<usize>, Vec<B>);

    fn copied_bytes(&self) -> u32 {
        if !self.is_copied {
            return 0;
        }
        let lengths = self.buffers.iter().map(|buffer| clamp(buffer.io_len()));
        lengths.fold(0, u32::saturating_add)
    }

    fn entry(&mut self) -> Entry {
        self.vectors = Vectors::from_sources(&self.buffers);
        let vectors = &self.vectors.0;
        opcode::Writev::new(self.fd.target(), vectors.as_ptr(), vectors.len() as u32)
            .offset(self.offset)
            .ioprio(self.ioprio)
            .build()
    }

    fn complete(self, result: i32, _flags: u32) -> Self::Output {
        (outcome(result), self.buffers)
    }
}

/// Sends several buffers on a connected socket, one after the other. At most 1024 buffers. If the
/// peer is gone, the error is EPIPE, and no signal is raised.
pub struct SendVectored<B> {
    fd: Fd,
    buffers: Vec<B>,
    vectors: Vectors,
    message: Message,
    flags: u32,
}

struct Message(libc::msghdr);

// SAFETY: the pointers are only passed to the kernel, so any thread may hold them. The operation
// that owns the header owns the memory, too.
unsafe impl std::marker::Send for Message {}

impl<B: IoBuf> SendVectored<B> {
    /// Sends as many bytes as the socket takes at once.
    pub fn new(fd: Fd, buffers: Vec<B>) -> Self {
        Self {
            fd,
            buffers,
            vectors: Vectors(Vec::new()),
            // SAFETY: all zeroes is an empty message.
            message: Message(unsafe { std::mem::zeroed() }),
            flags: libc::MSG_NOSIGNAL as u32,
        }
    }

    /// Waits until everything is sent.
    #[must_use]
    pub fn all(mut self) -> Self {
        self.flags |= libc::MSG_WAITALL as u32;
        self
    }
}

// SAFETY: as for `ReadVectored`; the header lies in the operation, which does not move.
unsafe impl<B: IoBuf> Operation for SendVectored<B> {
    const DROP_RUNS_USER_CODE: bool = B::DROP_RUNS_USER_CODE;

    type Output = (io::Result<usize>, Vec<B>);

    fn entry(&mut self) -> Entry {
        self.vectors = Vectors::from_sources(&self.buffers);
        self.message.0.msg_iov = self.vectors.0.as_mut_ptr();
        self.message.0.msg_iovlen = self.vectors.0.len() as _;
        opcode::SendMsg::new(self.fd.target(), ptr::from_ref(&self.message.0))
            .flags(self.flags)
            .build()
    }

    fn complete(self, result: i32, _flags: u32) -> Self::Output {
        (outcome(result), self.buffers)
    }
}
