//! The papers' system calls in two forms.

use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;

use upshift::CoroutineId;
use upshift::sys;

use crate::buf::{Buf, upshift_buf};
use crate::error::{errno, wall};
use crate::op::{put, upshift_op};

/// The descriptor for the length of a call.
///
/// # Safety
/// It stays open meanwhile.
unsafe fn borrow<'a>(fd: c_int) -> Option<BorrowedFd<'a>> {
    // SAFETY: not -1, and open by contract.
    (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
}

/// `read(2)` into `buf` up to its capacity, at the file's own position: blocks the thread. The count, which is the buffer's length then, or a negative
/// errno. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_read(fd: c_int, buf: *mut upshift_buf) -> i64 {
    // SAFETY: null, or by contract the caller's, which keeps it.
    let Some(buf) = (unsafe { buf.as_mut() }) else {
        return i64::from(-libc::EINVAL);
    };
    loop {
        // SAFETY: by contract good for so many bytes.
        let count = unsafe { libc::read(fd, buf.data.cast::<c_void>(), buf.capacity) };
        if let Ok(count) = usize::try_from(count) {
            buf.len = count;
            return count as i64;
        }
        let code = errno(&std::io::Error::last_os_error());
        if code != -libc::EINTR {
            return i64::from(code);
        }
    }
}

/// `write(2)` of the buffer's bytes, at the file's own position: blocks the thread. The count or a negative errno. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_write(fd: c_int, buf: *const upshift_buf) -> i64 {
    // SAFETY: null, or by contract the caller's.
    let Some(buf) = (unsafe { buf.as_ref() }) else {
        return i64::from(-libc::EINVAL);
    };
    loop {
        // SAFETY: by contract good for so many bytes.
        let count = unsafe { libc::write(fd, buf.data.cast::<c_void>(), buf.len) };
        if count >= 0 {
            return count as i64;
        }
        let code = errno(&std::io::Error::last_os_error());
        if code != -libc::EINTR {
            return i64::from(code);
        }
    }
}

/// The second form: the operation starts at once, and wakes the coroutine `cid` when it is done; poll `op` for the result (the count; out.buf is the buffer).
/// In a poll. 0; or a negative errno, and the buffer is still the caller's, unless it is -ENOTRECOVERABLE: then it has been released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_read_async(
    op: *mut upshift_op,
    fd: c_int,
    buf: *const upshift_buf,
    cid: u64,
) -> c_int {
    wall(|| {
        // SAFETY: by contract.
        let Some(fd) = (unsafe { borrow(fd) }) else {
            return -libc::EBADF;
        };
        if op.is_null() {
            return -libc::EINVAL;
        }
        // SAFETY: the caller gives it away.
        let buf = match unsafe { Buf::given(buf) } {
            Ok(buf) => buf,
            Err(buf) => {
                buf.into_raw();
                return -libc::EINVAL;
            }
        };
        // SAFETY: by contract.
        unsafe { put(op, sys::read_async(fd, buf, CoroutineId::from_u64(cid))) };
        0
    })
}

/// As `upshift_read_async`, of `upshift_write`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_write_async(
    op: *mut upshift_op,
    fd: c_int,
    buf: *const upshift_buf,
    cid: u64,
) -> c_int {
    wall(|| {
        // SAFETY: by contract.
        let Some(fd) = (unsafe { borrow(fd) }) else {
            return -libc::EBADF;
        };
        if op.is_null() {
            return -libc::EINVAL;
        }
        // SAFETY: the caller gives it away.
        let buf = match unsafe { Buf::given(buf) } {
            Ok(buf) => buf,
            Err(buf) => {
                buf.into_raw();
                return -libc::EINVAL;
            }
        };
        // SAFETY: by contract.
        unsafe { put(op, sys::write_async(fd, buf, CoroutineId::from_u64(cid))) };
        0
    })
}
