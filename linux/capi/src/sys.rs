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
/// The descriptor stays open during the lifetime.
unsafe fn borrow<'a>(fd: c_int) -> Option<BorrowedFd<'a>> {
    // SAFETY: the descriptor is not negative, and by contract it stays open.
    (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Calls `read(2)` into `buf` up to its capacity, at the file's own position, and blocks the
/// thread. Returns the count, which then is the buffer's length, or a negative errno. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_read(fd: c_int, buf: *mut upshift_buf) -> i64 {
    // SAFETY: by contract the pointer is null or valid, and no other code uses the buffer.
    let Some(buf) = (unsafe { buf.as_mut() }) else {
        return i64::from(-libc::EINVAL);
    };
    // SAFETY: by contract the buffer is valid for that many bytes.
    let count = until_done(|| unsafe { libc::read(fd, buf.data.cast::<c_void>(), buf.capacity) });
    if let Ok(count) = usize::try_from(count) {
        buf.len = count;
    }
    count
}

/// Calls `write(2)` with the buffer's bytes, at the file's own position, and blocks the thread.
/// Returns the count or a negative errno. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_write(fd: c_int, buf: *const upshift_buf) -> i64 {
    // SAFETY: by contract the pointer is null or valid.
    let Some(buf) = (unsafe { buf.as_ref() }) else {
        return i64::from(-libc::EINVAL);
    };
    // SAFETY: by contract the buffer is valid for that many bytes.
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
/// The contracts of [`borrow`], [`Buf::from_caller`] and [`put`].
unsafe fn start<F: Future<Output: Outcome>>(
    op: *mut upshift_op,
    fd: c_int,
    buf: *const upshift_buf,
    operation: impl FnOnce(BorrowedFd<'_>, Buf) -> F,
) -> c_int {
    catch_panic_code(|| {
        // SAFETY: by contract the descriptor stays open for the duration of the call.
        let Some(fd) = (unsafe { borrow(fd) }) else {
            return -libc::EBADF;
        };
        if op.is_null() {
            return -libc::EINVAL;
        }
        // SAFETY: the caller gives the buffer away.
        match unsafe { Buf::from_caller(buf) } {
            Ok(buf) => {
                // SAFETY: `op` is not null, so by contract it is room for an operation.
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

/// Starts a read at once: the asynchronous form of `upshift_read`. The read wakes the coroutine
/// `cid` when it is done. Poll `op` for the result (the count; out.buf is the buffer). Called in a
/// poll. Returns 0 or a negative errno. After an error the caller still owns the buffer, except
/// after -ENOTRECOVERABLE: then the buffer has been released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_read_async(
    op: *mut upshift_op,
    fd: c_int,
    buf: *const upshift_buf,
    cid: u64,
) -> c_int {
    let cid = CoroutineId::from_u64(cid);
    // SAFETY: the caller upholds the requirements of this call.
    unsafe { start(op, fd, buf, |fd, buf| sys::read_async(fd, buf, cid)) }
}

/// Starts a write at once, like `upshift_read_async`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_write_async(
    op: *mut upshift_op,
    fd: c_int,
    buf: *const upshift_buf,
    cid: u64,
) -> c_int {
    let cid = CoroutineId::from_u64(cid);
    // SAFETY: the caller upholds the requirements of this call.
    unsafe { start(op, fd, buf, |fd, buf| sys::write_async(fd, buf, cid)) }
}
