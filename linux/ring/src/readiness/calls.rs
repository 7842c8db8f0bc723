//! Helpers for both nonblocking attempts and blocking calls. They convert results to the form of
//! completions, describe the buffers of an entry, and make sockets nonblocking.

use crate::readiness::sqe::Sqe;
use io_uring::opcode;
use libc::c_int;
use std::io;

pub(crate) fn errno() -> i32 {
    io::Error::last_os_error()
        .raw_os_error()
        .unwrap_or(libc::EIO)
}

/// Converts the return value of a call into the result of a completion.
pub(crate) fn result(returned: impl Into<i64>) -> i32 {
    match returned.into() {
        -1 => -errno(),
        returned => i32::try_from(returned).unwrap_or(i32::MAX),
    }
}

/// Makes a descriptor nonblocking. Returns its former flags, or a negative value if there is no
/// such descriptor.
pub(super) fn set_nonblocking(fd: c_int) -> i32 {
    // SAFETY: the call takes no pointers, so it has no preconditions.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags >= 0 && flags & libc::O_NONBLOCK == 0 {
        // SAFETY: as above.
        unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) };
    }
    flags
}

/// Connects without blocking. For this, the socket is made nonblocking during the call.
pub(super) fn connect_at_once(sqe: &Sqe) -> i32 {
    let former_flags = set_nonblocking(sqe.fd);
    // SAFETY: the entry's address is valid for its length.
    let connected =
        result(unsafe { libc::connect(sqe.fd, sqe.pointer(), sqe.offset as libc::socklen_t) });
    if former_flags >= 0 && former_flags & libc::O_NONBLOCK == 0 {
        // SAFETY: the call takes no pointers, so it has no preconditions.
        unsafe { libc::fcntl(sqe.fd, libc::F_SETFL, former_flags) };
    }
    connected
}

/// The buffers of an entry that reads or writes: a single buffer, or an array of them.
pub(crate) struct Vectors {
    single: libc::iovec,
    /// The array in the memory of the operation, or null if there is a single buffer.
    array: *const libc::iovec,
    count: c_int,
}

impl Vectors {
    pub(crate) fn from_sqe(sqe: &Sqe) -> Self {
        let is_single = matches!(sqe.opcode, opcode::Read::CODE | opcode::Write::CODE);
        Self {
            single: libc::iovec {
                iov_base: sqe.pointer(),
                iov_len: sqe.length as usize,
            },
            array: if is_single {
                std::ptr::null()
            } else {
                sqe.pointer::<libc::iovec>()
            },
            count: if is_single {
                1
            } else {
                sqe.length.cast_signed()
            },
        }
    }

    pub(crate) fn pointer(&self) -> *const libc::iovec {
        if self.array.is_null() {
            &raw const self.single
        } else {
            self.array
        }
    }

    pub(crate) fn count(&self) -> c_int {
        self.count
    }
}
