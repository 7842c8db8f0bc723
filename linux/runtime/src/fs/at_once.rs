//! What the kernel answers at once, without the ring: pages and names that are in its caches.
//!
//! Reading 4 KiB of the page cache takes the kernel 1.1 µs, and the way there and back through the ring 0.4 to 0.7 µs more. So a
//! read first asks for what needs no waiting, by `preadv2` with `RWF_NOWAIT`, and an opening by `openat2` with `RESOLVE_CACHED`:
//! the same attempts that the ring makes when something is submitted, less the ring. What is not there is `EAGAIN`, and
//! goes through the ring, which waits.
//!
//! * **Never for long.** Neither call waits for a device. A read is done in pieces of at most 1 MiB, 256 KiB beside something more urgent, and between two of them gives way
//!   as any leaf future does (`coop`); the ring would copy all of it within one system call, with the vCPU waiting.
//! * **What is tried pays.** A hit saves 0.4 to 0.7 µs, a miss costs some 1 µs, next to the 6 µs of CPU time of a read from the device. So [`Tries`] pauses
//!   after a miss, for twice as many operations after each further one, and half as long after each hit: where most hit nearly all are tried, where most miss
//!   nearly none. Of *n* that all miss, 1 / [`LONGEST`] and ⌈log₂ [`LONGEST`]⌉ are tried in vain, and a file that comes to be cached is tried
//!   always again after twice [`LONGEST`] reads.
//! * **Errors come from the ring.** It is asked again, and what it says counts: pipes, terminals and files of the kernel, of networks and of
//!   FUSE do not know `RWF_NOWAIT`, and are not asked twice. `O_DIRECT` would wait for the device: never asked.
//! * **Nothing is in flight** between two pieces: a future that is dropped there has nothing to cancel.

use std::ffi::c_void;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use upshift_ring::Fd;

use crate::context;
use crate::coroutine::coop;

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

/// The longest pause, in operations.
const LONGEST: u32 = 127;
/// Nothing is answered at once.
const NEVER: u32 = u32::MAX;
/// It is not known yet whether it is of the kind that can.
const UNKNOWN: u32 = u32::MAX - 1;

/// Whether the next operation is tried at once. Of a file, or of the names that a thread opens. A hint: threads that
/// use it at the same time may lose each other's news.
///
/// ```text
///     ── missed ──►   ── missed ──►   ── missed ──►       ──►
///  0               1               3               7   …       LONGEST    operations that are not tried before the next one is
///     ◄──── hit ───   ◄──── hit ───   ◄──── hit ───       ◄──
/// ```
#[derive(Debug)]
pub(super) struct Tries(AtomicU32);

impl Tries {
    /// The first one is tried.
    pub(super) const fn new() -> Tries {
        Tries(AtomicU32::new(0))
    }

    /// Of a file that was opened elsewhere.
    pub(super) const fn unknown() -> Tries {
        Tries(AtomicU32::new(UNKNOWN))
    }

    /// Of a file opened with these flags.
    pub(super) fn with_flags(flags: i32) -> Tries {
        let never = flags & (libc::O_DIRECT | libc::O_PATH) != 0;
        Tries(AtomicU32::new(if never { NEVER } else { 0 }))
    }

    /// Is the next operation, on this file if it is on one, to be tried?
    #[inline]
    pub(super) fn is_due(&self, file: Option<&Fd>) -> bool {
        match self.0.load(Relaxed) {
            0 => true,
            state => self.is_due_in(state, file),
        }
    }

    #[cold]
    fn is_due_in(&self, state: u32, file: Option<&Fd>) -> bool {
        if state == NEVER {
            return false;
        }
        if state == UNKNOWN {
            return file.is_none_or(|fd| self.find_out(fd));
        }
        let left = state & 0xffff;
        if left > 0 {
            self.0.store(state - 1, Relaxed);
        }
        left == 0
    }

    /// Asks for the flags of a file that was opened elsewhere. True: it is of the kind that can be answered at once.
    fn find_out(&self, file: &Fd) -> bool {
        // SAFETY: a query.
        let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
        let known = Tries::with_flags(flags).0.into_inner();
        self.0.store(known, Relaxed);
        known == 0
    }

    /// Does the file go through the page cache, as far as is known?
    pub(super) fn is_cacheable(&self, file: &Fd) -> bool {
        match self.0.load(Relaxed) {
            NEVER => false,
            UNKNOWN => self.find_out(file),
            _ => true,
        }
    }

    /// It was answered at once.
    #[inline]
    pub(super) fn hit(&self) {
        let state = self.0.load(Relaxed);
        if state != 0 {
            // Another thread may just have said never, or nothing yet.
            self.pause((state >> 17).min(LONGEST));
        }
    }

    /// It was not.
    pub(super) fn missed(&self) {
        self.pause((2 * (self.0.load(Relaxed) >> 16) + 1).min(LONGEST));
    }

    /// So many operations are not tried.
    fn pause(&self, pause: u32) {
        self.0.store(pause << 16 | pause, Relaxed);
    }

    /// It cannot be, and is not tried again.
    pub(super) fn never(&self) {
        self.0.store(NEVER, Relaxed);
    }
}

impl Clone for Tries {
    fn clone(&self) -> Tries {
        Tries(AtomicU32::new(self.0.load(Relaxed)))
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

/// Bytes of a file that are read before its length is asked for.
const BEGINNING: usize = 8 << 10;

/// See [`beginning`].
pub(super) struct Beginning {
    /// What was read.
    pub(super) bytes: Vec<u8>,
    /// The end of the file has been seen.
    pub(super) is_all: bool,
    /// Its file system knows `RWF_NOWAIT`. Then it keeps the attributes of an open file in memory.
    pub(super) is_local: bool,
    /// Of the file.
    pub(super) tries: Tries,
}

impl Beginning {
    /// Of a read that was not the end, or failed.
    pub(super) fn of(bytes: Vec<u8>, error: Option<&io::Error>) -> Beginning {
        let waits = matches!(error.map(io::Error::raw_os_error), Some(Some(libc::EAGAIN)));
        let tries = Tries::new();
        match error {
            None => {}
            Some(_) if waits => tries.missed(),
            Some(_) => tries.never(),
        }
        Beginning {
            bytes,
            is_all: false,
            is_local: error.is_none() || waits,
            tries,
        }
    }
}

/// Reads the beginning of a file that has just been opened for reading, as far as it is cached.
pub(super) fn beginning(fd: BorrowedFd<'_>) -> Beginning {
    behind(fd, Vec::with_capacity(BEGINNING))
}

/// Reads a file on, of which this much has been read, as [`beginning`] does.
pub(super) fn behind(fd: BorrowedFd<'_>, mut bytes: Vec<u8>) -> Beginning {
    bytes.reserve_exact(BEGINNING);
    let most = bytes.len() + BEGINNING;
    let mut beginning = Beginning {
        bytes,
        is_all: false,
        is_local: false,
        tries: Tries::new(),
    };
    let bytes = &mut beginning.bytes;
    while bytes.len() < most && !beginning.is_all {
        let (start, room) = (bytes.len(), most - bytes.len());
        // SAFETY: there is so much room behind what has been read.
        match unsafe { read(fd, bytes.as_mut_ptr().add(start), room, start as u64) } {
            Now::Done(count) => {
                coop::charge();
                // SAFETY: so many bytes have been written.
                unsafe { bytes.set_len(start + count) };
                beginning.is_local = true;
                beginning.is_all = is_end(start as u64, count, room);
            }
            Now::Waits => {
                beginning.is_local = true;
                // The ring has it from here on.
                beginning.tries.missed();
                break;
            }
            Now::Cannot => {
                beginning.tries.never();
                break;
            }
        }
    }
    // A copy of 4,000 bytes from the stack instead takes as long as the two calls of the allocator.
    bytes.shrink_to_fit();
    beginning
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

    /// How many of `n` operations that all fail are tried.
    fn tried_in_vain(n: u32) -> u32 {
        let tries = Tries::new();
        (0..n)
            .filter(|_| tries.is_due(None))
            .inspect(|_| tries.missed())
            .count() as u32
    }

    #[test]
    fn pauses_double_and_tries_in_vain_are_few() {
        assert_eq!(tried_in_vain(1), 1);
        assert_eq!(tried_in_vain(3), 2);
        assert_eq!(tried_in_vain(7), 3);
        let n = 100 * (LONGEST + 1);
        assert!(
            tried_in_vain(n) <= n / (LONGEST + 1) + 7,
            "{}",
            tried_in_vain(n)
        );
    }

    #[test]
    fn what_comes_to_be_cached_is_soon_tried_always() {
        let tries = Tries::new();
        for _ in 0..50 {
            tries.missed();
        }
        let mut operations = 0;
        while tries.0.load(Relaxed) != 0 {
            operations += 1;
            if tries.is_due(None) {
                tries.hit();
            }
        }
        assert!(operations <= 2 * (LONGEST + 1), "{operations}");
        assert!((0..1000).all(|_| tries.is_due(None)));
    }

    /// How many of 10,000 operations are tried if of a hundred so many hit, evenly spread.
    fn tried_of_which_hit(percent: u32) -> usize {
        let tries = Tries::new();
        let hits = |operation: u32| operation.wrapping_mul(61) % 100 < percent;
        (0..10_000)
            .filter(|_| tries.is_due(None))
            .inspect(|&operation| {
                if hits(operation) {
                    tries.hit();
                } else {
                    tries.missed();
                }
            })
            .count()
    }

    #[test]
    fn most_are_tried_where_most_hit_and_few_where_most_miss() {
        assert!(tried_of_which_hit(95) > 9_000, "{}", tried_of_which_hit(95));
        assert!(tried_of_which_hit(20) < 500, "{}", tried_of_which_hit(20));
    }

    #[test]
    fn direct_io_is_never_tried() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let fd = Fd::new(file);
        assert!(Tries::unknown().is_due(Some(&fd)));
        assert!(!Tries::with_flags(libc::O_DIRECT).is_due(Some(&fd)));
        let tries = Tries::new();
        tries.never();
        assert!((0..1000).all(|_| !tries.is_due(Some(&fd))));
    }

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
