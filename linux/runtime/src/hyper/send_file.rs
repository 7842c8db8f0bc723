//! Sends cached pages of a file with `sendfile`.
//!
//! `sendfile` waits for the device where a page is not cached, and no flag prevents that. So
//! `cachestat` first counts the cached pages of the piece, including those under readahead; a
//! non-blocking read of the last byte (`RWF_NOWAIT`) shows whether the readahead is complete. If a
//! page is evicted between these calls and `sendfile`, the vCPU waits for the device, once.
//!
//! `cachestat` exists since Linux 6.5, and since 6.14 only for processes that own the file or may
//! write to it. Without `cachestat`, the caller reads the file and writes the bytes.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::preempt::without_suspension;

/// Number of the system call `cachestat`, the same on all architectures but alpha.
const SYS_CACHESTAT: libc::c_long = 451;

#[repr(C)]
struct CachestatRange {
    offset: u64,
    length: u64,
}

/// The result of `cachestat`, in pages.
#[repr(C)]
#[derive(Default)]
struct Cachestat {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Sends the bytes that the socket takes without waiting, at most `count` from `position`.
/// Returns `None` if not all of these bytes are known to be cached.
pub(super) fn send_file(
    socket: RawFd,
    file: BorrowedFd<'_>,
    position: u64,
    count: usize,
) -> io::Result<Option<usize>> {
    let (Ok(mut offset), true) = (i64::try_from(position), is_cached(file, position, count)) else {
        return Ok(None);
    };
    // SAFETY: `offset` is valid for reads and writes during the call.
    let sent = without_suspension(|| unsafe {
        libc::sendfile(socket, file.as_raw_fd(), &raw mut offset, count)
    });
    if let Ok(sent) = usize::try_from(sent) {
        return Ok(Some(sent));
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        // The kernel, or this kind of file, does not support the call.
        Some(libc::EINVAL | libc::ENOSYS | libc::EOPNOTSUPP) => Ok(None),
        _ => Err(error),
    }
}

fn is_cached(file: BorrowedFd<'_>, position: u64, count: usize) -> bool {
    static UNSUPPORTED: AtomicBool = AtomicBool::new(false);
    if count == 0 || UNSUPPORTED.load(Relaxed) {
        return false;
    }
    let range = CachestatRange {
        offset: position,
        length: count as u64,
    };
    let mut counts = Cachestat::default();
    // SAFETY: `range` is valid for reads and `counts` for writes during the call, and both have the
    // kernel's layout.
    let result = unsafe {
        libc::syscall(
            SYS_CACHESTAT,
            file.as_raw_fd(),
            &raw const range,
            &raw mut counts,
            0,
        )
    };
    if result != 0 {
        let error = io::Error::last_os_error().raw_os_error();
        // Old kernels and seccomp filters do not have the call.
        if error == Some(libc::ENOSYS) {
            UNSUPPORTED.store(true, Relaxed);
        }
        return false;
    }
    let page = page_size();
    let last = position + count as u64 - 1;
    counts.cached > last / page - position / page && is_readable_now(file, last)
}

/// Returns true if the byte at `position` can be read without waiting.
fn is_readable_now(file: BorrowedFd<'_>, position: u64) -> bool {
    let mut byte = 0u8;
    let iovec = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    let Ok(offset) = libc::off64_t::try_from(position) else {
        return false;
    };
    // SAFETY: `iovec` is valid for reads during the call, and its buffer `byte` for writes.
    unsafe {
        libc::preadv2(
            file.as_raw_fd(),
            &raw const iovec,
            1,
            offset,
            libc::RWF_NOWAIT,
        ) == 1
    }
}

fn page_size() -> u64 {
    static SIZE: OnceLock<u64> = OnceLock::new();
    *SIZE.get_or_init(|| {
        // SAFETY: `sysconf` takes no pointer.
        let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        u64::try_from(size).unwrap_or(4096)
    })
}

/// Makes the socket non-blocking, since `sendfile` has no flag for that. Returns false if
/// `sendfile` must not be used.
pub(super) fn prepare(socket: RawFd) -> bool {
    // `sendfile` has no MSG_NOSIGNAL, so it may only be used if the process ignores or handles
    // SIGPIPE, as Rust programs do.
    // SAFETY: a zeroed `sigaction` is valid. The new action is null, so the call only writes the
    // present action to `action`.
    let sigpipe_kills = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGPIPE, std::ptr::null(), &raw mut action) != 0
            || action.sa_sigaction == libc::SIG_DFL
    };
    if sigpipe_kills {
        return false;
    }
    // The operations on a stream do not depend on the flag, neither with io_uring nor with
    // readiness.
    // SAFETY: `F_GETFL` and `F_SETFL` take no pointer; the caller owns the descriptor.
    unsafe {
        let flags = libc::fcntl(socket, libc::F_GETFL);
        flags >= 0
            && (flags & libc::O_NONBLOCK != 0
                || libc::fcntl(socket, libc::F_SETFL, flags | libc::O_NONBLOCK) == 0)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn file(bytes: &[u8]) -> File {
        let path = std::env::temp_dir().join(format!(
            "upshift-send-file-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        let mut file = File::options()
            .create(true)
            .truncate(true)
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        std::fs::remove_file(path).unwrap();
        file.write_all(bytes).unwrap();
        file.sync_all().unwrap();
        file
    }

    #[test]
    fn cached_bytes_are_sent_until_the_socket_is_full_and_uncached_bytes_are_not() {
        let bytes: Vec<u8> = (0..1 << 20).map(|n| (n % 251) as u8).collect();
        let file = file(&bytes);
        let (sender, mut receiver) = UnixStream::pair().unwrap();
        assert!(prepare(sender.as_raw_fd()));
        if !is_cached(file.as_fd(), 0, 1) {
            println!("skipped: no cachestat, or not permitted for this file");
            return;
        }
        // The pieces start at byte 3, so they are not aligned to pages.
        let mut sent = 0;
        loop {
            match send_file(sender.as_raw_fd(), file.as_fd(), sent as u64 + 3, 65_536) {
                Ok(Some(count)) => sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                other => panic!("{other:?} after {sent}"),
            }
        }
        let mut bytes_received = vec![0; sent];
        receiver.read_exact(&mut bytes_received).unwrap();
        assert!(bytes_received == bytes[3..sent + 3]);
        // Bytes beyond the end of the file are not cached.
        let end = bytes.len() as u64;
        assert!(is_cached(file.as_fd(), end - 1, 1));
        assert!(!is_cached(file.as_fd(), end - 1, 2));
        assert!(!is_cached(file.as_fd(), end, 1));
        // One page in the middle leaves the cache.
        // SAFETY: `posix_fadvise` takes no pointer.
        let result =
            unsafe { libc::posix_fadvise(file.as_raw_fd(), 8192, 4096, libc::POSIX_FADV_DONTNEED) };
        assert_eq!(result, 0);
        if is_readable_now(file.as_fd(), 8192) {
            println!("skipped: this file system keeps its pages");
            return;
        }
        assert!(!is_cached(file.as_fd(), 0, 65_536));
        let sent = send_file(sender.as_raw_fd(), file.as_fd(), 0, 65_536);
        assert_eq!(sent.unwrap(), None);
    }

    #[test]
    fn sending_to_a_closed_reader_is_an_error() {
        let file = file(&[1; 100]);
        let (sender, receiver) = UnixStream::pair().unwrap();
        assert!(prepare(sender.as_raw_fd()));
        drop(receiver);
        match send_file(sender.as_raw_fd(), file.as_fd(), 0, 100) {
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::BrokenPipe),
            other => assert_eq!(other.unwrap(), None, "sent to a closed reader"),
        }
    }
}
