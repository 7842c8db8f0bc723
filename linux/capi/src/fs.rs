//! Files with positional reads and writes.

use std::ffi::{c_char, c_int};
use std::io;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::ptr::null_mut;

use upshift::fs::{File, OpenOptions};

use crate::buf::{Buf, upshift_buf};
use crate::cx::upshift_cx;
use crate::error::{free, invalid};
use crate::net::{self, take_fd};
use crate::op::{Handles, Outcome, finish, start, upshift_op};

/// An open file. It may be used on any thread, and on several threads at the same time. The caller
/// must not free it before all operations on it have ended.
pub struct upshift_file(File);

type BoxedFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

fn into_handles(file: File) -> Handles {
    Handles(
        Box::into_raw(Box::new(upshift_file(file))).cast(),
        null_mut(),
    )
}

fn open_options(flags: c_int, mode: u32) -> OpenOptions {
    let mut options = OpenOptions::new();
    let known_flags =
        libc::O_ACCMODE | libc::O_APPEND | libc::O_TRUNC | libc::O_CREAT | libc::O_EXCL;
    let access = flags & libc::O_ACCMODE;
    let is_exclusive = flags & libc::O_EXCL != 0;
    options
        .read(access != libc::O_WRONLY)
        .write(access != libc::O_RDONLY)
        .append(flags & libc::O_APPEND != 0)
        .truncate(flags & libc::O_TRUNC != 0)
        .create(flags & libc::O_CREAT != 0)
        .create_new(is_exclusive && flags & libc::O_CREAT != 0)
        .custom_flags(flags & !known_flags)
        .mode(mode);
    options
}

/// Opens a file like `open(2)`. The result is 0 on success, and `out.handles[0]` is the
/// upshift_file. If `beneath` is not null, the path is relative to that directory and cannot lead
/// outside of it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_open(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    beneath: *const upshift_file,
    path: *const c_char,
    flags: c_int,
    mode: u32,
) -> c_int {
    // SAFETY: the caller guarantees that `path` is null or a C string, and that `beneath` is null
    // or a file that outlives the operation.
    let (path, beneath): (_, Option<&'static upshift_file>) =
        unsafe { (net::copy_path(path), beneath.as_ref()) };
    let future: BoxedFuture<io::Result<Handles>> = Box::pin(async move {
        let options = open_options(flags, mode);
        Ok(into_handles(match beneath {
            Some(directory) => options.open_beneath(&directory.0, path?).await?,
            None => options.open(path?).await?,
        }))
    });
    // SAFETY: the caller guarantees that `op` is null or has room for an operation, and that `cx`
    // is null or belongs to the current poll.
    unsafe { start(op, cx, future) }
}

/// Adopts the descriptor of an open file. The returned upshift_file owns the descriptor from the
/// call on. Returns null if the descriptor is not open. May be called on any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_file_from_fd(fd: c_int) -> *mut upshift_file {
    // SAFETY: the caller guarantees that it owns the descriptor, which it gives away.
    let Ok(fd) = (unsafe { take_fd(fd) }) else {
        return null_mut();
    };
    Box::into_raw(Box::new(upshift_file(File::from_std(fd.into()))))
}

/// Returns the descriptor of the file, which still owns it, or -EBADF if `file` is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_file_fd(file: *const upshift_file) -> c_int {
    // SAFETY: the caller guarantees that `file` is null or valid.
    unsafe { file.as_ref() }.map_or(-libc::EBADF, |file| file.0.as_raw_fd())
}

/// Frees a file. Does nothing for null. May be called on any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_file_free(file: *mut upshift_file) {
    // SAFETY: the caller guarantees that the pointer is null or its own file, which it frees once.
    unsafe { free(file) };
}

/// Returns the file of a call, or the error `InvalidInput` if `file` is null.
///
/// # Safety
/// `file` is null, or outlives the operation.
#[inline]
unsafe fn file_ref(file: *const upshift_file) -> io::Result<&'static File> {
    // SAFETY: the caller guarantees that `file` is null or outlives the operation.
    let file: Option<&'static upshift_file> = unsafe { file.as_ref() };
    file.map(|file| &file.0).ok_or_else(invalid)
}

/// Checks the file and the buffer of a call. Returns both, or the error and the buffer to give
/// back.
///
/// # Safety
/// The contracts of [`file_ref`] and [`Buf::from_caller`].
#[inline]
unsafe fn check_arguments(
    file: *const upshift_file,
    buf: *const upshift_buf,
) -> Result<(&'static File, Buf), (io::Result<usize>, Buf)> {
    // SAFETY: the caller guarantees that `file` is null or outlives the operation, and that `buf`
    // is null or points to a buffer that is given away.
    match unsafe { (file_ref(file), Buf::from_caller(buf)) } {
        (Ok(file), Ok(buf)) => Ok((file, buf)),
        (_, Ok(buf) | Err(buf)) => Err((Err(invalid()), buf)),
    }
}

/// Starts an operation on a file and a buffer, or hands the buffer back with the error.
///
/// # Safety
/// The contracts of [`check_arguments`] and [`start`].
#[inline]
unsafe fn start_with<F: Future<Output: Outcome>>(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    file: *const upshift_file,
    buf: *const upshift_buf,
    operation: impl FnOnce(&'static File, Buf) -> F,
) -> c_int {
    // SAFETY: the caller guarantees that `file` is null or outlives the operation, and that `buf`
    // is null or points to a buffer that is given away.
    match unsafe { check_arguments(file, buf) } {
        // SAFETY: the caller guarantees that `op` is null or has room for an operation, and that
        // `cx` is null or belongs to the current poll.
        Ok((file, buf)) => unsafe { start(op, cx, operation(file, buf)) },
        // SAFETY: the caller guarantees that `op` is null or has room for an operation.
        Err(outcome) => unsafe { finish(op, outcome) },
    }
}

/// Reads at a position into a buffer, up to its capacity. The result is the number of bytes read, 0
/// at the end of the file. The buffer is returned in `out.buf`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_read_at(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    file: *const upshift_file,
    buf: *const upshift_buf,
    offset: u64,
) -> c_int {
    // SAFETY: the caller guarantees that `op`, `file` and `buf` are null or valid, that the file
    // outlives the operation, that the buffer is given away, and that `cx` is null or belongs to
    // the current poll.
    unsafe { start_with(op, cx, file, buf, |file, buf| file.read_at(buf, offset)) }
}

/// Writes the bytes of a buffer at a position. The result is the number of bytes written, which may
/// be less than the length of the buffer. The buffer is returned in `out.buf`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_write_at(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    file: *const upshift_file,
    buf: *const upshift_buf,
    offset: u64,
) -> c_int {
    // SAFETY: the caller guarantees that `op`, `file` and `buf` are null or valid, that the file
    // outlives the operation, that the buffer is given away, and that `cx` is null or belongs to
    // the current poll.
    unsafe { start_with(op, cx, file, buf, |file, buf| file.write_at(buf, offset)) }
}

/// Writes all bytes of a buffer at a position. The result is 0 on success. The buffer is returned
/// in `out.buf`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_write_all_at(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    file: *const upshift_file,
    buf: *const upshift_buf,
    offset: u64,
) -> c_int {
    let operation = |file: &'static File, buf| -> BoxedFuture<(io::Result<()>, Buf)> {
        Box::pin(file.write_all_at(buf, offset))
    };
    // SAFETY: the caller guarantees that `op`, `file` and `buf` are null or valid, that the file
    // outlives the operation, that the buffer is given away, and that `cx` is null or belongs to
    // the current poll.
    unsafe { start_with(op, cx, file, buf, operation) }
}

/// Waits until written data is on the device and, if `data_only` is 0, the metadata as well. The
/// result is 0 on success.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_file_sync(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    file: *const upshift_file,
    data_only: c_int,
) -> c_int {
    // SAFETY: the caller guarantees that `file` is null or outlives the operation.
    let file = match unsafe { file_ref(file) } {
        Ok(file) => file,
        // SAFETY: the caller guarantees that `op` is null or has room for an operation.
        Err(error) => return unsafe { finish(op, Err::<(), _>(error)) },
    };
    let future: BoxedFuture<io::Result<()>> = Box::pin(async move {
        if data_only == 0 {
            file.sync_all().await
        } else {
            file.sync_data().await
        }
    });
    // SAFETY: the caller guarantees that `op` is null or has room for an operation, and that `cx`
    // is null or belongs to the current poll.
    unsafe { start(op, cx, future) }
}

/// Reads the length of a file. The result is the length in bytes, or -EISDIR if the file is a
/// directory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_file_len(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    file: *const upshift_file,
) -> c_int {
    // SAFETY: the caller guarantees that `file` is null or outlives the operation.
    let file = match unsafe { file_ref(file) } {
        Ok(file) => file,
        // SAFETY: the caller guarantees that `op` is null or has room for an operation.
        Err(error) => return unsafe { finish(op, Err::<(), _>(error)) },
    };
    let future: BoxedFuture<io::Result<usize>> = Box::pin(async move {
        let metadata = file.metadata().await?;
        if metadata.is_dir() {
            return Err(io::Error::from_raw_os_error(libc::EISDIR));
        }
        Ok(metadata.len() as usize)
    });
    // SAFETY: the caller guarantees that `op` is null or has room for an operation, and that `cx`
    // is null or belongs to the current poll.
    unsafe { start(op, cx, future) }
}

/// Truncates a file to `len` bytes, or extends it by a hole. The result is 0 on success.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_file_set_len(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    file: *const upshift_file,
    len: u64,
) -> c_int {
    // SAFETY: the caller guarantees that `file` is null or outlives the operation.
    let file = match unsafe { file_ref(file) } {
        Ok(file) => file,
        // SAFETY: the caller guarantees that `op` is null or has room for an operation.
        Err(error) => return unsafe { finish(op, Err::<(), _>(error)) },
    };
    let future: BoxedFuture<io::Result<()>> = Box::pin(file.set_len(len));
    // SAFETY: the caller guarantees that `op` is null or has room for an operation, and that `cx`
    // is null or belongs to the current poll.
    unsafe { start(op, cx, future) }
}
