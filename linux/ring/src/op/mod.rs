//! The operations. Each owns the memory and descriptors that it refers to, and resolves to its
//! result together with its buffers.
//!
//! | group | operations |
//! |---|---|
//! | no effect | [`Nop`], for tests and measurements |
//! | bytes of files | [`ReadAt`], [`WriteAt`], [`ReadVectored`], [`WriteVectored`] |
//! | files | [`OpenAt`], [`Statx`], [`Fsync`], [`Ftruncate`] |
//! | names | [`OpenAt2`], [`MkDirAt`], [`UnlinkAt`], [`RenameAt`], [`LinkAt`], [`SymlinkAt`] |
//! | sockets | [`Recv`], [`Send`], [`SendVectored`], [`Connect`], [`Accept`] |
//! | readiness | [`PollAdd`] |
//!
//! To cancel, drop the [`Submission`](crate::Submission) or call its
//! [`cancel`](crate::Submission::cancel).

mod file;
mod misc;
mod path;
mod socket;
mod transfer;
mod vectored;

pub use file::{Fsync, Ftruncate, OpenAt, Statx};
pub use misc::{Nop, PollAdd};
pub use path::{LinkAt, MkDirAt, OpenAt2, RenameAt, SymlinkAt, UnlinkAt};
pub use socket::{Accept, Connect};
pub use transfer::{ReadAt, Recv, Send, WriteAt};
pub use vectored::{ReadVectored, SendVectored, WriteVectored};

use std::io;

/// Converts a result of the kernel: a count, or a negative errno.
#[inline]
pub(crate) fn outcome(result: i32) -> io::Result<usize> {
    if result >= 0 {
        Ok(result as usize)
    } else {
        Err(io::Error::from_raw_os_error(-result))
    }
}
