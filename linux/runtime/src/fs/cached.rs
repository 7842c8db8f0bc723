//! Tries to read pages and to open names that the kernel has cached, without the ring (the vCPU's
//! io_uring or its substitute).
//!
//! A read of 4 KiB from the page cache takes about 1.5 times as long through the ring. So a read
//! first asks for cached bytes, with `preadv2` and `RWF_NOWAIT`, and an opening asks for a cached
//! name, with `openat2` and `RESOLVE_CACHED`. The ring makes the same attempts at submission. If
//! an attempt fails with `EAGAIN`, the operation goes through the ring, which waits.
//!
//! * **Never for long.** Neither call waits for a device. A read is made in pieces of at most 1
//!   MiB, or 256 KiB if the vCPU's ring or timers have something more urgent. Between two pieces it
//!   yields like every future of this crate (`coop`). The ring would copy all pieces within one
//!   system call, with the vCPU waiting.
//! * **Attempts stop where they fail.** After three misses in a row the next operations go through
//!   the ring ([`AttemptHistory`](super::attempt_history::AttemptHistory)).
//! * **Errors come from the ring.** A failed operation is retried on the ring, and that result
//!   counts. Pipes, terminals and files of the kernel, of networks and of FUSE do not support
//!   `RWF_NOWAIT`, and are not tried again. Reads with `O_DIRECT` are never tried, because they
//!   would wait for the device.
//! * **Nothing is in flight** between two pieces, so a future that is dropped there has nothing to
//!   cancel.

use std::ffi::c_void;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::context;

/// Number of bytes that one system call copies if the vCPU's ring or timers have something more
/// urgent. The copy takes less time than passes, under load, between two points at which a vCPU
/// processes completions. Smaller pieces cost more in all.
const PIECE: usize = 256 << 10;
/// Number of bytes that one system call copies if the vCPU's ring and timers have nothing more
/// urgent. The vCPU then processes completions at five times the usual interval.
const LONG_PIECE: usize = 1 << 20;
/// Upper estimate of the time for which a long piece is copied. It is copied only if no timer is
/// due within this time.
const LONG_PIECE_NANOS: u64 = 70_000;

/// Returns the number of bytes that the next system call copies if `length` bytes are missing.
pub(super) fn piece(length: usize) -> usize {
    if length <= PIECE {
        return length;
    }
    match context::with(|worker| worker.is_undisturbed(LONG_PIECE_NANOS)) {
        Some(true) => length.min(LONG_PIECE),
        _ => PIECE,
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Attempt<T> {
    Done(T),
    WouldBlock,
    /// The operation is not supported here, or failed. The ring reports the reason.
    Unsupported,
}

/// Returns the outcome for the error of the last system call.
fn failed<T>() -> Attempt<T> {
    match io::Error::last_os_error().raw_os_error() {
        Some(libc::EAGAIN | libc::EINTR) => Attempt::WouldBlock,
        _ => Attempt::Unsupported,
    }
}

/// Reads up to `length` cached bytes, which should not exceed [a piece](piece). Returns 0 at the
/// end of the file.
///
/// # Safety
/// `start` is valid for writes of `length` bytes.
pub(super) unsafe fn read(
    fd: BorrowedFd<'_>,
    start: *mut u8,
    length: usize,
    offset: u64,
) -> Attempt<usize> {
    let Ok(offset) = libc::off_t::try_from(offset) else {
        return Attempt::Unsupported;
    };
    let piece = libc::iovec {
        iov_base: start.cast::<c_void>(),
        iov_len: length,
    };
    // SAFETY: `piece` is valid during the call, and its bytes are valid for writes, because the
    // caller guarantees room for `length` bytes at `start`.
    let count = unsafe {
        libc::preadv2(
            fd.as_raw_fd(),
            &raw const piece,
            1,
            offset,
            libc::RWF_NOWAIT,
        )
    };
    usize::try_from(count).map_or_else(|_| failed(), Attempt::Done)
}

/// Returns true if a read at `offset` that asked for `room` bytes and returned `count` has met the
/// end of the file. Uncached data begins at a page boundary, so only the end of the file cuts a
/// read short within a page.
pub(super) fn is_end(offset: u64, count: usize, room: usize) -> bool {
    let in_page = !(offset + count as u64).is_multiple_of(SMALLEST_PAGE);
    count == 0 || (count < room && in_page)
}

/// Smallest page size; every page size is a multiple of it.
const SMALLEST_PAGE: u64 = 4096;

/// Largest path that is tried, in bytes, with the 0 at its end.
const MAX_PATH_BYTES: usize = 256;

/// Returns true for a path and flags that [`open`] can try.
pub(super) fn is_openable(path: &Path, flags: i32) -> bool {
    let path = path.as_os_str().as_bytes();
    let changes = libc::O_CREAT | libc::O_TRUNC | libc::O_TMPFILE & !libc::O_DIRECTORY;
    flags & (changes | libc::O_PATH) == 0 && path.len() < MAX_PATH_BYTES && !path.contains(&0)
}

/// Opens a file whose name the kernel has cached, and which [is openable](is_openable). `flags` are
/// those of `open(2)`; nothing is created or truncated. The open file is marked with `O_NONBLOCK`;
/// the mark must be removed before the ring reads the file or a user gets the file.
pub(super) fn open(path: &Path, flags: i32) -> Attempt<OwnedFd> {
    let path = path.as_os_str().as_bytes();
    let mut name = [MaybeUninit::<u8>::uninit(); MAX_PATH_BYTES];
    for (to, from) in name.iter_mut().zip(path.iter().chain(&[0])) {
        to.write(*from);
    }
    // A FIFO and a few devices wait in `open`; the ring adds this flag too when it tries.
    let nonblocking = flags | libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: all zeroes is a valid value.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = nonblocking as u64;
    how.resolve = libc::RESOLVE_CACHED;
    // SAFETY: the name ends in 0 and is valid during the call, and the size passed is that of
    // `how`.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_openat2,
            libc::AT_FDCWD,
            name.as_ptr(),
            &raw const how,
            size_of::<libc::open_how>(),
        )
    };
    let Ok(fd) = RawFd::try_from(fd) else {
        return Attempt::Unsupported;
    };
    if fd < 0 {
        return failed();
    }
    // SAFETY: the kernel has just created this descriptor; nothing else owns it.
    Attempt::Done(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cached_name_is_opened_close_on_exec() {
        let path = std::env::current_exe().unwrap();
        let Attempt::Done(fd) = open(&path, libc::O_RDONLY) else {
            return; // not in the cache, or a kernel before 5.12
        };
        // SAFETY: `F_GETFD` takes no pointer.
        let fd_flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFD) };
        assert_eq!(fd_flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
    }

    #[test]
    fn an_opening_that_changes_a_file_is_left_to_the_ring() {
        assert!(is_openable(Path::new("a"), libc::O_RDWR | libc::O_APPEND));
        assert!(is_openable(Path::new("a"), libc::O_DIRECTORY));
        for flags in [libc::O_CREAT, libc::O_TRUNC, libc::O_TMPFILE, libc::O_PATH] {
            assert!(!is_openable(Path::new("a"), flags));
        }
        assert!(!is_openable(Path::new("a\0b"), libc::O_RDONLY));
        assert!(!is_openable(
            Path::new(&"a".repeat(MAX_PATH_BYTES)),
            libc::O_RDONLY
        ));
        assert!(!matches!(
            open(Path::new("/does/not/exist"), 0),
            Attempt::Done(_)
        ));
    }

    #[test]
    fn a_read_cut_short_within_a_page_has_seen_the_end() {
        assert!(is_end(0, 0, 10));
        assert!(is_end(0, 100, 4096));
        assert!(is_end(4096, 5, 8192));
        assert!(!is_end(0, 4096, 8192));
        assert!(!is_end(100, 4096 - 100, 8192));
        assert!(!is_end(0, 100, 100));
    }
}
