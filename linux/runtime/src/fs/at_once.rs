//! What the kernel answers at once, without the ring: pages and names that are in its caches.
//!
//! Reading 4 KiB of the page cache takes the kernel 1.1 µs, and the way there and back through the ring 0.4 to 0.7 µs more. So a
//! read first asks for what needs no waiting, by `preadv2` with `RWF_NOWAIT`, and an opening by `openat2` with `RESOLVE_CACHED`:
//! the same attempts that the ring makes when something is submitted, less the ring. What is not there is `EAGAIN`, and
//! goes through the ring, which waits.
//!
//! * **Never for long.** Neither call waits for a device. A read is done in pieces of at most 1 MiB, 256 KiB beside something more urgent, and between two of them gives way
//!   as any leaf future does (`coop`); the ring would copy all of it within one system call, with the vCPU waiting.
//! * **Tries are given up where they fail.** After three misses in a row the next operations go
//!   through the ring ([`Tries`](super::tries::Tries)).
//! * **Errors come from the ring.** It is asked again, and what it says counts: pipes, terminals and files of the kernel, of networks and of
//!   FUSE do not know `RWF_NOWAIT`, and are not asked twice. `O_DIRECT` would wait for the device: never asked.
//! * **Nothing is in flight** between two pieces: a future that is dropped there has nothing to cancel.

use std::ffi::c_void;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::context;

/// Bytes copied by one system call beside something more urgent: some 18 µs (measured: 64 KiB at a time 84 µs per MiB, 256 KiB 71 to 83, all at once 66), within the
/// interval at which a vCPU looks for completions under load.
const PIECE: usize = 256 << 10;
/// The same where nothing of the vCPU's ring or timers is more urgent: some 66 µs. Completions are then looked for at five times the interval.
const LONG_PIECE: usize = 1 << 20;
/// What it takes, ns.
const LONG_TIME: u64 = 70_000;

/// How much of so many bytes is copied by the next system call.
pub(super) fn piece(length: usize) -> usize {
    if length <= PIECE {
        return length;
    }
    match context::with(|worker| worker.is_undisturbed(LONG_TIME)) {
        Some(true) => length.min(LONG_PIECE),
        _ => PIECE,
    }
}

/// What came of a try.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Now<T> {
    /// It is done.
    Done(T),
    /// It has to wait for something.
    Waits,
    /// Not known here, or an error: the ring will tell.
    Cannot,
}

/// What an error says of a try.
fn failed<T>() -> Now<T> {
    match io::Error::last_os_error().raw_os_error() {
        Some(libc::EAGAIN | libc::EINTR) => Now::Waits,
        _ => Now::Cannot,
    }
}

/// Reads cached bytes, [a piece](piece) of them; 0 is the end of the file.
///
/// # Safety
/// There is room for `length` bytes at `start`.
pub(super) unsafe fn read(
    fd: BorrowedFd<'_>,
    start: *mut u8,
    length: usize,
    offset: u64,
) -> Now<usize> {
    let Ok(offset) = libc::off_t::try_from(offset) else {
        return Now::Cannot;
    };
    let piece = libc::iovec {
        iov_base: start.cast::<c_void>(),
        iov_len: length,
    };
    // SAFETY: the caller vouches for the room.
    let count = unsafe {
        libc::preadv2(
            fd.as_raw_fd(),
            &raw const piece,
            1,
            offset,
            libc::RWF_NOWAIT,
        )
    };
    usize::try_from(count).map_or_else(|_| failed(), Now::Done)
}

/// Was the end of the file seen by a read at `offset` that was asked for `room` bytes and read `count`? What is not cached begins with a page: a read that is cut
/// short within one is cut short by the end.
pub(super) fn is_end(offset: u64, count: usize, room: usize) -> bool {
    let within = !(offset + count as u64).is_multiple_of(SMALLEST_PAGE);
    count == 0 || (count < room && within)
}

/// Pages are of this size, or of multiples of it.
const SMALLEST_PAGE: u64 = 4096;

/// The longest path that is tried, with the 0 at its end.
const PATH: usize = 256;

/// Is it a path, and a way to open it, that [`open`] knows?
pub(super) fn is_openable(path: &Path, flags: i32) -> bool {
    let path = path.as_os_str().as_bytes();
    let changes = libc::O_CREAT | libc::O_TRUNC | libc::O_TMPFILE & !libc::O_DIRECTORY;
    flags & (changes | libc::O_PATH) == 0 && path.len() < PATH && !path.contains(&0)
}

/// Opens what the kernel has cached the name of, which [is openable](is_openable). `flags` as for `open(2)`; nothing is created or cut off. The open file is marked with
/// `O_NONBLOCK`: before the ring reads it, or a user sees it, that is to be taken back.
pub(super) fn open(path: &Path, flags: i32) -> Now<OwnedFd> {
    let path = path.as_os_str().as_bytes();
    let mut name = [MaybeUninit::<u8>::uninit(); PATH];
    for (to, from) in name.iter_mut().zip(path.iter().chain(&[0])) {
        to.write(*from);
    }
    // A FIFO and some devices wait in `open`; so the ring adds this flag too when it tries.
    let waits_not = flags | libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: all zeroes is a valid value.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = waits_not as u64;
    how.resolve = libc::RESOLVE_CACHED;
    // SAFETY: the name ends in 0, and the size is that of `how`.
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
        return Now::Cannot;
    };
    if fd < 0 {
        return failed();
    }
    // SAFETY: the kernel made it for us.
    Now::Done(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cached_name_is_opened_as_the_ring_would() {
        let path = std::env::current_exe().unwrap();
        let Now::Done(fd) = open(&path, libc::O_RDONLY) else {
            return; // not in the cache, or a kernel before 5.12
        };
        // SAFETY: a query.
        let closes = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFD) };
        assert_eq!(closes & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
    }

    #[test]
    fn what_changes_something_is_left_to_the_ring() {
        assert!(is_openable(Path::new("a"), libc::O_RDWR | libc::O_APPEND));
        assert!(is_openable(Path::new("a"), libc::O_DIRECTORY));
        for flags in [libc::O_CREAT, libc::O_TRUNC, libc::O_TMPFILE, libc::O_PATH] {
            assert!(!is_openable(Path::new("a"), flags));
        }
        assert!(!is_openable(Path::new("a\0b"), libc::O_RDONLY));
        assert!(!is_openable(Path::new(&"a".repeat(PATH)), libc::O_RDONLY));
        assert!(!matches!(
            open(Path::new("/does/not/exist"), 0),
            Now::Done(_)
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
