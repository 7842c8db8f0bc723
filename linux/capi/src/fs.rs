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

/// An open file. Any thread, several at once; it outlives its operations.
pub struct upshift_file(File);

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

fn handles(file: File) -> Handles {
    Handles(
        Box::into_raw(Box::new(upshift_file(file))).cast(),
        null_mut(),
    )
}

fn options(flags: c_int, mode: u32) -> OpenOptions {
    let mut options = OpenOptions::new();
    let known = libc::O_ACCMODE | libc::O_APPEND | libc::O_TRUNC | libc::O_CREAT | libc::O_EXCL;
    let access = flags & libc::O_ACCMODE;
    let exclusive = flags & libc::O_EXCL != 0;
    options
        .read(access != libc::O_WRONLY)
        .write(access != libc::O_RDONLY)
        .append(flags & libc::O_APPEND != 0)
        .truncate(flags & libc::O_TRUNC != 0)
        .create(flags & libc::O_CREAT != 0)
        .create_new(exclusive && flags & libc::O_CREAT != 0)
        .custom_flags(flags & !known)
        .mode(mode);
    options
}

/// Opens a file like `open(2)`: `out.handles[0]` is an upshift_file. If `beneath` is not null, the
/// path is relative to that directory and cannot lead outside of it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_open(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    beneath: *const upshift_file,
    path: *const c_char,
    flags: c_int,
    mode: u32,
) -> c_int {
    // SAFETY: by contract `path` is null or a string, and `beneath` is null or a file that outlives
    // the operation.
    let (path, beneath): (_, Option<&'static upshift_file>) =
        unsafe { (net::path(path), beneath.as_ref()) };
    let open: Boxed<io::Result<Handles>> = Box::pin(async move {
        let options = options(flags, mode);
        Ok(handles(match beneath {
            Some(directory) => options.open_beneath(&directory.0, path?).await?,
            None => options.open(path?).await?,
        }))
    });
    // SAFETY: by contract `op` has room, and `cx` belongs to the current poll.
    unsafe { start(op, cx, open) }
}

/// Adopts the descriptor of an open file: the returned upshift_file owns it from the call on.
/// Returns null for a descriptor that is not open. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_file_from_fd(fd: c_int) -> *mut upshift_file {
    // SAFETY: the caller gives the descriptor away.
    let Ok(fd) = (unsafe { take_fd(fd) }) else {
        return null_mut();
    };
    Box::into_raw(Box::new(upshift_file(File::from_std(fd.into()))))
}

/// Returns the file's descriptor, which the file still owns; -EBADF for null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_file_fd(file: *const upshift_file) -> c_int {
    // SAFETY: by contract the pointer is null or valid.
    unsafe { file.as_ref() }.map_or(-libc::EBADF, |file| file.0.as_raw_fd())
}

/// Frees a file. Does nothing for null. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_file_free(file: *mut upshift_file) {
    // SAFETY: the caller owns the file and gives it away once.
    unsafe { free(file) };
}

/// Returns the file of a call, or the error `InvalidInput` for null.
///
/// # Safety
/// The pointer is null, or the file outlives the operation.
#[inline]
unsafe fn file_ref(file: *const upshift_file) -> io::Result<&'static File> {
    // SAFETY: by contract the pointer is null, or the file outlives the operation.
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
    // SAFETY: the caller upholds the requirements of this call.
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
    // SAFETY: the caller upholds the requirements of this call.
    match unsafe { check_arguments(file, buf) } {
        // SAFETY: the caller upholds the requirements of this call.
        Ok((file, buf)) => unsafe { start(op, cx, operation(file, buf)) },
        // SAFETY: the caller upholds the requirements of this call.
        Err(refused) => unsafe { finish(op, refused) },
    }
}

/// Reads at a position into a buffer, up to its capacity: the result is the count, 0 at the end of
/// the file; out.buf is the buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_read_at(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    file: *const upshift_file,
    buf: *const upshift_buf,
    offset: u64,
) -> c_int {
    // SAFETY: the caller upholds the requirements of this call.
    unsafe { start_with(op, cx, file, buf, |file, buf| file.read_at(buf, offset)) }
}

/// Writes a buffer at a position: the result is the count, which may be less than all; out.buf is
/// the buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_write_at(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    file: *const upshift_file,
    buf: *const upshift_buf,
    offset: u64,
) -> c_int {
    // SAFETY: the caller upholds the requirements of this call.
    unsafe { start_with(op, cx, file, buf, |file, buf| file.write_at(buf, offset)) }
}

/// Writes all of a buffer at a position: result 0; out.buf is the buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_write_all_at(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    file: *const upshift_file,
    buf: *const upshift_buf,
    offset: u64,
) -> c_int {
    let write = |file: &'static File, buf| -> Boxed<(io::Result<()>, Buf)> {
        Box::pin(file.write_all_at(buf, offset))
    };
    // SAFETY: the caller upholds the requirements of this call.
    unsafe { start_with(op, cx, file, buf, write) }
}

/// Waits until written data is on the device, and also the metadata unless `data_only` is set.
/// Result 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_file_sync(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    file: *const upshift_file,
    data_only: c_int,
) -> c_int {
    // SAFETY: the caller upholds the requirements of this call.
    let file = match unsafe { file_ref(file) } {
        Ok(file) => file,
        // SAFETY: the caller upholds the requirements of this call.
        Err(refused) => return unsafe { finish(op, Err::<(), _>(refused)) },
    };
    let sync: Boxed<io::Result<()>> = Box::pin(async move {
        if data_only == 0 {
            file.sync_all().await
        } else {
            file.sync_data().await
        }
    });
    // SAFETY: by contract `op` has room, and `cx` belongs to the current poll.
    unsafe { start(op, cx, sync) }
}

/// Reads the length of a file. The result is the length in bytes, or -EISDIR for a directory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_file_len(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    file: *const upshift_file,
) -> c_int {
    // SAFETY: the caller upholds the requirements of this call.
    let file = match unsafe { file_ref(file) } {
        Ok(file) => file,
        // SAFETY: the caller upholds the requirements of this call.
        Err(refused) => return unsafe { finish(op, Err::<(), _>(refused)) },
    };
    let len: Boxed<io::Result<usize>> = Box::pin(async move {
        let metadata = file.metadata().await?;
        if metadata.is_dir() {
            return Err(io::Error::from_raw_os_error(libc::EISDIR));
        }
        Ok(metadata.len() as usize)
    });
    // SAFETY: by contract `op` has room, and `cx` belongs to the current poll.
    unsafe { start(op, cx, len) }
}

/// Truncates a file, or extends it by a hole. Result 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_file_set_len(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    file: *const upshift_file,
    len: u64,
) -> c_int {
    // SAFETY: the caller upholds the requirements of this call.
    let file = match unsafe { file_ref(file) } {
        Ok(file) => file,
        // SAFETY: the caller upholds the requirements of this call.
        Err(refused) => return unsafe { finish(op, Err::<(), _>(refused)) },
    };
    let set: Boxed<io::Result<()>> = Box::pin(file.set_len(len));
    // SAFETY: by contract `op` has room, and `cx` belongs to the current poll.
    unsafe { start(op, cx, set) }
}
