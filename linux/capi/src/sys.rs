//! System calls, each in a synchronous form and in an asynchronous form, as in the SharedScheduler
//! papers.

use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;

use upshift::CoroutineId;
use upshift::sys;

use crate::buf::{Buf, upshift_buf};
use crate::error::{catch_panic_code, errno};
use crate::op::{Outcome, put, upshift_op};

/// Borrows a descriptor for the duration of a call.
///
/// # Safety
/// The descriptor is negative, or stays open during the lifetime.
unsafe fn borrow<'a>(fd: c_int) -> Option<BorrowedFd<'a>> {
    // SAFETY: the descriptor is not negative, so the caller guarantees that it stays open.
    (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Reads by `read(2)` into `buf`, up to its capacity, at the file's own position, and blocks the
/// thread. Returns the number of bytes read, which becomes the length of the buffer, or a negative
/// errno. May be called on any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_read(fd: c_int, buf: *mut upshift_buf) -> i64 {
    // SAFETY: the caller guarantees that `buf` is null or valid, and that no other code uses the
    // buffer.
    let Some(buf) = (unsafe { buf.as_mut() }) else {
        return i64::from(-libc::EINVAL);
    };
    // SAFETY: the caller guarantees that `data` is valid for `capacity` bytes.
    let count = until_done(|| unsafe { libc::read(fd, buf.data.cast::<c_void>(), buf.capacity) });
    if let Ok(count) = usize::try_from(count) {
        buf.len = count;
    }
    count
}

/// Writes the bytes of a buffer by `write(2)`, at the file's own position, and blocks the thread.
/// Returns the number of bytes written, or a negative errno. May be called on any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_write(fd: c_int, buf: *const upshift_buf) -> i64 {
    // SAFETY: the caller guarantees that `buf` is null or valid.
    let Some(buf) = (unsafe { buf.as_ref() }) else {
        return i64::from(-libc::EINVAL);
    };
    // SAFETY: the caller guarantees that `data` is valid for `len` bytes.
    until_done(|| unsafe { libc::write(fd, buf.data.cast::<c_void>(), buf.len) })
}

/// Repeats a system call while signals interrupt it. Returns its count, or a negative errno.
fn until_done(call: impl Fn() -> isize) -> i64 {
    loop {
        let result = call();
        if result >= 0 {
            return result as i64;
        }
        let code = errno(&std::io::Error::last_os_error());
        if code != -libc::EINTR {
            return i64::from(code);
        }
    }
}

/// Starts the asynchronous form of a call with a descriptor and a buffer.
///
/// # Safety
/// The contracts of [`borrow`] and [`Buf::from_caller`]. `op` is null, or fulfils the contract of
/// [`put`].
unsafe fn start<F: Future<Output: Outcome>>(
    op: *mut upshift_op,
    fd: c_int,
    buf: *const upshift_buf,
    operation: impl FnOnce(BorrowedFd<'_>, Buf) -> F,
) -> c_int {
    catch_panic_code(|| {
        // SAFETY: the caller guarantees that the descriptor is negative or stays open during the
        // call.
        let Some(fd) = (unsafe { borrow(fd) }) else {
            return -libc::EBADF;
        };
        if op.is_null() {
            return -libc::EINVAL;
        }
        // SAFETY: the caller guarantees that `buf` is null or points to a buffer that is given
        // away.
        match unsafe { Buf::from_caller(buf) } {
            Ok(buf) => {
                // SAFETY: `op` is not null, so the caller guarantees that it has room for an
                // operation.
                unsafe { put(op, operation(fd, buf)) };
                0
            }
            Err(buf) => {
                buf.into_raw();
                -libc::EINVAL
            }
        }
    })
}

/// Starts a read at once. This is the asynchronous form of `upshift_read`. The completion of the
/// read wakes the coroutine `cid`. Returns 0 if the read is an operation in `op`, or a negative
/// errno. `upshift_op_poll` completes the operation: its result is the number of bytes read, and
/// the buffer is returned in `out.buf`. After a negative errno the caller still owns the buffer,
/// except after -ENOTRECOVERABLE, when the buffer has been released. May be called only in a poll
/// of a task.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_read_async(
    op: *mut upshift_op,
    fd: c_int,
    buf: *const upshift_buf,
    cid: u64,
) -> c_int {
    let cid = CoroutineId::from_u64(cid);
    // SAFETY: the caller guarantees that the descriptor is negative or stays open during the call,
    // that `buf` is null or points to a buffer that is given away, and that `op` is null or has
    // room for an operation.
    unsafe { start(op, fd, buf, |fd, buf| sys::read_async(fd, buf, cid)) }
}

/// Starts a write at once, as `upshift_read_async` starts a read. This is the asynchronous form of
/// `upshift_write`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_write_async(
    op: *mut upshift_op,
    fd: c_int,
    buf: *const upshift_buf,
    cid: u64,
) -> c_int {
    let cid = CoroutineId::from_u64(cid);
    // SAFETY: the caller guarantees that the descriptor is negative or stays open during the call,
    // that `buf` is null or points to a buffer that is given away, and that `op` is null or has
    // room for an operation.
    unsafe { start(op, fd, buf, |fd, buf| sys::write_async(fd, buf, cid)) }
}
